"""Training runs: files, reproducibility, and resuming with the same results after an interruption at any time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fork_server import processes
from runs import MODELS, Killed, Stopper, lines, outcome, stop, tiny, train_in_process

from stackattn.models import TransformerLM, TransformerLMConfig
from stackattn.training import RunError, TrainingRun, loop, run_experiment
from stackattn.training.checkpoint import load_checkpoint, save_checkpoint


def test_seeds_determine_the_run(tmp_path):
    config = tiny("transformer")
    for name, chosen in {"a": config, "b": config, "c": replace_training(config, shuffle_seed=6)}.items():
        run_experiment(chosen, tmp_path / name)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a") != outcome(tmp_path / "c")


def replace_training(config, **changes):
    return replace(config, training=replace(config.training, **changes))


def test_files_of_a_finished_run(tmp_path):
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


def test_learning_rate_and_early_stopping_follow_the_scores(tmp_path):
    """With a learning rate that is far too high, the scores stop improving after some time."""
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
def test_resuming_after_an_interrupt_at_any_write_gives_the_same_results(model, every, tmp_path, monkeypatch):
    """An exception interrupts the run at rename or flush number 1, 4, 7, ..., alternately after and before the call."""
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
        if not TrainingRun(folder).finished:  # otherwise it was interrupted after its result was written
            run_experiment(config, folder, resume=True)
        assert outcome(folder) == expected, count
    assert attempts > 5


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_resuming_after_random_kills_gives_the_same_results(model, tmp_path):
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
def test_ctrl_c_explains_how_to_resume(tmp_path, capsys):
    from stackattn.cli import main

    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"language": {"name": "dyck", "lengths": [4, 8], "train_batches": 60}}))
    command = ["cfl", "train", str(config), "--set", "model.layers='1'", "--set", "training.max_epochs=12", "--out"]
    program = [str(Path(sys.executable).parent / "stackattn"), *command, str(tmp_path / "run")]

    def accept_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs and their children ignore SIGINT

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(program, **pipes, text=True, preexec_fn=accept_interrupts)
    while lines(tmp_path / "run") < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "stopped; pass --resume to continue from the last checkpoint\n"
    assert "epoch   1  loss" in printed
    assert 2 <= len(TrainingRun(tmp_path / "run").metrics()) < 12
    assert main([*command, str(tmp_path / "run"), "--resume"]) == 0
    assert main([*command, str(tmp_path / "whole")]) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_early_stopping_holds_after_resuming(tmp_path):
    """The run is killed between its last checkpoint and its result."""
    config = tiny(learning_rate=0.5, max_epochs=40, stop_patience=3)
    run_experiment(config, tmp_path / "run")
    expected = outcome(tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    run_experiment(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == expected
    assert expected[1] == "no improvement"
    assert expected[2] < 40


def test_resuming_keeps_a_lowered_learning_rate(tmp_path):
    config = tiny(learning_rate=0.5, max_epochs=8, lr_factor=0.5, stop_patience=100)
    run_experiment(config, tmp_path / "whole")
    lowered = [row["evaluation"] for row in TrainingRun(tmp_path / "whole").metrics() if row["learning_rate"] < 0.5]
    assert 2 <= len(lowered) <= 6  # the rate is lowered in the middle of the run
    for at in (lowered[0] - 1, lowered[0]):  # the last evaluation with the old rate, and the first with the new one
        with pytest.raises(Killed):
            run_experiment(config, tmp_path / str(at), callback=Stopper(at, stop))
        run_experiment(config, tmp_path / str(at), resume=True)
        assert outcome(tmp_path / str(at)) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("model", MODELS)
def test_a_deadline_stops_after_a_batch_and_the_run_can_be_resumed(model, tmp_path):
    config, stops = tiny(model, max_epochs=2), 0
    while (result := run_experiment(config, tmp_path / "run", minutes=0, resume=True))["stopped"] == "deadline":
        stops += 1
        run = TrainingRun(tmp_path / "run")
        # until the first regular evaluation, at the end of epoch 1, the model is evaluated at each deadline
        assert result["best"] == run.best_evaluation()
        assert result["evaluations"] == stops // 6
        assert [row["examples"] for row in run.metrics()] == ([4 * stops] if stops < 6 else [24, 48][: stops // 6])
        assert not run.without_model
        assert json.loads((tmp_path / "run/last/state.json").read_text())["progress"]["examples"] == 4 * stops
    assert stops == 12  # batches
    run_experiment(config, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_checkpoints_between_rare_evaluations(tmp_path, monkeypatch):
    config, batches = tiny(evaluate_every=20, max_epochs=2), []
    run_experiment(config, tmp_path / "whole")
    assert [row["examples"] for row in TrainingRun(tmp_path / "whole").metrics()] == [20, 40, 48]  # and at the end

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
    assert len(batches) == 4 + 12 - 3  # three batches were saved
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("every", [24, 30, 1000])
def test_a_small_data_set_is_evaluated_once_per_epoch(every, tmp_path):
    run_experiment(tiny(evaluate_every=every, max_epochs=2), tmp_path)  # 24 examples per epoch
    assert [row["examples"] for row in TrainingRun(tmp_path).metrics()] == [24, 48]


def test_existing_runs_are_not_overwritten(tmp_path):
    with pytest.raises(Killed):
        run_experiment(tiny(), tmp_path, callback=Stopper(1, stop))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError, match="already contains a run; pass --resume to continue it, or choose another folder"
    ):
        run_experiment(tiny(), tmp_path)
    with pytest.raises(RunError, match=r"another configuration \(training\.clip: 5\.0 in the run, 1\.0 requested\)"):
        run_experiment(tiny(clip=1), tmp_path, resume=True)
    with closing(TrainingRun(tmp_path)) as run, pytest.raises(RunError, match="already contains a run"):
        run.start(tiny(), resume=False)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    run_experiment(tiny(), tmp_path, resume=True)
    for resume in (False, True):
        with pytest.raises(RunError, match="contains a finished run"):
            run_experiment(tiny(), tmp_path, resume=resume)
    with pytest.raises(RunError, match="contains a finished run"):
        run_experiment(tiny(max_epochs=5), tmp_path)


def test_a_run_is_locked(tmp_path):
    def again():
        with pytest.raises(RunError, match="another process is training this run"):
            run_experiment(tiny(), tmp_path, resume=True)

    run_experiment(tiny(), tmp_path, callback=Stopper(2, again))
    assert lines(tmp_path) == 3


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_finishes_before_the_lock_is_taken(resume, tmp_path, monkeypatch):
    take_lock = TrainingRun._take_lock

    def train_first(run):
        monkeypatch.setattr(TrainingRun, "_take_lock", take_lock)
        run_experiment(tiny(), tmp_path / "run")
        take_lock(run)

    monkeypatch.setattr(TrainingRun, "_take_lock", train_first)
    with pytest.raises(RunError, match="contains a finished run"):
        run_experiment(tiny(), tmp_path / "run", resume=resume)
    assert lines(tmp_path / "run") == 3


def test_checkpoints_of_tied_models(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        model = TransformerLM(TransformerLMConfig(input_size=5, output_size=4, layers=1, d_model=8, heads=2, tied=True))
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = make(0)
    model(torch.tensor([[0, 1]])).sum().backward()
    optimizer.step()
    (tmp_path / "last").mkdir()
    save_checkpoint(tmp_path, model, optimizer, {"progress": {"examples": 1}}, [torch.get_rng_state()])
    other, other_optimizer = make(1)
    load_checkpoint(tmp_path, other, other_optimizer, {"tensors": "000000001.safetensors"})
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        for name, value in optimizer.state[a].items():
            assert torch.equal(value, other_optimizer.state[b][name])


def test_test_results_belong_to_one_model(tmp_path):
    """Modification times do not matter: copying or cloning changes them."""
    run = TrainingRun(tmp_path / "run")
    assert run.test() is None
    run_experiment(tiny(), run.folder)
    assert run.test() is None
    test = {"model": run.model_checksum(), "per_length": 1, "lengths": []}
    (run.folder / "test.json").write_text(json.dumps(test))
    os.utime(run.folder / "test.json", (0, 0))
    assert run.test() == test
    (run.folder / "test.json").write_text(json.dumps({**test, "model": "another"}))
    assert run.test() is None
    # Without the model, the test cannot be repeated, so its results are kept.
    (run.folder / "best/model.safetensors").unlink()
    assert run.test() == {**test, "model": "another"}


ALLOCATIONS = """
import resource, sys
import torch
from stackattn.training.environment import keep_freed_memory
kept = "keep" in sys.argv and keep_freed_memory()
for i in range(20):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(20_000_000)  # 80 MB, far above the C library's thresholds
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults of the GNU C library")
def test_freed_memory_is_kept():
    """Page faults are counted in the last round, because the first rounds may need new pages.

    In 100 processes with torch 2.6, up to 6 rounds did. To align a block, the C library searches for a few bytes more,
    so a freed block of the same size may not fit.
    """
    found = {}
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", ALLOCATIONS, mode]
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
        kept, found[mode] = map(int, output.split())
        if mode == "keep" and not kept:
            pytest.skip("needs the GNU C library")
    assert found["keep"] < 100 < found["default"]
