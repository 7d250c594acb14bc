"""Agreement of stacks with a real stack and with derivations."""

import pytest
import torch

from stackattn.analysis import (
    NondeterministicTrace,
    SuperpositionTrace,
    correct_steps,
    derivation_tops,
    measure_agreement,
    real_tops,
)
from stackattn.languages import dyck, get_language, marked_reversal

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
        (get_language("unmarked-reversal"), "00", None),
        (get_language("hardest-cfl"), ",$()", None),
    ],
)
def test_real_tops(made, text, tops):
    assert real_tops(made, made.encode(text)) == tops


def test_the_real_stack_accepts_strings_of_the_language():
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
        # the true brackets are ([ at positions 2 and 3 and ]) at 9 and 10; those between them are decoys
        ("hardest-cfl", ",$([,];),]),;", [-1, -1, 2, 3, 3, 3, 3, 3, 3, 2, -1, -1, -1]),
    ],
)
def test_derivation_tops(name, text, tops):
    made = get_language(name)
    assert derivation_tops(made, made.encode(text)) == tops


def test_best_runs_are_compared_with_derivations():
    made = get_language("unmarked-reversal")
    tops = [[derivation_tops(made, made.encode("0110"))]]
    actions = torch.tensor([[ACTIONS[kind] for kind in ("no-op", "push", "push", "pop", "pop")]])
    # the right action has probability 0.4 and each of the others 0.3
    unsure = SuperpositionTrace("stack", 0, ((0.1 * actions + 0.3).double(),))
    assert measure_agreement([[unsure]], tops, best_run=True)["stack"].correct == 4
    assert measure_agreement([[unsure]], tops)["stack"].correct < 4


def hard(kinds, first):
    return SuperpositionTrace("stack", first, (torch.tensor([[ACTIONS[kind] for kind in kinds]]).double(),))


def test_the_real_automaton_agrees_at_every_step():
    made = marked_reversal()
    tops = [[real_tops(made, made.encode("01#10"))]]
    right = ["push", "push", "no-op", "pop", "pop"]
    for trace in (
        hard(["no-op", *right], 0),
        hard(["push", *right], 0),
        hard(right, 1),
    ):  # BOS has the action no-op, is pushed, or is not read
        found = measure_agreement([[trace]], tops)["stack"]
        assert (found.correct, found.steps, found.only_pushes, found.never_pushes) == (5, 5, 2, 1)
    late = hard(["no-op", "push", "push", "push", "pop", "pop"], 0)  # also pushes the mark
    assert measure_agreement([[late]], tops)["stack"].correct == 2
    both = measure_agreement([[late], [hard(["no-op", *right], 0)]], tops * 2)["stack"]
    assert (both.correct, both.steps) == (7, 10)
    assert str(both) == "70.0% of 10 steps (a stack that only pushes: 40.0%, a stack that never pushes: 20.0%)"


def most_weighted(actions, tops, first):
    """Compute `correct_steps` by enumeration: follow each sequence of actions and add up the weight of each top."""
    from itertools import product

    T = len(actions)
    weights = [[0.0] * (T + 1) for _ in range(T)]
    for kinds in product(range(3), repeat=T):
        probability, stack = 1.0, [0]
        for t, kind in enumerate(kinds):
            probability *= actions[t][kind]
        for t, kind in enumerate(kinds):
            if kind == 0:
                stack.append(t + 1)
            elif kind == 2 and len(stack) > 1:
                stack.pop()
            weights[t][stack[-1]] += probability
    right = []
    for symbol, top in enumerate(tops):
        row = weights[symbol + 1 - first]
        tokens = {column + first - 2: weight for column, weight in enumerate(row) if column > 0}  # -1 is BOS
        if top >= 0:
            right.append(max(tokens, key=lambda token: tokens[token]) == top)
        else:
            nothing = max(row[0], tokens.get(-1, 0.0))
            right.append(all(nothing > weight for token, weight in tokens.items() if token >= 0))
    return right


def test_correct_steps_by_enumeration():
    made = dyck()
    tops = real_tops(made, made.encode("[()][]"))
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for first in (0, 1):
        for _ in range(8):
            actions = torch.rand(1, len(tops) + 1 - first, 3, generator=generator, dtype=torch.float64).pow(2)
            actions /= actions.sum(-1, keepdim=True)
            trace = SuperpositionTrace("stack", first, (actions,))
            (found,) = correct_steps(trace, [tops])
            assert found == most_weighted(actions[0].tolist(), tops, first)
            seen |= set(zip((top >= 0 for top in tops), found, strict=True))
    assert len(seen) == 4  # correct and wrong, with and without a token on the real stack


def test_the_empty_share_is_not_a_token():
    """If the real stack is not empty, only tokens are compared, even where the empty stack has the most weight."""
    actions = torch.tensor([[[0.0, 1.0, 0.0], [0.3, 0.7, 0.0], [0.0, 0.9, 0.1]]], dtype=torch.float64)
    trace = SuperpositionTrace("stack", 0, (actions,))
    assert trace.tops()[0].argmax(-1).tolist() == [0, 0, 0]
    assert correct_steps(trace, [[0, 0]]) == [[True, True]]
    assert correct_steps(trace, [[0, -1]]) == [[True, True]]
    assert correct_steps(trace, [[-1, 1]]) == [[True, False]]
    nothing = hard(["no-op"] * 3, 0)
    assert correct_steps(nothing, [[0, -1]]) == [[False, True]]  # no token has any weight


def test_baselines_match_simulated_stacks():
    made = dyck()
    tops = [[real_tops(made, made.encode(text))] for text in ("[()][]", "()[]", "((([])))")]
    for name, kind in (("only pushes", "push"), ("never pushes", "no-op")):
        traces = [[hard([kind] * (len(batch[0]) + 1), 0)] for batch in tops]
        for best_run in (False, True):
            found = measure_agreement(traces, tops, best_run=best_run)["stack"]
            assert found.share == found.baselines[name]
    assert 0 < found.baselines["never pushes"] < found.baselines["only pushes"] == 0.5


def test_the_nondeterministic_bottom_counts_as_empty():
    made = dyck()
    shapes = ((1, 3, 1, 1, 1, 1), (1, 3, 1, 1, 1, 1), (1, 3, 1, 1, 1))
    push, replace, pop = (torch.full(shape, -30.0, dtype=torch.float64) for shape in shapes)
    replace[:, 0], push[:, 1], pop[:, 2] = 0, 0, 0  # BOS, (, )
    trace = NondeterministicTrace("stack", 0, (push, replace, pop))
    assert measure_agreement([[trace]], [[real_tops(made, made.encode("()"))]])["stack"].correct == 2
