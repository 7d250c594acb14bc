"""Sweeps: many runs, such as random restarts, in several processes.

Each run uses one thread. On two cores, with strings of 40 to 60 symbols, a second thread does not speed up Tf (1.9 s
for 100 batches) and reduces the time of Tf+Nd from 4.3 s to 3.0 s, which is less than the gain from two runs at a time.
On a busy machine, the threads of a run wait for each other (Tf: 18 s).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch

from .devices import find_device
from .experiment import Experiment, run_experiment
from .loop import TrainingCallback
from .metrics import headline
from .run import TrainingRun
from .run_files import RunBusy, RunError

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Experiment)
SHOWN_EVERY = 0.2  # minimum number of seconds between calls to on_batch


def restart(config: E, number: int, seed: int = 0, cell: str = "") -> E:
    """Return the configuration of random restart `number`: a learning rate drawn log-uniformly, and new seeds.

    Args:
        config: the configuration to restart.
        number: number of the restart, counted from 0.
        seed: seed of the sweep; another seed gives different draws for all restarts.
        cell: name of the experiment among several, such as `dyck/tf-nd`; each name has its own draws.
    """
    generator = np.random.default_rng([seed, number, *cell.encode()])
    low, high = map(math.log, config.training.learning_rates)
    rate = math.exp(generator.uniform(low, high))
    data, init, shuffle = (int(x) for x in generator.integers(2**31, size=3))
    training = replace(config.training, learning_rate=rate, init_seed=init, shuffle_seed=shuffle)
    return cast(E, replace(cast(Any, config), training=training).redraw(data))


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Job = tuple[Path, Experiment]  # the folder of a run and its configuration


class Report(Protocol):
    """Called when a run ends; in its result, `stopped` is the reason, or `failed: ...` after an error."""

    def __call__(self, folder: Path, result: dict[str, Any], /) -> None: ...


def unfinished(jobs: Sequence[Job], report: Report) -> tuple[list[Job], list[Path]]:
    """Return the unfinished jobs; also report and return the folders that contain an invalid or a different run."""
    waiting, failed = [], []
    for folder, config in jobs:
        run = TrainingRun(folder)
        try:
            difference = run.differs(config) if run.begun or run.finished else None
            another = f"the folder contains a run with another configuration ({difference}); choose another folder"
            reason = another if difference else None
        except (RunError, ValueError, OSError) as error:
            reason = str(error)
        if reason is not None:
            failed.append(folder)
            report(folder, {"stopped": f"failed: {reason}"})
        elif not run.finished:
            waiting.append((folder, config))
    return waiting, failed


def run_all(
    jobs: Sequence[Job],
    processes: int | None = None,
    minutes: float | None = None,
    minutes_each: float | None = None,
    report: Report = lambda folder, result: None,
    callback_for: Callable[[Path], TrainingCallback | None] = lambda folder: None,
    device: str = "cpu",
) -> list[Path]:
    """Train every job that is not finished yet, each with one thread.

    Args:
        jobs: folders and configurations.
        processes: number of runs at a time; default: the number of cores, or of GPUs that `device` names.
        minutes: stop all runs after this time; repeat the call to continue them.
        minutes_each: maximum training time of each run, including earlier calls.
        report: called when a run ends or fails; a failed run does not stop the others.
        callback_for: returns the callback of a run.
        device: a PyTorch device. The runs are distributed over all GPUs if it is `cuda` without a number.

    Returns:
        The folders of the runs that failed.

    Raises:
        ValueError: the device is not available.
    """
    deadline = None if minutes is None else time.time() + 60 * minutes
    waiting, failed = unfinished(jobs, report)
    devices = _devices(device)
    processes = processes or (cores() if devices == ["cpu"] else len(devices))
    context = get_context("spawn")  # a forked child of a process that has used OpenMP hangs
    running: dict[Any, tuple[Any, Path, TrainingCallback | None, str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes and (deadline is None or time.time() < deadline):
                folder, config = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                used = [device for *_, device in running.values()]
                chosen = min(devices, key=used.count)
                process = context.Process(target=_run, args=(theirs, config, folder, deadline, minutes_each, chosen))
                process.start()
                theirs.close()
                running[ours] = process, folder, callback_for(folder), chosen
            if not running:
                break
            for end in connection.wait(list(running)):
                process, folder, callback, _ = running[end]
                try:
                    kind, values = end.recv()  # pyright: ignore
                except EOFError:
                    process.join()
                    kind, values = "failed", (f"the process ended with code {process.exitcode}",)
                if kind not in ("finished", "failed"):
                    if callback is not None:
                        getattr(callback, kind)(*values)
                    continue
                del running[end]
                process.join()
                result: Any = values[0]
                if kind == "failed":
                    failed.append(folder)
                    result = {"stopped": f"failed: {result}"}
                report(folder, result)
    finally:
        for process, *_ in running.values():  # a run can be killed at any time and resumed
            process.kill()
            process.join()
    return failed


class Sender(Protocol):
    """Sends objects to the process that calls the callbacks."""

    def send(self, obj: Any) -> None: ...


class Reporting:
    """A callback that forwards its calls through a sender, `on_batch` at most once every `every` seconds."""

    def __init__(self, sender: Sender, every: float = SHOWN_EVERY):
        self.sender, self.every = sender, every
        self.last_sent = 0.0

    def on_batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        if time.monotonic() - self.last_sent > self.every:
            self.last_sent = time.monotonic()
            self.sender.send(("on_batch", (epoch, done, total, loss)))

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        self.sender.send(("on_evaluation", (values, best)))


def _devices(device: str) -> list[str]:
    """The devices over which runs are distributed."""
    found = find_device(device)
    if found.type != "cuda" or found.index is not None:
        return [device]
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def _run(
    sender: Sender, config: Experiment, folder: Path, deadline: float | None, minutes_each: float | None, device: str
) -> None:
    """Train one job in this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kind, result = run_one(config, folder, deadline, minutes_each, Reporting(sender), device)
    sender.send(("finished" if kind == "finished" else "failed", (result,)))


