import pytest
import torch

from stackattn.analysis import NondeterministicTrace, SuperpositionTrace, agreement, derivation_tops, real_tops
from stackattn.languages import dyck, language, marked_reversal

ACTIONS = {"push": [1.0, 0, 0], "no-op": [0, 1.0, 0], "pop": [0, 0, 1.0]}


@pytest.mark.parametrize(
    ("made", "text", "tops"),
    [
        (marked_reversal(), "01#10", [0, 1, 1, 0, -1]),
        (marked_reversal(), "#", [-1]),
        (marked_reversal(), "01", [0, 1]),  # a prefix
        (dyck(), "[()][]", [0, 1, 0, -1, 4, -1]),
        (dyck(), "(]", None),
        (dyck(), ")", None),
        (marked_reversal(), "01#0", None),
        (marked_reversal(), "0#00", None),
        (marked_reversal(), "0##", None),
        (language("unmarked-reversal"), "00", None),
        (language("hardest-cfl"), ",$()", None),
    ],
)
def test_real_tops(made, text, tops):
    assert real_tops(made, made.encode(text)) == tops


def test_real_stack_accepts_what_the_language_makes():
    import numpy as np

    for made, length in ((marked_reversal(3), 13), (dyck(3, variant="published"), 14)):
        for string in made.sample(length, 20, generator=np.random.default_rng(0)):
            tops = real_tops(made, string)
            assert tops is not None
            assert tops[-1] == -1
            assert derivation_tops(made, string) == tops


@pytest.mark.parametrize(
    ("name", "text", "tops"),
    [
        ("unmarked-reversal", "0110", [0, 1, 0, -1]),
        ("padded-reversal", "1000001", [0, 0, 0, 0, 0, 0, -1]),  # the padding is not on the stack
        ("unmarked-reversal", "011", None),
        ("marked-copy", "0#0", None),  # no grammar
        # the true brackets are ([ ]) from position 2 on; a decoy stands between [ and ]
        ("hardest-cfl", ",$([,];),]),;", [-1, -1, 2, 3, 3, 3, 3, 3, 3, 2, -1, -1, -1]),
    ],
)
def test_derivation_tops(name, text, tops):
    made = language(name)
    assert derivation_tops(made, made.encode(text)) == tops


def test_best_runs_are_compared_with_derivations():
    made = language("unmarked-reversal")
    tops = [[derivation_tops(made, made.encode("0110"))]]
    actions = torch.tensor([[ACTIONS[kind] for kind in ("no-op", "push", "push", "pop", "pop")]])
    # each action is more probable than the two others, but not than both together
    unsure = SuperpositionTrace("stack", 0, (0.1 * actions + 0.3).double())
    assert agreement([[unsure]], tops, best_run=True)["stack"].right == 4
    assert agreement([[unsure]], tops)["stack"].right < 4


def hard(kinds, first):
    return SuperpositionTrace("stack", first, torch.tensor([[ACTIONS[kind] for kind in kinds]]).double())


def test_the_real_automaton_agrees_everywhere():
    made = marked_reversal()
    tops = [[real_tops(made, made.encode("01#10"))]]
    right = ["push", "push", "no-op", "pop", "pop"]
    for trace in (
        hard(["no-op", *right], 0),
        hard(["push", *right], 0),
        hard(right, 1),
    ):  # BOS pushed or not, or unread
        found = agreement([[trace]], tops)["stack"]
        assert (found.right, found.steps, found.only_pushes, found.never_pushes) == (5, 5, 2, 1)
    late = hard(["no-op", "push", "push", "push", "pop", "pop"], 0)  # pushes the mark: from there on one too high
    assert agreement([[late]], tops)["stack"].right == 2
    both = agreement([[late], [hard(["no-op", *right], 0)]], tops * 2)["stack"]
    assert (both.right, both.steps) == (7, 10)
    assert str(both) == "70.0% of 10 steps (a stack that only pushes: 40.0%, a stack that never pushes: 20.0%)"


def test_baselines_are_what_such_stacks_score():
    made = dyck()
    tops = [[real_tops(made, made.encode(text))] for text in ("[()][]", "()[]", "((([])))")]
    for name, kind in (("only pushes", "push"), ("never pushes", "no-op")):
        traces = [[hard([kind] * (len(batch[0]) + 1), 0)] for batch in tops]
        for best_run in (False, True):
            found = agreement(traces, tops, best_run=best_run)["stack"]
            assert found.share == found.baselines[name]
    assert 0 < found.baselines["never pushes"] < found.baselines["only pushes"] == 0.5


def test_the_nondeterministic_bottom_counts_as_empty():
    made = dyck()
    shapes = ((1, 3, 1, 1, 1, 1), (1, 3, 1, 1, 1, 1), (1, 3, 1, 1, 1))
    push, replace, pop = (torch.full(shape, -30.0, dtype=torch.float64) for shape in shapes)
    replace[:, 0], push[:, 1], pop[:, 2] = 0, 0, 0  # BOS, (, )
    trace = NondeterministicTrace("stack", 0, (push, replace, pop))
    assert agreement([[trace]], [[real_tops(made, made.encode("()"))]])["stack"].right == 2
