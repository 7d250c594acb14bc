"""The paper's sizes and parameter counts, and `stackattn params`, which compares our counts with the paper's."""

import pytest

from stackattn.cli import main
from stackattn.models import LSTMLM, build_model
from stackattn.paper import models as paper
from stackattn.paper.models import LANGUAGES, count_parameters, paper_config, paper_count, paper_models
from stackattn.paper.names import LABELS, SLUGS

MODELS = list(paper_models())


def test_the_paper_has_42_counts():
    assert len(MODELS) == 42
    assert sum(task in LANGUAGES for _, task, _, _ in MODELS) == 30
    assert {table for table, task, _, _ in MODELS if task in LANGUAGES} == {"Table 5"}
    assert {(table, task) for table, task, _, _ in MODELS if task not in LANGUAGES} == {
        ("Table 2", "ptb"),
        *(("Table 3", f"mt-{size}") for size in (160, 240, 360)),
    }
    assert paper_count("mt-240", "Tf+Sup") == 9349920


def test_labels_and_slugs_are_inverses():
    assert [SLUGS[label] for label in LABELS.values()] == list(LABELS)


@pytest.mark.parametrize(("task", "label", "count"), [model[1:] for model in MODELS])
def test_counts(task, label, count):
    for published in (False, True):
        config = paper_config(task, label, published=published)
        if label.startswith("LSTM"):
            assert config.stack_init == ("uniform" if published else "xavier")
        else:
            assert config.push_activation == ("published" if published else "sigmoid")
        assert count_parameters(config) == count


@pytest.mark.parametrize("label", list(SLUGS))
def test_counts_are_those_of_real_models(label):
    config = paper_config("dyck", label)
    model = build_model(config)
    assert isinstance(model, LSTMLM) == label.startswith("LSTM")
    assert sum(x.numel() for x in model.parameters()) == count_parameters(config)
    assert all(x.requires_grad for x in model.parameters())


def test_unknown_names():
    with pytest.raises(ValueError, match=r"task: expected one of marked-reversal, .* got 'chess'"):
        paper_config("chess", "Tf")
    with pytest.raises(ValueError, match=r"label: expected one of LSTM, .* got 'GPT'"):
        paper_config("dyck", "GPT")
    with pytest.raises(ValueError, match=r"label: expected Tf, Tf\+Sup or Tf\+Nd for ptb, got 'LSTM'"):
        paper_config("ptb", "LSTM")


def test_the_command_agrees_with_the_paper(capsys):
    assert main(["params"]) == 0
    printed = capsys.readouterr().out
    assert "42 of 42 counts match the paper." in printed
    assert printed.count("20,419,200") == 2


def test_the_command_fails_if_a_count_differs(capsys, monkeypatch):
    monkeypatch.setitem(paper.TABLE_5["dyck"], "Tf+Nd", 33331)
    assert main(["params"]) == 1
    printed = capsys.readouterr().out
    assert "41 of 42 counts match the paper." in printed
    assert "differs by -1" in printed


def test_the_command_fails_if_a_model_differs(capsys, monkeypatch):
    monkeypatch.setitem(paper.LANGUAGES, "dyck", paper.LanguageSizes(5, 2))
    assert main(["params"]) == 1
    assert "36 of 42 counts match the paper." in capsys.readouterr().out
