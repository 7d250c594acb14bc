"""The paper's sizes and parameter counts, and the command that compares them."""

import pytest

from stackattn.cli import main
from stackattn.models import LSTMLM
from stackattn.paper import models as paper
from stackattn.paper.models import ARCHITECTURES, COUNTS, LANGUAGES, build, count_parameters, paper_config

MODELS = [
    (task, name, count)
    for task, counts in COUNTS.items()
    for name, count in zip(ARCHITECTURES, counts, strict=True)
    if count is not None
]


def test_the_paper_has_42_counts():
    assert len(MODELS) == 42
    assert sum(task in LANGUAGES for task, _, _ in MODELS) == 30


@pytest.mark.parametrize(("task", "architecture", "count"), MODELS)
def test_counts(task, architecture, count):
    for published in (False, True):
        config = paper_config(task, architecture, published=published)
        assert config.published == published
        assert count_parameters(config) == count


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_counts_are_those_of_real_models(architecture):
    config = paper_config("dyck", architecture)
    model = build(config)
    assert isinstance(model, LSTMLM) == architecture.startswith("LSTM")
    assert sum(x.numel() for x in model.parameters()) == count_parameters(config)
    assert all(x.requires_grad for x in model.parameters())


def test_unknown_names():
    with pytest.raises(ValueError, match=r"task: expected one of marked-reversal, .* got 'chess'"):
        paper_config("chess", "Tf")
    with pytest.raises(ValueError, match=r"architecture: expected one of LSTM, .* got 'GPT'"):
        paper_config("dyck", "GPT")
    with pytest.raises(ValueError, match="architecture: the paper has no LSTM for ptb, got 'LSTM'"):
        paper_config("ptb", "LSTM")


def test_the_command_agrees_with_the_paper(capsys):
    assert main(["params"]) == 0
    printed = capsys.readouterr().out
    assert "42 of 42 are equal." in printed
    assert printed.count("20,419,200") == 2


def test_the_command_fails_if_a_count_differs(capsys, monkeypatch):
    monkeypatch.setitem(paper.COUNTS, "dyck", (42505, 41868, 31459, 43109, 41029, 33331))
    assert main(["params"]) == 1
    printed = capsys.readouterr().out
    assert "41 of 42 are equal." in printed
    assert "differs by -1" in printed


def test_the_command_fails_if_a_model_differs(capsys, monkeypatch):
    monkeypatch.setitem(paper.LANGUAGES, "dyck", paper.Language(5, 2))
    assert main(["params"]) == 1
    assert "36 of 42 are equal." in capsys.readouterr().out
