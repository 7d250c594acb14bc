"""Runs: killed at any instant they go on to the same numbers; what goes wrong is said, and spoils nothing."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import MODELS, Killed, Stopper, outcome, processes, stop, tiny, train_in_process

from stackattn.models import TransformerLM, TransformerLMConfig
from stackattn.training import ConfigError, RunError, TrainingRun, loop, run_experiment
from stackattn.training.cfl import CFLTask


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(tmp_path):
    config = tiny("transformer")
    for name, chosen in {"a": config, "b": config, "c": replace_training(config, shuffle_seed=6)}.items():
        run_experiment(chosen, tmp_path / name)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a") != outcome(tmp_path / "c")


def replace_training(config, **changes):
    return replace(config, training=replace(config.training, **changes))


def test_what_a_run_leaves_behind(tmp_path):
    result = run_experiment(tiny(), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "result.json",
        "best",
        "last",
        "lock",
    }
    metrics = TrainingRun(tmp_path / "run").metrics()
    assert [row["epoch"] for row in metrics] == [1, 2, 3]
    assert [row["examples"] for row in metrics] == [24, 48, 72]
    assert result["best"] == min(metrics, key=lambda row: row["score"])
    assert result["stopped"] == "max_epochs"
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == 1
    assert len(list((tmp_path / "run/last").iterdir())) == 2


def test_learning_rate_and_stopping_follow_the_scores(tmp_path):
    """With a learning rate that is far too high nothing gets better after some time."""
    config = tiny(learning_rate=0.5, max_epochs=40, lr_patience=1, lr_factor=0.5, stop_patience=4)
    result = run_experiment(config, tmp_path / "run")
    metrics = TrainingRun(tmp_path / "run").metrics()
    scores = [row["score"] for row in metrics]
    rate = 0.5
    for i, row in enumerate(metrics):
        assert row["learning_rate"] == rate
        rate *= 0.5 if i and row["score"] >= min(scores[:i]) else 1
    assert result["stopped"] == "no improvement"
    best = scores.index(min(scores))
    assert result["best"]["evaluation"] == best + 1
    assert len(metrics) == best + 1 + 4 < 40


@pytest.mark.parametrize(
    ("model", "every"), [("lstm", None), *(pytest.param(model, 10, marks=pytest.mark.slow) for model in MODELS)]
)
def test_stopped_at_every_write_it_goes_on_to_the_same_numbers(model, every, tmp_path, monkeypatch):
    """Not killed but interrupted: at each rename and each flush to the disk in turn, before and after it."""
    config = tiny(model, max_epochs=2, evaluate_every=every)
    run_experiment(config, tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    real = {name: getattr(os, name) for name in ("replace", "fsync")}
    attempts = 0
    for count in range(1, 200, 3):
        left = count

        def stopping(name, *arguments, after=bool(count % 2)):
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            real[name](*arguments)
            if left == 0:
                raise Killed

        for name in real:
            monkeypatch.setattr(os, name, lambda *arguments, name=name: stopping(name, *arguments))
        folder = tmp_path / str(count)
        try:
            run_experiment(config, folder)
        except Killed:
            attempts += 1
        else:
            break
        finally:
            monkeypatch.undo()
        if not TrainingRun(folder).finished:  # else it was stopped right behind the last step
            run_experiment(config, folder, resume=True)
        assert outcome(folder) == expected, count
    assert attempts > 5


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_killed_at_random_moments_it_goes_on_to_the_same_numbers(model, tmp_path):
    config = tiny(model, max_epochs=6, evaluate_every=8, stop_patience=100)
    run_experiment(config, tmp_path / "whole")
    folder, generator, kills = tmp_path / "killed", random.Random(1), 0
    while not TrainingRun(folder).finished:
        process = processes().Process(target=train_in_process, args=(config, folder))
        process.start()
        before, until = lines(folder), generator.randint(0, 6)
        while process.is_alive() and lines(folder) < before + until and kills < 4:
            time.sleep(0.001)
        if kills < 4:
            time.sleep(generator.uniform(0, 0.05))
            process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL)
    assert kills >= 3
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert not list(folder.rglob("*.part*"))


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(tmp_path, capsys):
    from stackattn.cli import main

    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"language": {"name": "dyck", "lengths": [4, 8], "train_batches": 60}}))
    command = ["cfl", "train", str(config), "--set", "model.layers='1'", "--set", "training.max_epochs=20", "--out"]
    program = [str(Path(sys.executable).parent / "stackattn"), *command, str(tmp_path / "run")]

    def listen() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it, and so do their children

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(program, **pipes, text=True, preexec_fn=listen)
    while lines(tmp_path / "run") < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "stopped; pass --resume to continue from the last checkpoint\n"
    assert "epoch   1  loss" in printed
    assert 2 <= len(TrainingRun(tmp_path / "run").metrics()) < 20
    assert main([*command, str(tmp_path / "run"), "--resume"]) == 0
    assert main([*command, str(tmp_path / "whole")]) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_run_that_had_stopped_by_itself_does_not_go_on(tmp_path):
    """Killed between the last checkpoint and the result."""
    config = tiny(learning_rate=0.5, max_epochs=40, stop_patience=3)
    run_experiment(config, tmp_path / "run")
    expected = outcome(tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    run_experiment(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == expected
    assert expected[1] == "no improvement"
    assert expected[2] < 40


def test_a_lowered_learning_rate_stays_low(tmp_path):
    config = tiny(learning_rate=0.5, max_epochs=8, lr_factor=0.5, stop_patience=100)
    run_experiment(config, tmp_path / "whole")
    lowered = [row["evaluation"] for row in TrainingRun(tmp_path / "whole").metrics() if row["learning_rate"] < 0.5]
    assert 2 <= len(lowered) <= 6  # it happens in the middle of the run
    for at in (lowered[0] - 1, lowered[0]):  # the last evaluation with the old rate, and the first with the new one
        with pytest.raises(Killed):
            run_experiment(config, tmp_path / str(at), callback=Stopper(at, stop))
        run_experiment(config, tmp_path / str(at), resume=True)
        assert outcome(tmp_path / str(at)) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("model", MODELS)
def test_a_deadline_ends_it_after_a_batch_and_it_can_go_on(model, tmp_path):
    config, stops = tiny(model, max_epochs=2), 0
    while run_experiment(config, tmp_path / "run", minutes=0, resume=True)["stopped"] == "deadline":
        stops += 1
        assert json.loads((tmp_path / "run/last/state.json").read_text())["progress"]["examples"] == 4 * stops
    assert stops == 12  # batches
    run_experiment(config, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_where_evaluations_are_rare_there_are_checkpoints_between_them(tmp_path, monkeypatch):
    config, batches = tiny(evaluate_every=30, max_epochs=2), []
    run_experiment(config, tmp_path / "whole")
    assert [row["examples"] for row in TrainingRun(tmp_path / "whole").metrics()] == [32, 48]  # and at the end

    class Stop:
        def on_batch(self, epoch, done, total, loss):
            batches.append(loss)
            if len(batches) == 4:
                raise Killed

        def on_evaluation(self, values, best):
            pass

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(Killed):
        run_experiment(config, tmp_path / "run", callback=Stop())
    run_experiment(config, tmp_path / "run", resume=True, callback=Stop())
    assert len(batches) == 4 + 12 - 3  # three were saved
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_refuses_to_overwrite(tmp_path):
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(1, stop))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError, match="already contains a run; pass --resume to continue it, or choose another folder"
    ):
        run_experiment(tiny(), tmp_path)
    with pytest.raises(RunError, match=r"another configuration \(training\.clip: 5\.0, not 1\.0\)"):
        run_experiment(tiny(clip=1), tmp_path, resume=True)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    run_experiment(tiny(), tmp_path, resume=True)
    for resume in (False, True):
        with pytest.raises(RunError, match="this run is finished"):
            run_experiment(tiny(), tmp_path, resume=resume)


def test_two_processes_do_not_share_a_run(tmp_path):
    def again():
        with pytest.raises(RunError, match="another process is working on this run"):
            run_experiment(tiny(), tmp_path, resume=True)

    run_experiment(tiny(), tmp_path, callback=Stopper(2, again))
    assert lines(tmp_path) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"name": "dick"}, "language: .*dyck"), ({"lengths": [3, 3]}, "language: .*no strings of lengths 3")],
)
def test_what_cannot_be_built_leaves_no_folder(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run_experiment(tiny(language=changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nan_loss(tmp_path, monkeypatch):
    real, calls = CFLTask.loss, 0

    def loss(self, model, batch):
        nonlocal calls
        calls += 1
        return real(self, model, batch) * (float("nan") if calls == 9 else 1)

    monkeypatch.setattr(CFLTask, "loss", loss)
    message = r"the loss is nan at epoch 2, batch 3; .*last has the checkpoint of evaluation 1.*lower learning rate"
    with pytest.raises(RunError, match=message):
        run_experiment(tiny(), tmp_path / "run")
    monkeypatch.undo()
    run_experiment(tiny(), tmp_path / "run", resume=True)
    run_experiment(tiny(), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_validation_score_that_is_not_finite_ends_the_run(tmp_path, monkeypatch):
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
    with pytest.raises(RunError, match=rf"{path}.*; the checkpoint cannot be read: remove {tmp_path} to start again"):
        run_experiment(tiny(), tmp_path, resume=True)
    assert lines(tmp_path) == 2


@pytest.mark.parametrize("evaluations", [1, 2])
def test_results_without_a_checkpoint_are_not_overwritten(evaluations, tmp_path):
    """One evaluation is what a run has that was killed before its first checkpoint: unless somebody has tested it."""
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(evaluations, stop))
    shutil.rmtree(tmp_path / "last")
    if evaluations == 1:
        (tmp_path / "test.json").write_text("{}")
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match=r"its checkpoint \(last/\) was not kept, so it cannot be resumed"):
        run_experiment(tiny(), tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    if evaluations == 1:
        (tmp_path / "test.json").unlink()
        run_experiment(tiny(), tmp_path, resume=True)
        assert lines(tmp_path) == 3


def test_checkpoints_that_do_not_belong(tmp_path):
    _, state = unfinished(tmp_path)
    whole = state.read_text()
    state.write_text("{}")
    with pytest.raises(RunError, match=r"state\.json: missing key 'plateau'; the checkpoint cannot be read"):
        run_experiment(tiny(), tmp_path, resume=True)
    state.write_text(whole)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"expected 2 complete lines in metrics\.jsonl, which has 0"):
        run_experiment(tiny(), tmp_path, resume=True)


def test_a_line_cut_short_is_not_read(tmp_path):
    unfinished(tmp_path)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"evaluation": 3, "sc')
    assert len(TrainingRun(tmp_path).metrics()) == 2
    run_experiment(tiny(), tmp_path, resume=True)
    assert [row["evaluation"] for row in TrainingRun(tmp_path).metrics()] == [1, 2, 3]


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/run: cannot write: Not a directory"):
        run_experiment(tiny(), tmp_path / "file/run")


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_full_disk(step, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        RunError,
        match=r"run.*: cannot write: No space left on device; files written before are complete, --resume continues",
    ):
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


def test_a_disk_that_really_refuses_to_take_more(tmp_path):
    """The system refuses to write checkpoints from the second one on."""
    process = processes().Process(target=train_with_small_files, args=(tmp_path / "run",))
    process.start()
    process.join()
    assert "cannot write: " in (tmp_path / "run/message").read_text()
    assert "File too large" in (tmp_path / "run/message").read_text()
    assert not list((tmp_path / "run").rglob(".*.partial"))
    run_experiment(tiny(), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == 3


def test_tied_models_have_checkpoints_too(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        model = TransformerLM(TransformerLMConfig(input_size=5, output_size=4, layers=1, d_model=8, heads=2, tied=True))
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = make(0)
    model(torch.tensor([[0, 1]])).sum().backward()
    optimizer.step()
    (tmp_path / "last").mkdir()
    TrainingRun(tmp_path).save_checkpoint(model, optimizer, {"progress": {"examples": 1}}, [torch.get_rng_state()])
    other, other_optimizer = make(1)
    TrainingRun(tmp_path).load_checkpoint(other, other_optimizer, {"tensors": "000000001.safetensors"})
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        for name, value in optimizer.state[a].items():
            assert torch.equal(value, other_optimizer.state[b][name])


def test_tensorboard_on_request(tmp_path, monkeypatch):
    written = {}

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            self.folder = Path(folder)
            written["purged from"] = purge_step

        def add_scalar(self, name, value, step):
            written[name, step] = value

        def flush(self):
            assert self.folder == tmp_path / "tensorboard"

        def close(self):
            written["closed"] = True

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(2, stop), tensorboard=True)
    assert written["purged from"] == 1
    run_experiment(tiny(), tmp_path, resume=True, tensorboard=True)
    assert written["purged from"] == 3
    for row in TrainingRun(tmp_path).metrics():
        for name in ("train_loss", "cross_entropy_difference", "learning_rate"):
            assert written[name, row["evaluation"]] == row[name]


def test_tensorboard_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=r"pip install 'stackattn\[tensorboard\]'"):
        run_experiment(tiny(), tmp_path / "run", tensorboard=True)
    run_experiment(tiny(), tmp_path / "other")


def test_a_test_counts_for_its_own_model_only(tmp_path):
    """Whatever the times of the files, which a copy or a clone sets at will."""
    run = TrainingRun(tmp_path / "run")
    assert run.test() is None
    run_experiment(tiny(), run.folder)
    assert run.test() is None
    test = {"model": run.model_checksum(), "lengths": []}
    (run.folder / "test.json").write_text(json.dumps(test))
    os.utime(run.folder / "test.json", (0, 0))
    assert run.test() == test
    (run.folder / "test.json").write_text(json.dumps({**test, "model": "another"}))
    assert run.test() is None
    (run.folder / "best/model.safetensors").unlink()  # nothing can be measured again: it is kept
    assert run.test() == {**test, "model": "another"}
