"""Many runs on a Ray cluster: one task for each, which Ray starts again elsewhere if its worker or node is lost.

A run goes on from its checkpoint wherever it is taken up, so a task may be begun any number of times. All nodes have to
see the folder of the runs, and to have the same stackattn, torch and Python.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .experiment import Experiment
from .loop import Watcher
from .run import Run, RunError
from .sweep import Job, Report, run_one, unfinished

LOST_WORKERS = 20  # how often a run is taken up again after the loss of its worker or node
BUSY_SECONDS = 300  # a worker that was given up may hold its run for a while, and a file server its lock
GRACE_SECONDS = 60  # after the budget, for runs to stop by themselves
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0


def run_all_on_cluster(
    jobs: Sequence[Job],
    address: str,
    minutes: float | None = None,
    minutes_each: float | None = None,
    report: Report = lambda folder, result: None,
    watch: Callable[[Path], Watcher | None] = lambda folder: None,
) -> list[Path]:
    """Like `sweep.run_all`, on the cluster at `address` ("local": a new one on this machine): a core for each run."""
    deadline = None if minutes is None else time.time() + 60 * minutes
    waiting, failed = unfinished(jobs, report)
    ray = _connect(address)
    try:
        # a process for each run, so that its peak memory is its own
        task = ray.remote(num_cpus=1, max_retries=LOST_WORKERS, max_calls=1)(_task)
        running = {}
        for folder, config in waiting:
            reference = task.remote(config, os.getcwd(), str(folder), deadline, minutes_each, versions())
            running[reference] = _Followed(folder, watch)
        while running and (deadline is None or time.time() < deadline + GRACE_SECONDS):
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for followed in running.values():
                followed.look()
            for reference in done:
                folder = running.pop(reference).folder
                result = _result(ray, reference, folder)
                if result["stopped"].startswith("failed: "):
                    failed.append(folder)
                report(folder, result)
    finally:
        ray.shutdown()
    return failed


def _result(ray: Any, reference: Any, folder: Path) -> dict[str, Any]:
    result: Any
    try:
        kind, result = ray.get(reference)
    except ray.exceptions.RayError as error:
        kind, result = "failed", str(error).strip().splitlines()[-1]  # the first lines are a traceback
    if kind == "finished" and result["stopped"] != "budget" and not (folder / "config.json").exists():
        kind, result = "failed", "the run is not to be seen here: all nodes have to share its folder"
    return result if kind == "finished" else {"stopped": f"failed: {result}"}


def versions() -> dict[str, str]:
    import torch

    from .. import __version__

    return {"stackattn": __version__, "torch": torch.__version__, "Python": platform.python_version()}


class _Followed:
    """Tells a watcher of the lines that a run on another machine adds to its metrics."""

    def __init__(self, folder: Path, watch: Callable[[Path], Watcher | None]):
        self.folder, self.watch = folder, watch
        self.watcher: Watcher | None = None  # when there is something to show
        scores = [values["score"] for values in Run(folder).metrics()]
        self.seen, self.best = len(scores), min(scores, default=math.inf)
        self.size = self._size()

    def _size(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def look(self) -> None:
        try:
            if (size := self._size()) == self.size:
                return
            rows = Run(self.folder).metrics()
        except (OSError, ValueError):  # it is being written on another machine: next time
            return
        self.size = size
        if self.watcher is None:
            self.watcher = self.watch(self.folder)
        for values in rows[self.seen :]:
            if self.watcher is not None:
                self.watcher.evaluation(values, values["score"] < self.best)
            self.best = min(self.best, values["score"])
        self.seen = max(self.seen, len(rows))


def _connect(address: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise RunError("--cluster needs Ray: pip install 'stackattn[cluster]'") from None
    local = address == "local"
    try:
        if ":" in address:  # Ray itself would try for minutes
            host, port = address.removeprefix("ray://").rsplit(":", 1)
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        # "local" is Ray's word, too: a new cluster, even where one is running
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False if local else None)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunError(f"cluster {address}: cannot connect: {' '.join(str(error).split())}") from error
    return ray


def _task(
    config: Experiment,
    place: str,
    folder: str,
    deadline: float | None,
    minutes_each: float | None,
    expected: dict[str, str],
) -> tuple[str, Any]:
    """`place` is the directory that relative paths are meant from: those of the run and of its data."""
    if (found := versions()) != expected:
        name = next(name for name in expected if found[name] != expected[name])
        return "failed", f"{socket.gethostname()} has {name} {found[name]}, expected {expected[name]} as here"
    if not Path(place).is_dir():
        return "failed", f"{socket.gethostname()} has no folder {place}: all nodes have to share it"
    os.chdir(place)
    given_up = time.monotonic() + BUSY_SECONDS
    while True:
        kind, result = run_one(config, Path(folder), deadline, minutes_each)
        if kind == "busy" and time.monotonic() < given_up:
            time.sleep(1)
            continue
        return ("failed" if kind == "busy" else kind), result
