"""Several processes train a model with the same metrics as one process, even if their number changes on resuming."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from fork_server import processes
from runs import tiny
from safetensors.torch import load_file

from stackattn.cli import main
from stackattn.config import from_values, to_values
from stackattn.training import TrainingConfig, TrainingRun, run_experiment
from stackattn.training.cfl import CFLConfig, CFLTask
from stackattn.training.devices import random_state, restore_random_state
from stackattn.training.processes import Processes
from stackattn.training.run_files import RunError

MODELS = {
    "transformer": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2, "dropout": 0.0},
    "lstm": {"kind": "lstm", "hidden_size": 6, "stack": "superposition-3"},
}


def config(model="transformer", batch_size=5, **training):
    made = tiny(language={"batch_size": batch_size}, **training)
    return from_values(CFLConfig, {**to_values(made), "model": MODELS[model]})


def member(rank, count, port, folder, chosen, minutes, signals):
    """Train as one of the processes of torchrun, and write the sizes of its shares of batches, or an error, to a file.

    `signals` maps a rank to the signal that its process sends to itself at its ninth batch.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    given = []
    loss = CFLTask.loss

    def record(self, model, batch):
        given.append(len(batch))
        if len(given) == 9 and rank in signals:
            os.kill(os.getpid(), signals[rank])
        return loss(self, model, batch)

    CFLTask.loss = record
    report = folder.parent / f"{folder.name}.{rank}.json"
    try:
        run_experiment(chosen, folder, resume=True, minutes=minutes)
        report.write_text(json.dumps(given))
    except RunError as error:
        report.write_text(json.dumps(str(error)))


