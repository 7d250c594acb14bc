"""The restarts of `stackattn reproduce`: which runs there are, and what each cell draws."""

from pathlib import Path

import pytest

from stackattn.cli import main
from stackattn.paper.experiments import TARGETS

TASKS, MODELS = ["dyck", "hardest-cfl"], ["tf", "lstm"]


def jobs(restarts):
    return dict(TARGETS["figure-2"].jobs(Path("out"), TASKS, MODELS, restarts))


def test_each_cell_draws_its_restarts_independently():
    drawn = [config.training for config in jobs(range(5)).values()]
    assert len(drawn) == 20
    for name in ("learning_rate", "init_seed", "shuffle_seed"):
        assert len({getattr(training, name) for training in drawn}) == 20


def test_a_restart_does_not_depend_on_the_others():
    assert list(jobs([7, 2])) == [
        Path("out", task, model, number) for number in ("07", "02") for task in TASKS for model in MODELS
    ]
    everything = jobs(range(8))
    assert all(everything[folder] == config for folder, config in jobs([7, 2]).items())


def test_the_command_trains_the_chosen_restarts(tmp_path, monkeypatch):
    from stackattn.cli import reproduce

    trained = []
    monkeypatch.setattr(reproduce, "_train", lambda chosen, args: trained.extend(folder for folder, _ in chosen))
    monkeypatch.setattr(reproduce, "print_unfinished", lambda *arguments: None)
    command = ["reproduce", "figure-2", "--tasks", "dyck", "--models", "tf", "--out", str(tmp_path)]
    main([*command, "--restart", "5", "9"])
    assert trained == [tmp_path / "dyck/tf/05", tmp_path / "dyck/tf/09"]


def test_numbers_and_a_count_of_restarts_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "figure-2", "--restarts", "2", "--restart", "1"])
    assert "not allowed with argument" in capsys.readouterr().err
