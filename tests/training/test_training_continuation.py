"""Runs that are extended beyond their end, and runs that start from the weights of another run."""

import re
import shutil

import pytest
import torch
from reversal import experiment, make_corpus
from runs import Killed, Stopper, outcome, stop, tiny

import stackattn.training.run as run_module
from stackattn.cli import main
from stackattn.models.saving import load
from stackattn.training import RunError, TrainingRun, run_experiment
from stackattn.training.run import CHANGEABLE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"max_epochs": 1}, {"max_epochs": 4}),
        ({"max_epochs": 40, "stop_patience": 2}, {"max_epochs": 40, "stop_patience": 4}),
    ],
)
def test_an_extended_run_equals_a_longer_one(before, after, tmp_path):
    options = {"learning_rate": 0.5}  # far too high, so that training stops early
    stopped = run_experiment(tiny(**options, **before), tmp_path / "run")["stopped"]
    assert stopped == ("no improvement" if "stop_patience" in before else "max_epochs")
    run_experiment(tiny(**options, **after), tmp_path / "run", resume=True)
    run_experiment(tiny(**options, **after), tmp_path / "longer")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "longer")
    assert TrainingRun(tmp_path / "run").differs(tiny(**options, **after)) is None


def test_a_run_can_be_extended_again_after_a_kill(tmp_path, monkeypatch):
    """The process is killed after result.json is removed and before the new configuration is written."""
    run_experiment(tiny(max_epochs=1), tmp_path / "run")
    write = run_module.write_json
    with monkeypatch.context() as patch:
        patch.setattr(
            run_module, "write_json", lambda path, x: stop() if path.name == "config.json" else write(path, x)
        )
        with pytest.raises(Killed):
            run_experiment(tiny(max_epochs=2), tmp_path / "run", resume=True)
    assert not TrainingRun(tmp_path / "run").finished
    run_experiment(tiny(max_epochs=2), tmp_path / "run", resume=True)
    run_experiment(tiny(max_epochs=2), tmp_path / "longer")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "longer")


def test_only_some_keys_can_change(tmp_path, capsys):
    command = ["cfl", "train", "--out", str(tmp_path / "run")]
    sets = ["language.name=dyck", "language.lengths=[4,6]", "language.train_batches=3", "model.layers=1"]
    assert main([*command, "--set", *sets, "language.validation_batches=1", "training.max_epochs=1"]) == 0
    assert main([*command, "--resume"]) == 2
    assert "contains a finished run; extend it with --resume" in capsys.readouterr().err
    assert main([*command, "--resume", "--set", "training.max_epochs=2", "training.evaluate_every=10"]) == 0
    assert "max_epochs after 4 evaluations" in capsys.readouterr().out  # three in the second epoch
    for change in ("model.d_model=16", "language.seed=1", "training.learning_rate=0.1"):
        assert main([*command, "--resume", "--set", "training.max_epochs=3", change]) == 2
        error = capsys.readouterr().err
        key = change.partition("=")[0]
        assert f"contains a run with another configuration ({key}: " in error
        assert f"change only {', '.join(CHANGEABLE)}" in error
    assert main([*command, "--resume", "--set", "training.epochs=3"]) == 2
    assert "--set: 'training.epochs=3': unknown key 'training.epochs'; did you mean" in capsys.readouterr().err


