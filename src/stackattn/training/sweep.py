"""Many runs: random restarts in processes of their own, taken up where they were left."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from .cfl import CFLConfig, run_experiment
from .run import Run

LEARNING_RATES = (5e-4, 1e-2)


def restart(config: CFLConfig, number: int, seed: int = 0) -> CFLConfig:
    """The configuration of one restart: a learning rate drawn log-uniformly, and seeds of its own."""
    generator = np.random.default_rng([seed, number])
    low, high = map(math.log, LEARNING_RATES)
    rate = math.exp(generator.uniform(low, high))
    data, init, shuffle = (int(x) for x in generator.integers(2**31, size=3))
    training = replace(config.training, learning_rate=rate, init_seed=init, shuffle_seed=shuffle)
    return replace(config, language=replace(config.language, seed=data), training=training)


def run_all(
    jobs: Sequence[tuple[Path, CFLConfig]],
    processes: int | None = None,
    minutes: float | None = None,
    minutes_each: float | None = None,
    report: Callable[[Path, dict[str, Any]], None] = lambda folder, result: None,
) -> None:
    """Run every job that is not finished yet, one thread each, as many at once as there are cores.

    `minutes` is the budget of all: what is under way then stops at its next evaluation, and goes on another time. `minutes_each` is
    the budget of a run, over all the times that it was taken up.
    """
    deadline = None if minutes is None else time.time() + 60 * minutes
    waiting = [(folder, config) for folder, config in jobs if not Run(folder).finished]
    processes = processes or os.cpu_count() or 1
    # Spawned, not forked: a forked child of a process that has used OpenMP hangs.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        running: dict[Future, Path] = {}
        while waiting or running:
            while waiting and len(running) < processes and (deadline is None or time.time() < deadline):
                folder, config = waiting.pop(0)
                running[pool.submit(_run, config, folder, deadline, minutes_each)] = folder
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                report(running.pop(future), future.result())


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _run(config: CFLConfig, folder: Path, deadline: float | None, minutes_each: float | None) -> dict[str, Any]:
    left = [] if deadline is None else [(deadline - time.time()) / 60]
    if minutes_each is not None:
        metrics = Run(folder).metrics()
        left.append(minutes_each - (metrics[-1]["seconds"] / 60 if metrics else 0))
    if left and min(left) <= 0:
        return {"stopped": "budget"}
    return run_experiment(config, folder, resume=True, minutes=min(left) if left else None)


def best_of(folders: Sequence[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The run with the lowest cross-entropy difference, and the evaluation where it had it."""
    found = []
    for folder in folders:
        metrics = Run(folder).metrics()
        if metrics:
            best = min(metrics, key=lambda values: values["score"])
            found.append((best["cross_entropy_difference"], folder, best))
    return min(found, key=lambda item: item[0])[1:] if found else None