def run_one(
    config: Experiment,
    folder: Path,
    deadline: float | None,
    minutes_each: float | None,
    callback: TrainingCallback | None = None,
    device: str = "cpu",
) -> tuple[str, Any]:
    """Start or resume a run with one thread.

    Args:
        config: the experiment.
        folder: the run folder.
        deadline: stop at this value of `time.time()`; None: no limit.
        minutes_each: maximum training time of the run, including earlier calls; None: no limit.
        callback: called after each batch and evaluation.
        device: a PyTorch device.

    Returns:
        ("finished", result), ("failed", reason) or ("busy", reason). If no time is left, the result is
        `{"stopped": "budget"}`. "busy" means that another process is training the run.
    """
    torch.set_num_threads(1)
    run = TrainingRun(folder)
    try:
        if run.finished:
            return "finished", run.result()
        left = [] if deadline is None else [(deadline - time.time()) / 60]
        if minutes_each is not None:
            left.append(minutes_each - run.seconds() / 60)
        if left and min(left) <= 0:
            return "finished", {"stopped": "budget"}
        minutes = min(left) if left else None
        result = run_experiment(config, folder, resume=True, minutes=minutes, callback=callback, device=device)
        return "finished", result
    except RunBusy as error:
        return "busy", str(error)
    except (RunError, ValueError, OSError) as error:
        if run.finished:  # another process, which was considered lost, has finished it
            return "finished", run.result()
        return "failed", str(error)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def best_of(folders: Sequence[Path]) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder of the run with the lowest headline metric and its best evaluation; None if there is none.

    A run that cannot be read is logged and skipped.
    """
    found = []
    for folder in folders:
        try:
            best = TrainingRun(folder).best_evaluation()
        except RunError as error:
            log.warning(f"{error}; the run is skipped")
            continue
        if best is not None:
            found.append((headline(best)[1], folder, best))
    return min(found, key=lambda item: item[0])[1:] if found else None
