"""Time and memory of steps."""

import ctypes
import math
import multiprocessing
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor

from .steps import Shape, Step

TURN = 0.05  # seconds for which a fast step is repeated before it is the turn of the next one
PATIENCE = 30.0  # seconds after which two rounds are enough


def _run(step: Step) -> tuple[float, float, int]:
    """Seconds until the outputs are computed, seconds until the gradients are, and bytes of both."""
    start = time.perf_counter()
    outputs = step.forward()
    middle = end = time.perf_counter()
    gradients = ()
    if step.backward is not None:
        gradients = step.backward(outputs)
        end = time.perf_counter()
    return middle - start, end - start, sum(x.nbytes for x in (*outputs, *gradients) if isinstance(x, Tensor))


def compare(steps: dict[str, Step], threads: int, budget: float) -> dict[str, dict[str, float]]:
    """Best and median times of steps that take turns, so that noise affects them equally; no round is discarded."""
    torch.set_num_threads(threads)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    start, rounds, elsewhere = time.perf_counter(), 0, _elsewhere()
    while (spent := time.perf_counter() - start) < budget or rounds < (2 if spent > PATIENCE else 3):
        for name, step in steps.items():
            turn = time.perf_counter()
            while True:
                times[name].append(_run(step)[:2])
                if time.perf_counter() - turn > TURN:
                    break
        rounds += 1
    busy = (_elsewhere() - elsewhere) / (time.perf_counter() - start)
    return {name: _summary(x) | {"busy_elsewhere": busy} for name, x in times.items()}


def _elsewhere() -> float:
    """Seconds of CPU time used by everything except this process (Linux; nan on other systems)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return math.nan
    user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, stat.read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK") - time.process_time()


def busy_elsewhere(rows: list[dict]) -> str:
    """How many cores other processes used during the measurements, as text."""
    found = [row["busy_elsewhere"] for row in rows if "busy_elsewhere" in row]
    return f"{mean(found):.2f} on average, at most {max(found):.2f} (times from a busy machine are unreliable)"


def _summary(times: list[tuple[float, float]]) -> dict[str, float]:
    forward, total = zip(*times, strict=True)
    return {"forward": min(forward), "total": min(total), "median": median(total), "repeats": len(times)}


def weigh(build: Callable[[Shape], Step], shape: Shape, threads: int) -> dict[str, float]:
    """Times of one step in a new process and, on Linux, its peak memory.

    `peak` is the memory of the step beyond its inputs, outputs and gradients; `process_peak` is that of the process.
    """
    context = multiprocessing.get_context("forkserver")
    # the first call of an operator imports torch._dynamo
    context.set_forkserver_preload(["benchmarks.models", "torch._dynamo"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_weigh, build, shape, threads).result()


def _weigh(build: Callable[[Shape], Step], shape: Shape, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    _run(build(shape._replace(T=2)))  # loads code and starts threads
    step = build(shape)
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return _summary([_run(step)[:2]])
    ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory would count as held, and the step would reuse it
    clear.write_text("5")  # resets the peak to the memory that is held now
    before = _status("VmRSS")
    *times, results = _run(step)
    peak = _status("VmHWM")
    return {**_summary([(times[0], times[1])]), "peak": max(0, peak - before - results), "process_peak": peak}


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
