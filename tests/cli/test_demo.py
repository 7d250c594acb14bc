"""`stackattn demo`: models, figure, report and errors; attention maps."""

import sys

import numpy as np
import pytest
import torch

from stackattn.analysis import attention_map, save_figure
from stackattn.analysis.demo import closing_bracket_share
from stackattn.cli import main
from stackattn.cli.demo import DEMO_CONFIGS, MODELS, TOKENS, bracket_transitions, list_stack
from stackattn.languages import evaluation_set, get_language
from stackattn.models.saving import load
from stackattn.training import TrainingRun


@pytest.mark.slow
def test_demo_trains_the_models_and_draws_a_figure(tmp_path, capsys, monkeypatch):
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("tf", "tf-nd", "nd"):  # those of the demo, with fewer batches
        text = (DEMO_CONFIGS / f"{name}.yaml").read_text()
        (configs / f"{name}.yaml").write_text(text.replace("train_batches: 250", "train_batches: 10"))
    command = ["demo", "--out", str(tmp_path / "out"), "--epochs", "2", "--configs", str(configs)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"agrees with a Python list at {len(TOKENS)} of {len(TOKENS)} steps" in printed
    assert (tmp_path / "out/demo.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "out/demo.png") in printed
    assert str(tmp_path / "out/report.html") in printed
    assert "<title>Nd, Tf and Tf+Nd on dyck: 3 runs</title>" in (tmp_path / "out/report.html").read_text()
    language = get_language("dyck")
    for name in ("tf", "tf-nd", "nd"):
        best = TrainingRun(tmp_path / "out" / name).result()["best"]
        model = load(tmp_path / "out" / name / "best")
        shares = [f"{closing_bracket_share(model, language, length):.3f}" for length in (16, 40, 100)]
        (row,) = [line for line in printed.splitlines() if line.startswith(f"│ {MODELS[name]} ")]
        found = [cell.strip() for cell in row.split("│")[4:-1]]
        assert found == [f"{best['cross_entropy_difference']:.4f}", *shares]

    # the second time, nothing is trained, and without matplotlib a message says what to install
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
    printed = capsys.readouterr()
    assert f"found no {tmp_path / 'tf.yaml'}" in printed.err
    assert printed.out == ""  # the files are checked before anything is printed
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"stackattn demo: --out: expected a folder, got the file {tmp_path / 'file'}\n"


def test_closing_bracket_share():
    """A model that tracks open brackets is always right; a fixed guess is right whenever that bracket occurs."""
    language = get_language("dyck")
    strings = np.stack(evaluation_set(language, 3, (12, 12), 20).strings)

    class Model(torch.nn.Module):
        def __init__(self, guess):
            super().__init__()
            self.guess = guess

        def forward(self, tokens):
            logits = torch.zeros(*tokens.shape, 5)
            for b, string in enumerate(tokens.tolist()):
                open_brackets = []
                for t, token in enumerate(string):
                    if token in (0, 2):
                        open_brackets.append(token)
                    elif token in (1, 3):
                        open_brackets.pop()
                    logits[b, t, 0] = 9  # an opening bracket is even more likely
                    logits[b, t, self.guess(open_brackets)] = 1
            return logits

    assert closing_bracket_share(Model(lambda opened: opened[-1] + 1 if opened else 1), language, 12, 20, 3) == 1.0
    share = closing_bracket_share(Model(lambda opened: 3), language, 12, 20, 3)
    assert share == pytest.approx((strings == 3).sum() / np.isin(strings, (1, 3)).sum())


def test_demo_needs_brackets(tmp_path, capsys):
    for name in ("tf", "tf-nd", "nd"):
        text = (DEMO_CONFIGS / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: dyck", "name: marked-reversal"))
    assert main(["demo", "--configs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "language.name: expected dyck, whose brackets the demo shows, got marked-reversal" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
