"""The strings that the report steps through, and their data on the page."""

import numpy as np
import pytest
import torch

from stackattn.analysis import trace_stacks
from stackattn.analysis.report_data import page_data
from stackattn.analysis.strings import PAPER, select_strings, trace_string, why_excluded
from stackattn.analysis.study import study
from stackattn.languages import dyck, get_language, marked_reversal
from stackattn.models import load


def strings_of(folder, **options):
    """Return the strings of a run, as the page shows them."""
    return page_data(study(folder, **options))["runs"][0]["strings"]


@pytest.mark.parametrize("model", ["tf-nd", "tf-sup", "lstm-nd", "lstm-sup"])
def test_string_data_matches_the_trace(make_run, model):
    folder = make_run(model)
    (string,) = strings_of(folder, texts=["[()][]"])
    assert string["tokens"] == ["BOS", *"[()][]"]
    assert string["inLanguage"]
    assert string["real"] == [-1, 1, 2, 1, -1, 5, -1]
    (stack,) = string["stacks"]
    tokens = torch.tensor([[4, 2, 0, 1, 3, 2, 3]])
    network = load(folder / "best")
    (trace,) = trace_stacks(network, tokens)
    first = trace.first
    tops, contents, actions = trace.tops()[0], trace.contents()[0], trace.actions()[0]
    for t in range(first, 7):
        row = stack["tops"][t]
        expected = tops[t - first].tolist()
        expected = expected if not first else [expected[0], 0, *expected[1:]]  # BOS is not read but has a column
        assert row == pytest.approx([1000 * x for x in expected[: len(row)]], abs=0.51)
        assert sum(expected[len(row) :]) < 0.001 * len(expected)
        assert stack["actions"][t] == pytest.approx([1000 * x for x in actions[t - first].tolist()], abs=0.51)
        assert stack["heights"][t] == pytest.approx(contents[t - first].sum().item(), abs=0.001)
    if first:
        assert stack["tops"][0] == [1000]
        assert stack["actions"][0] is None
    with torch.no_grad():
        probabilities = network(tokens)[0].softmax(-1)
    truth = dyck().next_symbol_distribution("[(", (6, 12))
    assert string["model"][2] == pytest.approx([1000 * x for x in probabilities[2].tolist()], abs=0.6)
    assert string["truth"][2] == pytest.approx([1000 * x for x in truth], abs=0.51)
    lost = sum(p * (p / q).log() for p, q in zip(torch.tensor(truth), probabilities[2], strict=True) if p > 0)
    assert string["loss"][2] == pytest.approx(lost.item(), abs=1e-4)
    assert [run["name"] for run in stack["runs"]] == ["best run", *(f"sampled run {i}" for i in (1, 2, 3))]
    best = trace.best_runs()[0]
    assert [step[0] for step in stack["runs"][0]["steps"][first:]] == [
        ("push", "replace", "pop").index(operation.kind) for operation in best.operations
    ]
    assert 0 < stack["runs"][0]["share"] <= 1


def test_split_weights_add_up(make_run):
    (string,) = strings_of(make_run("tf-nd"), samples=1)
    (stack,) = string["stacks"]
    assert [(part["state"], part["symbol"]) for part in stack["split"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for t, row in enumerate(stack["tops"]):
        for i, weight in enumerate(row):
            parts = [part["tops"][t][i] for part in stack["split"] if i < len(part["tops"][t])]
            assert abs(sum(parts) - weight) <= 3  # the weight and its four parts are rounded


def test_strings_outside_the_language(make_run):
    (string,) = strings_of(make_run(), texts=["(]()"])
    assert not string["inLanguage"]
    assert string["real"] is None
    assert [row is None for row in string["truth"]] == [False, False, True, True, True]
    assert [x is None for x in string["loss"]] == [False, False, True, True, True]


def test_selected_strings():
    assert select_strings(marked_reversal(), (40, 80))[0].origin == "Appendix E of the paper"
    assert dyck().decode(select_strings(dyck(variant="published"), (40, 80))[0].ids, "") == PAPER["dyck"]
    assert [s.origin for s in select_strings(dyck(), (4, 8), seed=7)] == ["sample 1, seed 7", "sample 2, seed 7"]
    assert len(select_strings(dyck(), (40, 80), samples=1)) == 1
    for name, text in PAPER.items():
        assert get_language(name, variant="published").contains(text)
    with pytest.raises(ValueError, match=r"text: expected the symbols .*, got 'x' as symbol 2 of the string"):
        select_strings(dyck(), (4, 8), ["(x)"])
    with pytest.raises(ValueError, match="texts: expected at least one symbol, got the empty string"):
        select_strings(dyck(), (4, 8), ["()", ""])
    assert all(len(string.ids) for string in select_strings(get_language("unmarked-reversal"), (0, 2), samples=20))


def test_why_a_balanced_string_is_excluded(make_run):
    assert why_excluded(dyck(), np.array([0, 0])) == ""
    published = get_language("dyck", variant="published")
    found = [why_excluded(published, published.encode(text)) for text in ("([])", "(]")]
    assert "at least two outermost pairs" in found[0]
    assert found[1] == ""
    folder = make_run()
    traced = [
        trace_string(load(folder / "best"), published, (4, 8), string, names=[])
        for string in select_strings(published, (4, 8), ["([])", "()[]"])
    ]
    assert [string.in_language for string in traced] == [False, True]
    assert [string.why_excluded for string in traced] == [found[0], ""]
    (string,) = strings_of(folder, texts=["()"])
    assert (string["inLanguage"], string["whyExcluded"]) == (True, "")
