"""Many runs on a Ray cluster: one task per run, which Ray restarts elsewhere if its worker or node is lost.

A run can be resumed from its checkpoint on any node, so a task can be restarted any number of times. All nodes need
access to the folder of the runs, and the same versions of stackattn, torch and Python.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..extras import import_extra
from .experiment import Experiment
from .loop import TrainingCallback
from .run import TrainingRun
from .run_files import RunError
from .sweep import Job, Report, Reporting, run_one, unfinished

MEMORY = 2.0  # GB that Ray reserves for a run: the paper's models need 0.4 to 1.9
MAX_RESTARTS = 20  # restarts of a run after the loss of its worker or node
BUSY_SECONDS = 300  # how long to retry a locked run: a lost worker or a file server may hold its lock for a while
SEEN_SECONDS = 120  # how soon after its first evaluation a run must be visible here; file servers may be slow
GRACE_SECONDS = 60  # how long runs may take to stop after the time limit
CONNECT_SECONDS = 10  # how long to wait for an answer at the address of the cluster
POLL_SECONDS = 1.0  # also the minimum time between calls to on_batch

WRONG_TOKEN = (
    "the cluster requires a token: copy ~/.ray/auth_token from its head node to this machine and set "
    "RAY_AUTH_MODE=token here; see docs/clusters.md"
)
HIDDEN = "the folder of the run is not visible on this machine; put it on a file system that all nodes share"

log = logging.getLogger(__name__)


def run_all_on_cluster(
    jobs: Sequence[Job],
    address: str,
    minutes: float | None = None,
    minutes_each: float | None = None,
    report: Report = lambda folder, result: None,
    callback_for: Callable[[Path], TrainingCallback | None] = lambda folder: None,
    memory: float = MEMORY,
    device: str = "cpu",
) -> list[Path]:
    """Train jobs on a Ray cluster; the result and the arguments not listed below are those of `sweep.run_all`.

    Args:
        address: address of the cluster; "local" starts one that listens on the loopback address of this machine only.
        memory: GB of memory that each run requests, besides one core. A warning is logged if no node has that much.
        device: `cpu`, or `cuda` to request one GPU for each run, which Ray chooses.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        RunError: the cluster cannot be reached or was lost.
        ValueError: `memory` or `device` is invalid.
    """
    if not 0 < memory < math.inf:
        raise ValueError(f"memory: expected a positive number of GB, got {memory}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda (the cluster chooses the GPU), got {device!r}")
    waiting, failed = unfinished(jobs, report)
    if not waiting:
        return failed
    gpus, deadline = int(device == "cuda"), None if minutes is None else time.time() + 60 * minutes
    with _connected(address) as ray:
        capacity, callbacks = _Capacity(ray, address, memory, gpus), _Callbacks(ray, callback_for)
        # max_calls=1: a new process for each run, so that the peak memory is that of one run
        needs = {"num_cpus": 1, "num_gpus": gpus, "memory": int(memory * 1e9)}
        task = ray.remote(**needs, max_retries=MAX_RESTARTS, max_calls=1)(_task)
        running = {}
        for folder, config in waiting:
            sender = _QueueSender(callbacks.queue, folder)
            limits = deadline, minutes_each
            reference = task.remote(config, os.getcwd(), str(folder), *limits, versions(), sender, device)
            running[reference] = folder
        while running and (deadline is None or time.time() < deadline + (GRACE_SECONDS if callbacks.started else 0)):
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            capacity.check()
            callbacks.dispatch()
            hidden = [reference for reference, folder in running.items() if callbacks.is_hidden(folder)]
            for reference in hidden:
                ray.cancel(reference, force=True)
            for reference in dict.fromkeys([*done, *hidden]):
                folder = running.pop(reference)
                result = {"stopped": f"failed: {HIDDEN}"} if reference in hidden else _result(ray, reference, folder)
                if result["stopped"].startswith("failed: "):
                    failed.append(folder)
                callbacks.started.pop(folder, None)  # so that a late on_batch is ignored
                report(folder, result)
    return failed


def _result(ray: Any, reference: Any, folder: Path) -> dict[str, Any]:
    result: Any
    try:
        kind, result = ray.get(reference)
    except ray.exceptions.RayError as error:
        kind, result = "failed", _last_line(error)
    if kind == "finished" and result["stopped"] != "budget" and not _seen(folder):
        kind, result = "failed", HIDDEN
    return result if kind == "finished" else {"stopped": f"failed: {result}"}


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]  # the first lines are a traceback


def _seen(folder: Path) -> bool:
    return TrainingRun(folder).begun


class _Capacity:
    """Warns when a node is lost, and when no node is large enough for a run; Ray would wait silently."""

    def __init__(self, ray: Any, address: str, memory: float, gpus: int = 0):
        self.ray, self.address, self.memory, self.gpus = ray, address, memory, gpus
        self.found = True
        self.alive: dict[str, str] = {}  # host name of each node

    def check(self) -> None:
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        alive = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
        for lost in self.alive.keys() - alive:
            log.warning(f"cluster {self.address}: lost node {self.alive[lost]}; its runs continue on other nodes")
        self.alive = alive
        resources = [node["Resources"] for node in nodes]
        least = {"CPU": 1, "GPU": self.gpus, "memory": self.memory * 1e9}
        found = any(all(node.get(name, 0) >= size for name, size in least.items()) for node in resources)
        if self.found and not found:
            needs = f"a core{', a GPU' if self.gpus else ''} and {self.memory:g} GB of memory"
            log.warning(f"cluster {self.address}: no node has {needs} for a run; runs start when such a node joins")
        self.found = found


class _Callbacks:
    """Receives the callback calls of the workers and forwards them to the callbacks of the runs."""

    def __init__(self, ray: Any, callback_for: Callable[[Path], TrainingCallback | None]):
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self.callback_for = callback_for
        self.started: dict[Path, TrainingCallback | None] = {}
        self.hidden: dict[Path, float] = {}  # time at which an evaluated run was first not visible here

    def dispatch(self) -> None:
        for folder, (kind, values) in self.queue.get_nowait_batch(self.queue.size()):
            if kind == "started" and folder in self.started:
                log.warning(f"{folder}: its worker was lost; {values[0]} continues the run")
            elif kind == "started":
                self.started[folder] = self.callback_for(folder)
            elif (callback := self.started.get(folder)) is not None:
                getattr(callback, kind)(*values)
            if kind == "on_evaluation" and not _seen(folder):
                self.hidden.setdefault(folder, time.monotonic())

    def is_hidden(self, folder: Path) -> bool:
        """Whether a run has stayed invisible here for too long, so that its results would be lost."""
        since = self.hidden.get(folder)
        return since is not None and time.monotonic() >= since + SEEN_SECONDS and not _seen(folder)


class _QueueSender:
    """Sends the calls of a `Reporting` callback to the queue of `_Callbacks`."""

    def __init__(self, queue: Any, folder: Path):
        self.queue, self.folder = queue, folder

    def send(self, obj: Any) -> None:
        import ray

        sent = self.queue.actor.put_nowait.remote((self.folder, obj))
        if obj[0] != "on_batch":  # evaluations must arrive before the run ends
            ray.get(sent)


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes."""
    return {"stackattn": __version__, "torch": torch.__version__, "Python": platform.python_version()}


