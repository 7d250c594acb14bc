import sys

import pytest
import torch

from stackattn.analysis import attention_map
from stackattn.cli import main
from stackattn.cli.demo import TOKENS, bracket_transitions, list_stack


def test_demo_runs_and_writes_its_picture(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--steps", "4", "6"]) == 0
    printed = capsys.readouterr().out
    picture = tmp_path / "attention-map.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "attention-map.png" in printed
    assert f"agrees with a Python list at {len(TOKENS)} of {len(TOKENS)} steps" in printed
    assert "reference" in printed


def test_demo_without_matplotlib_does_the_rest_and_names_the_extra(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.colors", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "--out", str(tmp_path), "--steps", "4"]) == 0
    printed = capsys.readouterr().out
    assert "stackattn[plot]" in printed
    assert "reference" in printed
    assert not list(tmp_path.iterdir())


def test_list_stack():
    assert list_stack(list("([])")) == [1, 2, 1, 0]


def test_noiseless_brackets_are_the_list_stack():
    from stackattn import nondeterministic_weights

    transitions = bracket_transitions(TOKENS, torch.Generator().manual_seed(0), right=60.0)
    weights = nondeterministic_weights(*transitions)[0].sum((-2, -1))
    expected = torch.nn.functional.one_hot(torch.tensor(list_stack(TOKENS)), len(TOKENS) + 1).float()
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("T", [1, 5, 70])
@pytest.mark.parametrize("bottom", [0, 1])
def test_attention_map_of_any_size(tmp_path, T, bottom):
    weights = torch.rand(T, T + bottom).tril(bottom)
    path = attention_map(weights, ["x"] * T, tmp_path / "deeper" / "map.png", truth=[0] * T, title="a stack")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_attention_map_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match=r"weights: expected shape \(3, 3\) or \(3, 4\) for 3 tokens, got \(2, 2\)"):
        attention_map(torch.rand(2, 2), ["a", "b", "c"], tmp_path / "map.png")
