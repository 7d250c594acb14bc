"""`sweep` and `reproduce` with `--cluster local`: the same results as local processes, even after an interrupt."""

import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from stackattn.cli import main
from stackattn.training import TrainingRun
from stackattn.training import cluster as cluster_module

pytest.importorskip("ray")

TINY = {
    "language": {"name": "marked-reversal", "lengths": [5, 9], "train_batches": 40, "validation_batches": 2},
    "model": {"layers": "1", "d_model": 8, "heads": 2},
    "training": {"max_epochs": 40, "stop_patience": 40},
}


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # otherwise other processes on the machine slow the workers down


def metrics_of_runs(out):
    """Return the metrics of all runs, without times and memory."""
    clock = ("seconds", "train_seconds", "cpu_seconds", "memory")
    runs = {path.parent.relative_to(out): TrainingRun(path.parent) for path in Path(out).rglob("result.json")}
    return {
        name: [{key: value for key, value in row.items() if key not in clock} for row in run.metrics()]
        for name, run in runs.items()
    }


def check_that_no_cluster_starts(command, monkeypatch):
    """Check that the command starts no cluster, because all runs are finished."""
    with monkeypatch.context() as patched:
        patched.setattr(cluster_module, "_connect", lambda address: pytest.fail("a cluster was started"))
        assert main(command) == 0


@pytest.mark.slow
def test_sweep_resumes_after_an_interrupt(tmp_path, capsys, monkeypatch):
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(TINY))
    sweep = ["cfl", "sweep", str(config), "--restarts", "2", "--out"]
    out = tmp_path / "cluster"
    command = [*sweep, str(out), "--cluster", "local"]

    def accept_interrupts() -> None:
        os.setpgid(0, 0)  # like a terminal, which interrupts the whole process group
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore SIGINT

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-m", "stackattn", *command], **pipes, text=True, preexec_fn=accept_interrupts
    )
    printed = iter(process.stdout.readline, "")
    assert any(line.startswith("run 00  epoch   2  loss") for line in printed)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    # Ray sometimes logs that it could not report an interrupted task: "[2026-11-18 18:45:28,934 E 14524 14822] ..."
    own = [line for line in errors.splitlines() if not re.match(r"\[[-0-9]+ [:,0-9]+ E ", line)]
    assert own == ["stopped; run the same command again to continue"]
    before = TrainingRun(out / "00").metrics()[:2]
    assert not TrainingRun(out / "00").finished
    assert main(command) == 0
    assert TrainingRun(out / "00").metrics()[:2] == before  # including their times
    assert main([*sweep, str(tmp_path / "processes"), "--processes", "2"]) == 0
    assert metrics_of_runs(out) == metrics_of_runs(tmp_path / "processes")
    assert len(metrics_of_runs(out)) == 2
    capsys.readouterr()
    check_that_no_cluster_starts(command, monkeypatch)
    assert "the best run is in" in capsys.readouterr().out


@pytest.mark.slow
def test_reproduce(tmp_path, capsys, monkeypatch):
    configs = tmp_path / "configs/marked-reversal"
    configs.mkdir(parents=True)
    (configs / "tf.yaml").write_text(json.dumps(TINY))
    command = ["reproduce", "figure-2", "--tasks", "marked-reversal", "--models", "tf", "--restarts", "2"]
    command += ["--configs", str(tmp_path / "configs"), "--set", "training.max_epochs=2", "--out"]
    on_cluster = [*command, str(tmp_path / "cluster"), "--cluster", "local", "--memory", "0.5"]
    assert main(on_cluster) == 0
    assert f"{tmp_path}/cluster/marked-reversal/tf/00: reached max_epochs, best difference " in capsys.readouterr().out
    check_that_no_cluster_starts(on_cluster, monkeypatch)
    assert "2 of 2 runs are finished" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "processes")]) == 0
    assert metrics_of_runs(tmp_path / "cluster") == metrics_of_runs(tmp_path / "processes")
    assert len(metrics_of_runs(tmp_path / "cluster")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "127.0.0.1:9"], "cluster 127.0.0.1:9: cannot connect: "),
        (["--cluster", "local", "--processes", "2"], "--processes: cannot be combined with --cluster"),
        (["--cluster", "local", "--memory", "0"], "memory: expected a positive number of GB, got 0"),
        (["--memory", "1"], "--memory: only used on a cluster"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, capsys):
    sets = ["--set", "language.name=dyck", "model.layers='1'"]
    assert main(["cfl", "sweep", "--out", str(tmp_path / "runs"), *arguments, *sets]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"stackattn cfl sweep: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_wrong_token_gives_an_error_of_one_line(tmp_path, capfd, monkeypatch):
    """Ray prints the reason repeatedly on standard error, from C++, and then raises an error that omits it."""
    import ray

    def refuse(*arguments, **options):
        os.write(2, b"gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken\n" * 20)
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray, "init", refuse)
    command = ["cfl", "sweep", "--out", str(tmp_path / "runs"), "--set", "language.name=dyck"]
    assert main([*command, "--cluster", "auto"]) == 2
    expected = f"stackattn cfl sweep: cluster auto: cannot connect: {cluster_module.WRONG_TOKEN}\n"
    assert capfd.readouterr().err == expected


def test_a_lost_node_is_reported_once(caplog):
    nodes = [
        {"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": True, "Resources": {"CPU": 1, "memory": 4e9}}
        for name in "abc"
    ]
    ray = types.SimpleNamespace(nodes=lambda: nodes)
    capacity = cluster_module._Capacity(ray, "head:6379", 2.0)
    for _ in range(2):
        capacity.check()
    assert not caplog.messages
    nodes[1]["Alive"] = False
    for _ in range(2):
        capacity.check()
    assert caplog.messages == ["cluster head:6379: lost node host-b; its runs continue on other nodes"]