def _connect(address: str) -> Any:
    ray = import_extra("ray", "cluster", "--cluster")
    if ray.is_initialized():
        raise RunError(f"cluster {address}: this process is already connected to Ray; call ray.shutdown() first")
    local, captured = address == "local", []
    try:
        if ":" in address:  # Ray itself would retry for minutes
            host, port = address.removeprefix("ray://").rsplit(":", 1)
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        # "local" makes Ray start a new cluster even if one is running
        with _loopback_only(ray) if local else nullcontext():
            dashboard = False if local else None
            with _captured_stderr() as captured:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
    except Exception as error:  # Ray also raises plain exceptions
        ray.shutdown()  # the connection may be half open
        reason = WRONG_TOKEN if "InvalidAuthToken" in "".join(captured) else " ".join(str(error).split())
        raise RunError(f"cluster {address}: cannot connect: {reason}") from error
    sys.stderr.write("".join(captured))
    return ray


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Collect everything written to standard error, including by C++; Ray repeats the reason for a failure 20 times."""
    captured: list[str] = []
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            captured.append(file.read().decode(errors="replace"))


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to a cluster and disconnect at the end, which ends the runs in progress; Ray's errors become RunError."""
    ray = _connect(address)
    worker = ray._private.worker
    before = worker.print_to_stdstream
    # Ray would print the state and the C++ stack trace of a lost node; `_Capacity` logs one line instead
    worker.print_to_stdstream = lambda *arguments, **options: None
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise RunError(
            f"cluster {address}: connection lost: {_last_line(error)}; repeat the command to continue"
        ) from error
    finally:
        ray.shutdown()
        worker.print_to_stdstream = before


@contextmanager
def _loopback_only(ray: Any) -> Iterator[None]:
    """Make Ray listen on the loopback address only, as it does by default on macOS and Windows."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # passing 127.0.0.1 as the node address is not enough: Ray replaces it
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    if not ipaddress.ip_address(found := ray.util.get_node_ip_address()).is_loopback:
        log.warning(f"cluster local: Ray listens on {found}, and other machines may be able to run code here")


def _task(
    config: Experiment,
    working_directory: str,
    folder: str,
    deadline: float | None,
    minutes_each: float | None,
    expected: dict[str, str],
    sender: _QueueSender,
    device: str,
) -> tuple[str, Any]:
    """Train one run on a worker; the paths of the run and its data are relative to `working_directory`."""
    if (found := versions()) != expected:
        name = next(name for name in expected if found[name] != expected[name])
        return "failed", f"expected {name} {expected[name]} on all nodes, found {found[name]} on {socket.gethostname()}"
    if not Path(working_directory).is_dir():
        found_none = f"expected the folder {working_directory} on all nodes, found none on {socket.gethostname()}"
        return "failed", f"{found_none}; all nodes must share it"
    os.chdir(working_directory)
    sender.send(("started", (socket.gethostname(),)))
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        kind, result = run_one(config, Path(folder), deadline, minutes_each, Reporting(sender, POLL_SECONDS), device)
        if kind == "busy" and time.monotonic() < give_up:
            time.sleep(1)
            continue
        return ("failed" if kind == "busy" else kind), result
