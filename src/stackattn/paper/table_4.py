"""The paper's Table 4 (serial time and space), measured: time and memory of each kind of attention by length.

Each kind is measured in two processes of its own, with and without the backward pass, because the peak memory of a
process never falls. One thread is used, so that the time is serial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..nn import NondeterministicStackAttention, SelfAttention, SuperpositionStackAttention
from ..training.environment import describe_environment, peak_memory
from .tables import fitted_exponent, number, publish

LENGTHS = (256, 512, 1024, 2048, 4096)
LONGEST = {"nondeterministic": 1024}  # its time is cubic
FITTED = 3  # number of lengths that determine an exponent: two are not enough where charts outgrow a cache
# One sequence: whether the charts of a batch are kept for the backward pass depends on a memory limit
# (ops/readings.py), which can distort the exponent of the space.
BATCH, D_MODEL, STATES, SYMBOLS, EMBEDDING = 1, 32, 3, 3, 5
REPEATS = 5
WARM_UP = 16  # length of a first pass, which loads libraries and starts threads
ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: SelfAttention(D_MODEL, 4),
    "superposition": lambda: SuperpositionStackAttention(D_MODEL, D_MODEL),
    "nondeterministic": lambda: NondeterministicStackAttention(D_MODEL, STATES, SYMBOLS, EMBEDDING),
}
PAPER = {  # serial time, space, and space of a forward pass alone, as functions of n
    "softmax": ("n^2", "n^2", "n^2"),
    "superposition": ("n^2", "n^2", "n"),
    "nondeterministic": ("n^3", "n^2", "n^2"),
}


class Measured(NamedTuple):
    """Cost of one pass over a batch of sequences of one length."""

    seconds: float  # the fastest of several passes
    megabytes: float  # growth of the peak memory since the first, short pass; nan if it is unknown


def measure(name: str, lengths: Sequence[int], backward: bool) -> list[Measured]:
    """Cost of a forward pass, or of a forward and a backward pass, for each length.

    Args:
        name: kind of attention, a key of `ATTENTION`.
        lengths: numbers of steps, in ascending order, because the peak memory never falls.
        backward: whether to include the backward pass.

    Example:
        >>> from stackattn.paper.table_4 import measure
        >>> [cost.seconds > 0 for cost in measure("softmax", [8, 16], backward=True)]
        [True, True]
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = ATTENTION[name]().train(backward)
    _seconds(layer, WARM_UP, backward)
    start = peak_memory() or math.nan
    found = []
    for n in lengths:
        seconds = min(_seconds(layer, n, backward) for _ in range(REPEATS))
        found.append(Measured(seconds, ((peak_memory() or math.nan) - start) / 1e6))
    return found


def _measure_alone(name: str, lengths: Sequence[int], backward: bool) -> list[Measured]:
    """Call `measure` in a new process, so that the peak memory is not that of an earlier measurement."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, name, lengths, backward).result()


def _seconds(layer: nn.Module, n: int, backward: bool) -> float:
    x = torch.randn(BATCH, n, D_MODEL, requires_grad=backward)
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        y = layer(x)
        if backward:
            y.sum().backward()
    return time.perf_counter() - start


def show(out: Path, lengths: Sequence[int] = LENGTHS) -> int:
    """Measure the costs, print the table, write it to `out` as `table-4`, and return an exit code."""
    header = ["measure", "attention", *(f"n = {n}" for n in lengths), "exponent", "paper"]
    measured = {name: [n for n in lengths if n <= LONGEST.get(name, n)] for name in ATTENTION}
    both, forward = ({name: _measure_alone(name, measured[name], b) for name in ATTENTION} for b in (True, False))
    rows = []
    for title, costs, column in (
        ("seconds, forward and backward", both, 0),
        ("MB, forward and backward", both, 1),
        ("MB, forward only", forward, 2),
    ):
        for name in ATTENTION:
            values = [cost.seconds if column == 0 else cost.megabytes for cost in costs[name]]
            texts = [number(x, ".4f" if column == 0 else ".1f") for x in values]
            texts += [""] * (len(lengths) - len(texts))
            exponent = number(fitted_exponent(measured[name][-FITTED:], values[-FITTED:]), ".2f")
            rows.append([title, name, *texts, exponent, f"O({PAPER[name][column]})"])
    machine = describe_environment()
    notes = (
        f"One layer of each kind, one sequence, d_model {D_MODEL}; the nondeterministic stack has {STATES} states, "
        f"{SYMBOLS} stack symbols and vectors of size {EMBEDDING}. One thread of {machine['processor']}, backend "
        f"{'cpp' if machine['backends'].get('cpp') == 'available' else 'torch'}, the fastest of {REPEATS} passes. "
        f"MB: growth of the peak memory of the process since a pass of length {WARM_UP}. Exponent: slope of log cost "
        f"against log n, fitted to the {FITTED} largest n. The paper's space is that of its own implementation."
    )
    return publish("table-4", header, rows, notes, out)