def train_together(folder, chosen, count=2, minutes=None, signals=None):
    """Train in `count` processes, and return the report of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The tests of the benchmarks make the fork server import torch._dynamo. A process forked from such a server hangs
    # on exit if another process of its group has died.
    context = get_context("spawn") if signals else processes()
    made = [
        context.Process(target=member, args=(rank, count, port, folder, chosen, minutes, signals or {}))
        for rank in range(count)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join()
    reports = [folder.parent / f"{folder.name}.{rank}.json" for rank in range(count)]
    return [json.loads(path.read_text()) if path.exists() else None for path in reports]


def curve(folder):
    return [(row["epoch"], row["train_loss"], row["cross_entropy"]) for row in TrainingRun(folder).metrics()]


def close(found, expected):
    assert len(found) == len(expected) > 0
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch_size"), [("transformer", 5), ("lstm", 1)])
def test_two_processes_have_the_loss_curve_of_one_process(model, batch_size, tmp_path):
    chosen = config(model, batch_size)
    given = train_together(tmp_path / "two", chosen)
    # With batches of 1, the share of the second process has weight 0.
    shares = {5: ([3] * 18, [2] * 18), 1: ([1] * 18, [1] * 18)}[batch_size]
    assert tuple(given) == shares
    run_experiment(chosen, tmp_path / "one")
    close(curve(tmp_path / "two"), curve(tmp_path / "one"))
    count = [json.loads((tmp_path / name / "environment.json").read_text())["processes"] for name in ("one", "two")]
    assert count == [1, 2]


@pytest.mark.slow
def test_the_number_of_processes_may_change_between_resumes(tmp_path):
    chosen = config(max_epochs=4)
    run_experiment(chosen, tmp_path / "whole")
    folder = tmp_path / "mixed"
    train_together(folder, chosen, minutes=0)  # one batch
    run_experiment(chosen, folder, resume=True, minutes=0)
    assert TrainingRun(folder).state()["progress"]["examples"] == 10
    train_together(folder, chosen, minutes=0)
    run_experiment(chosen, folder, resume=True)
    close(curve(folder), curve(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_can_be_resumed_after_a_process_died(rank, tmp_path):
    """Rank 0 is terminated, as by torchrun when another process has died; rank 1 is killed."""
    chosen, folder = config(max_epochs=3), tmp_path / "run"
    reports = train_together(folder, chosen, signals={rank: [signal.SIGTERM, signal.SIGKILL][rank]})
    if rank == 0:
        ended = "rank 0 of 2 processes received SIGTERM, probably because another process has died"
        assert reports[0] == f"{ended}; pass --resume to continue from the last checkpoint"
        assert reports[1].startswith("rank 1 of 2 processes lost the connection to the others: ")
    else:
        assert reports[0].startswith("rank 0 of 2 processes lost the connection to the others: ")
        assert reports[0].endswith("; pass --resume to continue from the last checkpoint")
        assert reports[1] is None
    assert len(TrainingRun(folder).metrics()) == 1
    assert not TrainingRun(folder).finished
    train_together(folder, chosen)
    run_experiment(chosen, tmp_path / "whole")
    close(curve(folder), curve(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
def test_torchrun(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    sets = ["language.name=dyck", "language.lengths=[4,8]", "language.train_batches=4", "training.max_epochs=40"]
    command = ["-m", "stackattn", "cfl", "train", "--out", str(folder), "--set", *sets, "training.stop_patience=40"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*launcher, "model.layers='1'"], **pipes, text=True)
    while len(TrainingRun(folder).metrics()) < 3 and process.poll() is None:
        time.sleep(0.01)
    os.kill(second_process(process.pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    (line,) = [line for line in errors.splitlines() if line.startswith("stackattn cfl train: rank 0 of 2 processes ")]
    assert line.endswith("; pass --resume to continue from the last checkpoint")
    assert 3 <= len(TrainingRun(folder).metrics()) < 40
    done = subprocess.run([*launcher, "model.layers='1'", "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("max_epochs after 40 evaluations") == 1  # only rank 0 prints it
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2
    again = subprocess.run([*launcher, "model.layers='1'"], capture_output=True, text=True, check=False)
    assert again.returncode != 0
    # when one rank has failed, torchrun terminates the other, sometimes before that rank prints its message
    assert f"{folder} contains a finished run" in again.stderr
    assert "forcefully" not in again.stderr
    for rank in "01":  # each rank refuses a finished run without waiting for the other
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main([*command[2:], "model.layers='1'"]) == 2
        assert f"{folder} contains a finished run" in capsys.readouterr().err


def second_process(launcher):
    """Return the id of the process with rank 1 among those that the torchrun process `launcher` has started."""
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes():
                return int(pid)
    raise AssertionError("torchrun has no second process")


@pytest.mark.usefixtures("without_onednn")
def test_bfloat16_training_has_float32_parameters(tmp_path):
    chosen = config(precision="bfloat16")
    run_experiment(chosen, tmp_path / "half")
    run_experiment(config(), tmp_path / "full")
    half, full = curve(tmp_path / "half"), curve(tmp_path / "full")
    assert half != full
    assert half[-1] == pytest.approx(full[-1], rel=0.05)
    tensors = load_file(tmp_path / "half/best/model.safetensors")
    assert {x.dtype for x in tensors.values()} == {torch.float32}


def test_invalid_devices_and_precisions():
    with pytest.raises(ValueError, match="device: expected a PyTorch device, such as cpu or cuda, got 'gpu'"):
        Processes("gpu")
    for name in ("cuda:99", "mps:99", *([] if torch.cuda.is_available() else ["cuda"])):
        with pytest.raises(ValueError, match=f"device: '{name}' is not available: PyTorch finds"):
            Processes(name)
    with pytest.raises(ValueError, match="precision: expected one of float32, bfloat16, got 'half'"):
        TrainingConfig(precision="half")


def test_the_random_state_of_a_gpu_is_saved_and_restored(monkeypatch):
    """No GPU is needed: torch.cuda's functions are replaced. A checkpoint can move between CPU and GPU."""
    cpu, gpu, restored = torch.device("cpu"), torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([device.index, 7], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append((state.tolist(), device)))
    on_cpu, on_gpu = random_state(cpu), random_state(gpu)
    expected = torch.rand(3)
    for state, device, calls in (
        (on_gpu, gpu, [([1, 7], gpu)]),
        (on_gpu, cpu, []),
        (on_cpu, gpu, []),
        (on_cpu, cpu, []),
    ):
        restored.clear()
        restore_random_state(state, device)
        assert restored == calls
        assert torch.equal(torch.rand(3), expected)
