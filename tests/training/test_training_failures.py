"""Failing runs: invalid configurations, nan, damaged checkpoints and full disks neither lose nor overwrite results."""

import errno
import os
import resource
import shutil

import pytest
import torch
from fork_server import processes
from runs import Killed, Stopper, lines, outcome, stop, tiny

from stackattn.ops import immediate
from stackattn.training import ConfigError, RunError, loop, run_experiment
from stackattn.training.cfl import CFLTask


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "dick"}, r"language\.name: .*dyck"),
        ({"lengths": [3, 3]}, r"language\.lengths: .*no strings of length 3"),
    ],
)
def test_an_invalid_configuration_creates_no_folder(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run_experiment(tiny(language=changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "seconds", "message"),
    [
        (9, 300, r"epoch 2, batch 3; .*last contains the last checkpoint"),
        (3, 300, r"epoch 1, batch 3; .*there is no checkpoint yet"),
        (3, 0, r"epoch 1, batch 3; .*last contains the last checkpoint"),
    ],
)
def test_nan_loss(call, seconds, message, tmp_path, monkeypatch):
    real, calls = CFLTask.loss, 0

    def loss(self, model, batch):
        nonlocal calls
        calls += 1
        return real(self, model, batch) * (float("nan") if calls == call else 1)

    monkeypatch.setattr(CFLTask, "loss", loss)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    with pytest.raises(RunError, match=f"expected a finite loss, got nan at {message}") as error:
        run_experiment(tiny(), tmp_path / "run")
    assert "a lower training.learning_rate" in str(error.value)
    monkeypatch.undo()
    run_experiment(tiny(), tmp_path / "run", resume=True)
    run_experiment(tiny(), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_nan_loss_on_a_gpu_is_computed_again_with_immediate_checks(tmp_path, monkeypatch):
    real, repeated = CFLTask.loss, []

    def loss(self, model, batch):
        repeated.append(immediate._requests > 0)
        nan = len(repeated) == 3 and not repeated[-1]
        return real(self, model, batch) * (float("nan") if nan else 1)

    run_experiment(tiny(), tmp_path / "expected")
    monkeypatch.setattr(CFLTask, "loss", loss)
    monkeypatch.setattr(loop, "reads_values", lambda device: immediate._requests > 0)
    run_experiment(tiny(), tmp_path / "run")
    assert repeated.index(True) == 3
    assert sum(repeated) == 1
    assert outcome(tmp_path / "run") == outcome(tmp_path / "expected")


def test_a_nonfinite_validation_score_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        CFLTask, "evaluate", lambda *_: {"score": float("nan"), "cross_entropy_difference": float("nan")}
    )
    result = run_experiment(tiny(), tmp_path)
    assert result["stopped"] == "the validation score is not finite"
    assert (result["evaluations"], result["best"]) == (1, None)


def unfinished(folder):
    with pytest.raises(Killed):
        run_experiment(tiny(), folder, callback=Stopper(2, stop))
    (tensors,) = (folder / "last").glob("*.safetensors")
    return tensors, folder / "last/state.json"


@pytest.mark.parametrize("keep", [0, 5, 0.5])
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_checkpoints(which, keep, tmp_path):
    path = unfinished(tmp_path)[which]
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(RunError, match=rf"{path}.*; the run cannot be resumed: restore the file from a copy"):
        run_experiment(tiny(), tmp_path, resume=True)
    assert lines(tmp_path) == 2


@pytest.mark.parametrize("evaluations", [1, 2])
def test_results_without_a_checkpoint_are_not_overwritten(evaluations, tmp_path):
    """A run with one evaluation may have been killed before its first checkpoint.

    Such a run may start again, unless it was tested.
    """
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(evaluations, stop))
    shutil.rmtree(tmp_path / "last")
    if evaluations == 1:
        (tmp_path / "test.json").write_text("{}")
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match=r"the run has no checkpoint \(last/\), so it cannot be resumed"):
        run_experiment(tiny(), tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    if evaluations == 1:
        (tmp_path / "test.json").unlink()
        run_experiment(tiny(), tmp_path, resume=True)
        assert lines(tmp_path) == 3


def test_inconsistent_checkpoints(tmp_path):
    _, state = unfinished(tmp_path)
    whole = state.read_text()
    state.write_text("{}")
    with pytest.raises(RunError, match=r"state\.json: missing key 'plateau'; the run cannot be resumed"):
        run_experiment(tiny(), tmp_path, resume=True)
    state.write_text(whole)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"expected 2 or more complete lines in metrics\.jsonl, found 0"):
        run_experiment(tiny(), tmp_path, resume=True)


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/run: cannot write: Not a directory"):
        run_experiment(tiny(), tmp_path / "file/run")


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_full_disk(step, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    advice = "free disk space or make the folder writable, then pass --resume"
    with pytest.raises(RunError, match=rf"run.*: cannot write: No space left on device; {advice}"):
        run_experiment(tiny(), tmp_path / "run", callback=Stopper(2, lambda: monkeypatch.setattr(os, step, full)))
    monkeypatch.undo()
    run_experiment(tiny(), tmp_path / "run", resume=True)
    run_experiment(tiny(), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def train_with_small_files(folder):
    torch.set_num_threads(1)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # noqa: E731
    try:
        run_experiment(tiny(), folder, callback=Stopper(1, limit))
    except RunError as error:
        (folder / "message").write_text(str(error))


def test_a_file_size_limit(tmp_path):
    """After the first checkpoint, the operating system refuses to write files of more than 2,000 bytes."""
    process = processes().Process(target=train_with_small_files, args=(tmp_path / "run",))
    process.start()
    process.join()
    assert "cannot write: " in (tmp_path / "run/message").read_text()
    assert "File too large" in (tmp_path / "run/message").read_text()
    assert not list((tmp_path / "run").rglob(".*.partial"))
    run_experiment(tiny(), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == 3
