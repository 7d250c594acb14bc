import sys

import pytest
import torch

from stackattn.analysis import attention_map, save_figure
from stackattn.cli import main
from stackattn.cli.demo import DEMO_CONFIGS, TOKENS, bracket_transitions, list_stack
from stackattn.training import TrainingRun


@pytest.mark.slow
def test_demo_trains_both_models_and_draws_a_figure(tmp_path, capsys, monkeypatch):
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("tf", "tf-nd"):  # those of the demo, with fewer batches
        text = (DEMO_CONFIGS / f"{name}.yaml").read_text()
        (configs / f"{name}.yaml").write_text(text.replace("train_batches: 250", "train_batches: 10"))
    command = ["demo", "--out", str(tmp_path / "out"), "--epochs", "2", "--configs", str(configs)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"agrees with a Python list at {len(TOKENS)} of {len(TOKENS)} steps" in printed
    assert (tmp_path / "out/demo.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "out/demo.png") in printed
    assert str(tmp_path / "out/report.html") in printed
    assert "<title>2 runs in out</title>" in (tmp_path / "out/report.html").read_text()
    bounds = set()
    for name in ("tf", "tf-nd"):
        best = TrainingRun(tmp_path / "out" / name).result()["best"]
        assert f"{best['cross_entropy_difference']:.4f}" in printed
        bounds.add(round(best["cross_entropy"] - best["cross_entropy_difference"], 6))
    assert len(bounds) == 1  # both have the same validation strings
    assert f"{bounds.pop():.4f}" in printed
    assert "36,576" in printed

    # again: nothing is trained, and the message without matplotlib says what to install
    (tmp_path / "out/demo.png").unlink()
    for name in ("matplotlib", "matplotlib.colors", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "are finished" in printed
    assert "stackattn[plot]" in printed
    assert not (tmp_path / "out/demo.png").exists()
    assert str(tmp_path / "out/report.html") in printed  # the report does not need matplotlib
    assert main([*command, "--seed", "1"]) == 2
    assert "another configuration (language.seed: 0 in the run, 1 requested)" in capsys.readouterr().out


def test_demo_needs_its_configurations(tmp_path, capsys):
    assert main(["demo", "--configs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"but there is no {tmp_path / 'tf.yaml'}" in capsys.readouterr().err


def test_list_stack():
    assert list_stack(list("([])")) == [1, 2, 1, 0]


def test_brackets_without_noise_match_the_list():
    from stackattn import nondeterministic_weights

    transitions = bracket_transitions(TOKENS, torch.Generator().manual_seed(0), right=60.0)
    weights = nondeterministic_weights(*transitions)[0].sum((-2, -1))
    expected = torch.nn.functional.one_hot(torch.tensor(list_stack(TOKENS)), len(TOKENS) + 1).float()
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("T", [1, 5, 70])
@pytest.mark.parametrize("bottom", [0, 1])
def test_attention_map_of_any_size(tmp_path, T, bottom):
    weights = torch.rand(T, T + bottom).tril(bottom)
    figure = attention_map(weights, ["x"] * T, real=[0] * T, title="a stack")
    (path,) = save_figure(figure, tmp_path / "deeper" / "map.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_errors_of_the_attention_map():
    with pytest.raises(ValueError, match=r"weights: expected shape \(3, 3\) or \(3, 4\) for 3 tokens, got \(2, 2\)"):
        attention_map(torch.rand(2, 2), ["a", "b", "c"])
