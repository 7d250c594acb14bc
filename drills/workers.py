"""Killed processes under torchrun and on a Ray cluster: the run continues, or is resumed, with the same results."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stackattn.training import TrainingRun

from . import samples
from .drill import Case, Drill, Failed, Skipped, environment

LIMIT = 400.0  # seconds for a command
BATCHES, EPOCHS = 12, 40
REPEAT, ATTEMPTS = "repeat the command to continue", 3


def command(kind: str, config: Path, out: Path) -> list[str]:
    """The command that trains with "torchrun", on a "Ray" cluster, or as a "sweep" in local processes."""
    if kind == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = ["cfl", "train", str(config), "--out", str(out), "--resume"]
    else:
        launcher = []
        words = ["cfl", "sweep", str(config), "--restarts", "2", "--out", str(out)]
        words += ["--cluster", "local", "--memory", "0.5"] if kind == "Ray" else []
    return [sys.executable, *launcher, "-m", "stackattn", *words]


def holders(folder: Path) -> list[int]:
    """The processes that hold the lock of a run in this folder."""
    found = []
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(opened)
        except OSError:  # the process ended in the meantime
            continue
        if target.startswith(f"{folder.resolve()}/") and target.endswith("/lock"):
            found.append(int(opened.parts[2]))
    return found


def members(parent: int) -> list[int]:
    """The child processes of torchrun; none if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except FileNotFoundError:
        return []


def runs(out: Path) -> list[Path]:
    """The folders of all runs."""
    return sorted(path.parent for path in out.rglob("config.json") if path.parent.name != "best")


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise Skipped("Ray is not installed") from None
    values = samples.cfl_values(BATCHES, EPOCHS)
    values["model"]["dropout"] = 0.0  # with dropout, each process would draw its own masks
    config = samples.write_config(folder / "config.yaml", values)
    expected = {}

    def finish(kind: str, out: Path) -> None:
        """Run the command to its end. On an overloaded machine, Ray may give up; the command is then repeated."""
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                command(kind, config, out), capture_output=True, text=True, env=environment(), timeout=LIMIT
            )
            if REPEAT not in done.stderr:
                break
        if done.returncode:
            raise Failed(f"{kind}: exit status {done.returncode}: {done.stderr[-2000:]}")

    def strike(kind: str, rng: random.Random) -> bool:
        """Run the command and kill one of its processes; return whether one was killed before the command ended."""
        if kind not in expected:
            # the results of a sweep do not depend on Ray, which is slow to start
            finish("sweep" if kind == "Ray" else kind, folder / kind)
            expected[kind] = [samples.outcome(run) for run in runs(folder / kind)]
        out = folder / "run"
        process = subprocess.Popen(
            command(kind, config, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
        evaluation = rng.randint(1, EPOCHS - 1)
        killed = False
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < deadline and not killed:
            time.sleep(0.02)
            begun = [run for run in runs(out) if (run / "metrics.jsonl").exists()] if out.exists() else []
            if any((run / "metrics.jsonl").read_bytes().count(b"\n") >= evaluation for run in begun):
                alive = members(process.pid) if kind == "torchrun" else holders(out)
                if alive:
                    os.kill(rng.choice(alive), signal.SIGKILL)
                    killed = True
        text, _ = process.communicate(timeout=LIMIT)
        details = {"kind": kind, "evaluation": evaluation, "output": text[-3000:]}
        try:
            if REPEAT in text or (kind == "torchrun" and not TrainingRun(out).finished):
                finish(kind, out)
            elif kind == "Ray" and process.returncode:
                raise Failed(f"the sweep failed after the kill: exit status {process.returncode}", **details)
            if [samples.outcome(run) for run in runs(out)] != expected[kind]:
                raise Failed("different results after a killed process", **details)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return killed

    def case(rng: random.Random) -> str:
        killed = [kind for kind in ("torchrun", "Ray") if strike(kind, rng)]
        return f"same results after a kill under {' and '.join(killed)}" if killed else "ended before the kill"

    yield case


DRILL = Drill("workers", 1, 10, prepare)