def test_a_run_starts_from_the_weights_of_another(tmp_path):
    run_experiment(tiny(max_epochs=1), tmp_path / "first")
    model = load(tmp_path / "first/best")
    started = []

    class Callback(Stopper):
        def on_batch(self, epoch, done, total, loss):
            started.append(loss)

    config = tiny(max_epochs=2, learning_rate=1e-9, language={"seed": 1})
    with pytest.raises(Killed):
        run_experiment(config, tmp_path / "second", init_from=tmp_path / "first", callback=Callback(1, stop))
    task, _ = config.make()
    order = torch.Generator().manual_seed(config.training.shuffle_seed * 1_000_003)
    assert started[0] == pytest.approx(task.loss(model, task.epoch(order)[0]).item(), rel=1e-5)
    assert TrainingRun(tmp_path / "second").origin() == {
        "folder": str(tmp_path / "first/best"),
        "model": TrainingRun(tmp_path / "first").model_checksum(),
    }
    run_experiment(config, tmp_path / "second", resume=True)
    run_experiment(config, tmp_path / "whole", init_from=tmp_path / "first/best")
    assert outcome(tmp_path / "second") == outcome(tmp_path / "whole")


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_from_the_same_weights(tmp_path, monkeypatch):
    run_experiment(tiny(max_epochs=1), tmp_path / "first")
    config = tiny(max_epochs=1, language={"seed": 1})
    run_experiment(config, tmp_path / "whole", init_from=tmp_path / "first")
    for name in ("again", "changed"):
        with monkeypatch.context() as patch:
            patch.setattr("stackattn.training.loop.save_checkpoint", lambda *arguments: stop())
            with pytest.raises(Killed):
                run_experiment(config, tmp_path / name, init_from=tmp_path / "first")
    run_experiment(config, tmp_path / "again", resume=True, init_from=tmp_path / "first")
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")
    shutil.copy(tmp_path / "whole/best/model.safetensors", tmp_path / "first/best/model.safetensors")
    for init_from in (None, tmp_path / "first"):
        with pytest.raises(RunError, match="the model has changed since the run started from it"):
            run_experiment(config, tmp_path / "changed", resume=True, init_from=init_from)
    run_experiment(tiny(max_epochs=1), tmp_path / "third")
    for folder, seed in (("changed", 1), ("third", 0)):
        chosen = tiny(max_epochs=2, language={"seed": seed})
        with pytest.raises(RunError, match=r"the run started from .*, not from .*again/best; resume it without --init"):
            run_experiment(chosen, tmp_path / folder, resume=True, init_from=tmp_path / "again")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"hidden_size": 8}, "(hidden_size 8), found hidden_size 6"),
        ({"stack": None}, "(stack None), found stack 'superposition-3'"),
        ({"kind": "transformer"}, "(TransformerLM), found LSTMLM"),
        ({"init_range": 0.5}, None),
    ],
)
def test_the_architecture_must_match(model, message, tmp_path, monkeypatch):
    import runs

    run_experiment(tiny(max_epochs=1), tmp_path / "first")
    values = {key: x for key, x in runs.MODELS["lstm"].items() if "kind" not in model or model["kind"] == "lstm"}
    monkeypatch.setitem(runs.MODELS, "lstm", {**values, **model})
    if message is None:
        run_experiment(tiny(max_epochs=1), tmp_path / "second", init_from=tmp_path / "first")
        return
    with pytest.raises(RunError, match=re.escape(f"with the architecture of the configuration {message}")):
        run_experiment(tiny(), tmp_path / "second", init_from=tmp_path / "first")
    assert not (tmp_path / "second").exists()


def test_the_vocabulary_must_match(tmp_path):
    (tmp_path / "words").mkdir()
    corpus = make_corpus(tmp_path / "words")
    run_experiment(experiment(corpus, max_epochs=1), tmp_path / "first", minutes=0)
    names = {path.name for path in (tmp_path / "first/best").iterdir()} - {"config.json", "model.safetensors"}
    assert names
    path = tmp_path / "first/best" / min(names)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(RunError, match="expected a model with the vocabulary of the data"):
        run_experiment(experiment(corpus, max_epochs=1), tmp_path / "second", init_from=tmp_path / "first")


def test_the_origin_must_exist(tmp_path, capsys):
    command = ["cfl", "train", "--out", str(tmp_path / "run"), "--set", "language.name=dyck", "--init-from"]
    assert main([*command, str(tmp_path / "nowhere")]) == 2
    assert (
        "--init-from: expected the folder of a run or of a saved model, found no model.safetensors in "
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
