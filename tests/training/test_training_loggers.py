"""Loggers record every evaluation once, even after an interruption; missing packages leave no run behind."""

import csv
import sys

import pytest
from runs import Killed, Stopper, stop, tiny

from stackattn.cli import main
from stackattn.cli.arguments import LOGGERS as NAMES
from stackattn.training import RunError, TrainingRun, loop, run_experiment
from stackattn.training.loggers import LOGGERS


def interrupted_run(folder, log, monkeypatch):
    """Train a run that is killed after evaluation 1 and between evaluation 2 and its checkpoint; return its metrics."""
    with pytest.raises(Killed):
        run_experiment(tiny(), folder, log=log, callback=Stopper(1, stop))

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", lambda *arguments: stop())
        with pytest.raises(Killed):
            run_experiment(tiny(), folder, log=log, resume=True)
    run_experiment(tiny(), folder, log=log, resume=True)
    return TrainingRun(folder).metrics()


def test_csv(tmp_path, monkeypatch):
    metrics = interrupted_run(tmp_path, ["csv"], monkeypatch)
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{key: float(x) for key, x in row.items()} for row in rows] == metrics
    assert len(rows) == 3


def test_a_logger_can_be_added_later(tmp_path):
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(2, stop))
    run_experiment(tiny(), tmp_path, log=["csv", "csv"], resume=True)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + 3


@pytest.mark.filterwarnings("ignore")  # tensorboard itself emits warnings
def test_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = interrupted_run(tmp_path, ["tensorboard"], monkeypatch)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("train_loss", "cross_entropy_difference", "learning_rate", "examples"):
        found = events.Scalars(name)
        assert [event.step for event in found] == [1, 2, 3]
        assert [event.value for event in found] == pytest.approx([row[name] for row in metrics])
    assert "evaluation" not in events.Tags()["scalars"]


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # otherwise wandb keeps the settings that it read earlier
    logged, log = [], wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda run, values, step: (logged.append((run.id, step, values)), log(run, values, step))
    )
    metrics = interrupted_run(tmp_path, ["wandb"], monkeypatch)
    identifier = (tmp_path / "wandb/id").read_text()
    assert {run for run, _, _ in logged} == {identifier}
    assert [step for _, step, _ in logged] == [1, 1, 2, 1, 2, 3]  # each session writes a complete record
    assert logged[-1][2] == {key: x for key, x in metrics[-1].items() if key != "evaluation"}
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*/run-{identifier}.wandb"))) >= 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_leaves_no_run_behind(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    command = ["cfl", "train", "--out", str(tmp_path / "run"), "--set", "language.name=dyck", "--log", name]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"stackattn cfl train: --log {name} needs {name}, which is not installed; run pip install 'stackattn[{name}]'\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_logger_that_cannot_be_opened_leaves_no_run_behind(tmp_path, monkeypatch):
    class Broken(LOGGERS["csv"]):
        def __init__(self, folder, config):
            raise RunError("no account")

    monkeypatch.setitem(LOGGERS, "broken", Broken)
    with pytest.raises(RunError, match="no account"):
        run_experiment(tiny(), tmp_path, log=["broken"])
    assert run_experiment(tiny(), tmp_path)["stopped"] == "max_epochs"


def test_names_of_loggers(tmp_path):
    assert tuple(LOGGERS) == NAMES
    with pytest.raises(ValueError, match="log: expected one of csv, tensorboard, wandb, got 'excel'"):
        run_experiment(tiny(), tmp_path / "run", log=["excel"])
    assert not (tmp_path / "run").exists()
