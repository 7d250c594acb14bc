"""Charts filled by the Triton kernels, with the interface of pytorch/chart.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..pytorch.chart import Steps
from . import kernels
from .launches import configuration, selected


class Chart:
    """P and D as packed triangles, and F, in one block of memory; see kernels.py."""

    def __init__(self, memory: Tensor, n: int, B: int, Q: int, S: int):
        self.memory = memory  # (Chart.size(n, B, Q, S),)
        triangles = _triangles(n, B, Q, S)
        self.PD = memory[:triangles]
        self.F = memory[triangles:].reshape(n + 1, Q, S, B, n + 2)

    @staticmethod
    def size(n: int, B: int, Q: int, S: int) -> int:
        return _triangles(n, B, Q, S) + (n + 1) * Q * S * B * (n + 2)


def _triangles(n: int, B: int, Q: int, S: int) -> int:
    return 2 * S * B * Q * Q * (n * (n + 1) // 2)


def fill(steps: Steps, Q: int, superposition: bool = False) -> Chart:
    steps = Steps(*(x.contiguous() for x in steps))
    n, B, QS, _ = steps.push.shape
    S = QS // Q
    chart = Chart(steps.push.new_empty(Chart.size(n, B, Q, S)), n, B, Q, S)
    chart.F.zero_()
    (chart.F[..., 0] if superposition else chart.F[0, 0, 0, :, :2]).fill_(1.0)
    options = configuration(Q, S)
    block = options["BC"]
    for j in range(n - 1, -1, -1):
        launch(
            kernels.fill_P_and_D,
            (blocks((n - j) * Q, block), S, B),
            [*steps, chart.PD],
            [chart.PD],
            n, B, j, **options,
        )  # fmt: skip
    for t in range(1, n + 1):
        launch(
            kernels.fill_F,
            (blocks(t + 2, block), S, B),
            [steps.push, steps.replace, chart.PD, chart.F],
            [chart.F],
            n, B, t, **options, SUPERPOSITION=superposition,
        )  # fmt: skip
    return chart


def walk_back(steps: Steps, chart: Chart, given: Tensor, superposition: bool = False) -> Steps:
    """Gradients with respect to the transition weights, from those with respect to F."""
    steps, given = Steps(*(x.contiguous() for x in steps)), given.contiguous()
    (n, B, QS, _), Q = steps.push.shape, steps.pop.shape[3]
    S = QS // Q
    options = configuration(Q, S)
    block = options["BC"]
    dF = torch.zeros_like(given)
    for t in range(n, 0, -1):
        launch(
            kernels.walk_back_F,
            (blocks(t + 2, block), S, B),
            [steps.push, steps.replace, chart.PD, given, dF],
            [dF],
            n, B, t, **options, SUPERPOSITION=superposition,
        )  # fmt: skip
    dPD = torch.empty_like(chart.PD)
    for j in range(n):
        if j > 0:
            launch(
                kernels.walk_back_D,
                (blocks((n - j) * Q, block), S, B),
                [steps.push, steps.replace, chart.PD, dPD],
                [dPD],
                n, B, j, **options,
            )  # fmt: skip
        if j < n - 1:
            launch(
                kernels.walk_back_P,
                (blocks((n - 1 - j) * Q, block), S, B),
                [chart.PD, chart.F, dF, dPD],
                [dPD],
                n, B, j, **options,
            )  # fmt: skip
    results = Steps(*(torch.empty_like(x) for x in steps))
    if n > 0 and B > 0:
        sizes = selected(options, "Q", "S", "E", "BK")
        launch(kernels.collect, (n, B), [chart.PD, chart.F, dPD, dF], [*results], n, B, **sizes, BQ=power_of_two(Q))
    return results


def launch(
    kernel: Any, grid: tuple[int, ...], reads: Sequence[Tensor], writes: Sequence[Tensor], *sizes: int, **options: Any
) -> None:
    """Launch a kernel whose arguments are the tensors it reads, those it writes, and sizes.

    If a tensor is in both lists, the launch does not read the entries that it writes; the tests replace this function
    to verify that.
    """
    if all(grid):
        kernel[grid](*reads, *writes, *sizes, **options)


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def power_of_two(x: int) -> int:
    return 1 << (x - 1).bit_length()
