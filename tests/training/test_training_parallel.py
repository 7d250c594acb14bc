"""Several processes train one model together and come to the numbers of one; what one began, others go on with."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch
from runs import processes, tiny
from safetensors.torch import load_file

from stackattn.training import Run, TrainingConfig, run_experiment
from stackattn.training.cfl import CFLConfig, CFLTask
from stackattn.training.config import from_values, to_values
from stackattn.training.parallel import Processes
from stackattn.training.run import RunError

MODELS = {
    "transformer": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2, "dropout": 0.0},
    "lstm": {"kind": "lstm", "hidden_size": 6, "stack": "superposition-3"},
}


def config(model="transformer", batch_size=5, **training):
    made = tiny(language={"batch_size": batch_size}, **training)
    return from_values(CFLConfig, {**to_values(made), "model": MODELS[model]})


def member(rank, count, port, folder, chosen, minutes, dies_at):
    """One of the processes, as torchrun would start it. Notes how many strings it was given."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    given = []
    loss = CFLTask.loss

    def noting(self, model, batch):
        given.append(len(batch))
        if len(given) == dies_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(self, model, batch)

    CFLTask.loss = noting
    report = folder.parent / f"{folder.name}.{rank}.json"
    try:
        run_experiment(chosen, folder, resume=True, minutes=minutes)
        report.write_text(json.dumps(given))
    except RunError as error:
        report.write_text(json.dumps(str(error)))


def train_together(folder, chosen, count=2, minutes=None, dies_at=None):
    """What each process reported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = [
        processes().Process(target=member, args=(rank, count, port, folder, chosen, minutes, dies_at))
        for rank in range(count)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join()
    reports = [folder.parent / f"{folder.name}.{rank}.json" for rank in range(count)]
    return [json.loads(path.read_text()) if path.exists() else None for path in reports]


def curve(folder):
    return [(row["epoch"], row["train_loss"], row["cross_entropy"]) for row in Run(folder).metrics()]


def close(found, expected):
    assert len(found) == len(expected) > 0
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch_size"), [("transformer", 5), ("lstm", 1)])
def test_two_processes_have_the_loss_curve_of_one(model, batch_size, tmp_path):
    chosen = config(model, batch_size)
    given = train_together(tmp_path / "two", chosen)
    shares = {5: ([3] * 18, [2] * 18), 1: ([1] * 18, [1] * 18)}[batch_size]  # the second one of 1 counts for nothing
    assert tuple(given) == shares
    run_experiment(chosen, tmp_path / "one")
    close(curve(tmp_path / "two"), curve(tmp_path / "one"))
    count = [json.loads((tmp_path / name / "environment.json").read_text())["processes"] for name in ("one", "two")]
    assert count == [1, 2]


@pytest.mark.slow
def test_checkpoints_of_one_go_on_in_two_and_back(tmp_path):
    chosen = config(max_epochs=4)
    run_experiment(chosen, tmp_path / "whole")
    folder = tmp_path / "mixed"
    train_together(folder, chosen, minutes=0)  # one batch
    run_experiment(chosen, folder, resume=True, minutes=0)
    assert Run(folder).state()["progress"]["examples"] == 10
    train_together(folder, chosen, minutes=0)
    run_experiment(chosen, folder, resume=True)
    close(curve(folder), curve(tmp_path / "whole"))


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_and_it_goes_on(tmp_path):
    chosen, folder = config(max_epochs=3), tmp_path / "run"
    told, nothing = train_together(folder, chosen, dies_at=9)
    assert nothing is None
    assert told.startswith("process 0 of 2 lost the others: ")
    assert told.endswith("; --resume goes on from the last checkpoint")
    assert len(Run(folder).metrics()) == 1
    assert not Run(folder).finished
    train_together(folder, chosen)
    run_experiment(chosen, tmp_path / "whole")
    close(curve(folder), curve(tmp_path / "whole"))


@pytest.mark.slow
def test_torchrun_and_the_command(tmp_path):
    sets = ["language.name=dyck", "language.lengths=[4,8]", "language.train_batches=4", "training.max_epochs=1"]
    command = ["-m", "stackattn", "cfl", "train", "--out", str(tmp_path / "run"), "--set", *sets, "model.layers='1'"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("max_epochs after 1 evaluations") == 1  # only the first one tells
    assert json.loads((tmp_path / "run/environment.json").read_text())["processes"] == 2


@pytest.mark.usefixtures("without_onednn")
def test_bfloat16_trains_and_keeps_float32_parameters(tmp_path):
    chosen = config(precision="bfloat16")
    run_experiment(chosen, tmp_path / "half")
    run_experiment(config(), tmp_path / "full")
    half, full = curve(tmp_path / "half"), curve(tmp_path / "full")
    assert half != full
    assert half[-1] == pytest.approx(full[-1], rel=0.05)
    tensors = load_file(tmp_path / "half/best/model.safetensors")
    assert {x.dtype for x in tensors.values()} == {torch.float32}


def test_bad_devices_and_precisions_are_named():
    with pytest.raises(ValueError, match="device: expected a device of torch, such as cpu or cuda, got 'gpu'"):
        Processes("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device: torch finds no GPU here, got 'cuda'"):
            Processes("cuda")
    with pytest.raises(ValueError, match="precision: expected one of float32, bfloat16, got 'half'"):
        TrainingConfig(precision="half")
