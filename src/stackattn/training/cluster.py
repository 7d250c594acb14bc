"""Many runs on a Ray cluster: one task for each, which Ray starts again elsewhere if its worker or node is lost.

A run goes on from its checkpoint wherever it is taken up, so a task may be begun any number of times. All nodes have to
see the folder of the runs, and to have the same stackattn, torch and Python.
"""

from __future__ import annotations

import logging
import math
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
BUSY_SECONDS = 60  # a worker that was given up may hold its run for a while
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
        task = ray.remote(_task).options(num_cpus=1, max_retries=LOST_WORKERS)
        running = {}
        for folder, config in waiting:
            reference = task.remote(config, str(folder.absolute()), deadline, minutes_each, versions())
            running[reference] = _Followed(folder, watch(folder))
        while running:
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
        kind, result = "failed", str(error).splitlines()[0]
    if kind == "finished" and result["stopped"] != "budget" and not (folder / "config.json").exists():
        kind, result = "failed", "the run is not to be seen here: all nodes have to share its folder"
    return result if kind == "finished" else {"stopped": f"failed: {result}"}


def versions() -> dict[str, str]:
    import torch

    from .. import __version__

    return {"stackattn": __version__, "torch": torch.__version__, "Python": platform.python_version()}


class _Followed:
    """Tells a watcher of the lines that a run on another machine adds to its metrics."""

    def __init__(self, folder: Path, watcher: Watcher | None):
        self.folder, self.watcher = folder, watcher
        self.seen, self.best = len(Run(folder).metrics()), math.inf

    def look(self) -> None:
        if self.watcher is None:
            return
        for values in Run(self.folder).metrics()[self.seen :]:
            self.watcher.evaluation(values, values["score"] < self.best)
            self.best = min(self.best, values["score"])
            self.seen += 1


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
        raise RunError(f"cluster {address}: cannot connect: {str(error).splitlines()[0]}") from error
    return ray


def _task(
    config: Experiment, folder: str, deadline: float | None, minutes_each: float | None, expected: dict[str, str]
) -> tuple[str, Any]:
    if (found := versions()) != expected:
        name = next(name for name in expected if found[name] != expected[name])
        return "failed", f"{socket.gethostname()} has {name} {found[name]}, expected {expected[name]} as here"
    given_up = time.monotonic() + BUSY_SECONDS
    while True:
        kind, result = run_one(config, Path(folder), deadline, minutes_each)
        if kind == "busy" and time.monotonic() < given_up:
            time.sleep(1)
            continue
        return ("failed" if kind == "busy" else kind), result
