"""The band and the rows of the windowed nondeterministic stack in Triton, with the interface of pytorch/band.py.

Segments are as long as the limit on the memory of charts allows, because each one needs additional launches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import chart_memory
from ..pytorch.band import (
    Rows,
    falls_before,
    joined_gradients,
    segment_weights,
    segments,
    shortest_segment,
    times_power,
    units,
    with_one,
)
from ..pytorch.chart import Steps
from ..pytorch.steps import log_gradients
from ..transitions import join_transitions
from . import window_kernels as kernels
from .charts import blocks, launch
from .launches import DEFAULT_MEMORY, configuration, diagonal_configuration, selected


def step_size(Q: int, S: int, window: int) -> int:
    """Bytes of charts per step and sequence: P, D, their gradients, and the gradient of P that comes from rows."""
    return 8 * 5 * (window - 1) * S * Q * Q


def _segments(steps: Tensor, T: int, window: int) -> list[tuple[int, int, slice]]:
    B, _, Q, S = steps.shape[:4]
    affordable = chart_memory(DEFAULT_MEMORY) // max(1, B * step_size(Q, S, window)) - window
    return segments(steps, T, window, max(shortest_segment(window), affordable))


def _fill_band(weights: Steps, Q: int, window: int) -> Tensor:
    """P and D, (2, window - 1, S, Q, Q, B n): see window_kernels.py."""
    n, B, QS, _ = weights.push.shape
    S = QS // Q
    band = weights.push.new_empty(2, window - 1, S, Q, Q, B * n)
    options = diagonal_configuration(Q, S)
    if window > 1:
        band[1, 0] = _starts_last(weights.pop, Q)
    for s in range(2, min(window, n) + 1):
        launch(
            kernels.fill_diagonal,
            (blocks(B * n, options["BL"]), S),
            [weights.push, weights.replace, band],
            [band],
            n, B, window, s, **options,
        )  # fmt: skip
    return band


def _starts_last(pop: Tensor, Q: int) -> Tensor:
    """(n, B, Q S, Q) -> (S, Q, Q, B n)"""
    n, B, QS, _ = pop.shape
    return pop.reshape(n, B, Q, QS // Q, Q).permute(3, 2, 4, 1, 0).reshape(QS // Q, Q, Q, B * n)


def _walk_back_band(weights: Steps, band: Tensor, given: Tensor) -> Steps:
    """Gradients of the weights from those of P (1, window - 1, S, Q, Q, B n)."""
    n, B = weights.push.shape[:2]
    _, spans, S, Q = band.shape[:4]
    window = spans + 1
    rows, diagonals = configuration(Q, S), diagonal_configuration(Q, S)
    d_band = torch.empty_like(band)
    for s in range(min(window, n), 0, -1) if window > 1 else ():
        launch(
            kernels.walk_back_diagonal,
            (blocks(B * n, diagonals["BL"]), S),
            [weights.push, weights.replace, band, given, d_band],
            [d_band],
            n, B, window, s, **diagonals,
        )  # fmt: skip
    results = Steps(*(torch.zeros_like(x) for x in weights))
    if window > 1:
        sizes = selected(rows, "Q", "S", "E", "BK")
        launch(kernels.collect_diagonals, (n, B), [band, d_band], [*results[:2]], n, B, window, **sizes)
        pops = d_band[1, 0].reshape(S, Q, Q, B, n).permute(4, 3, 1, 0, 2)  # (n, B, Q, S, Q)
        results.pop.copy_(pops.reshape(n, B, Q * S, Q))
    return results


def fill(steps: Tensor, values: Tensor, history: Tensor, window: int) -> Rows:
    """All rows, those of `history` first."""
    B, _, Q, S = steps.shape[:4]
    T = values.shape[1]
    options = configuration(Q, S)
    known = Rows.split(history, Q * S, extended=False)
    # Until the division below, new rows are in units of the mass of the row before.
    numbers = known.numbers.new_zeros(window + T, *known.numbers.shape[1:])
    numbers[:window] = known.numbers
    width = numbers.shape[3]
    pushable = with_one(values, numbers).contiguous()
    scales = falls_before(known.logs, 0, window).flip(0).exp().T.contiguous()  # (B, window - 1)
    for first, end, needed in _segments(steps, T, window):
        weights = _contiguous(segment_weights(steps[:, needed], extended=False))
        band = _fill_band(weights, Q, window)
        n = len(weights.push)
        for t in range(first, end):
            scales_before, scales = scales, torch.empty_like(scales)
            launch(
                kernels.fill_row,
                (blocks(width, options["BC"]), S, B),
                [weights.push, weights.replace, band, pushable, scales_before, numbers],
                [scales, numbers],
                n, B, width, window, n - (end - t) + 1, t + window, **options,
            )  # fmt: skip
    mass = numbers[window:, ..., -1].sum(2)  # (T, B)
    numbers[window:] /= mass[..., None, None]
    return Rows(numbers, torch.cat([known.logs, mass.log()]))


def walk_back(
    grad: Tensor, steps: Tensor, values: Tensor, rows: Rows, exponents: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of steps, values and history."""
    B, _, Q, S = steps.shape[:4]
    QS, T = Q * S, values.shape[1]
    options = configuration(Q, S)
    numbers, logs = rows.numbers.contiguous(), rows.logs
    width = numbers.shape[3]
    given = torch.zeros_like(numbers)
    given[window:] = times_power(units(grad, QS)[0], -exponents[window:], extended=False)
    d_rows = torch.zeros_like(numbers)
    pushable = with_one(values, numbers).contiguous()
    factors = _factors(logs, window)
    d_values = values.new_zeros(values.shape, dtype=torch.float64)
    d_steps = steps.new_zeros(steps.shape, dtype=torch.float64)
    for first, end, needed in reversed(_segments(steps, T, window)):
        weights = _contiguous(segment_weights(steps[:, needed], extended=False))
        band = _fill_band(weights, Q, window)
        n, low, high = len(weights.push), first + window, end + window
        origin = high - 1 - n
        for x, count in [(x, 1) for x in range(high - 1, low - 1, -1)] + [(first, window)]:
            launch(
                kernels.walk_back_row,
                (blocks(width, options["BC"]), S, B * count),
                [weights.push, weights.replace, band, pushable, factors, numbers, given, d_rows],
                [d_rows],
                n, B, width, window, x, origin, low, high, **options,
            )  # fmt: skip
        given[first:low] = d_rows[first:low]
        given_P = band.new_zeros(1, *band.shape[1:])
        sizes = selected(options, "Q", "S", "BK", "BC")
        if window > 1:
            launch(
                kernels.rows_to_P,
                (end - first, S, B),
                [numbers, d_rows, factors],
                [given_P],
                n, B, width, window, origin, low, **sizes,
            )  # fmt: skip
        gradients = _walk_back_band(weights, band, given_P)
        at, new = slice(n - (end - first), n), slice(low, high)
        moved = d_rows[new] * (-logs[new]).exp()[..., None, None]
        last = numbers[low - 1 : high - 1]
        alpha = last[..., -1:]
        pushes = (moved * pushable[first:end]).sum(-1, keepdim=True)  # (rows, B, QS, 1)
        gradients.push[at].add_(alpha @ pushes.mT)
        gradients.replace[at].add_(last @ moved.mT)
        pushed = weights.push[at].mT @ alpha
        d_values[:, first:end] = (pushed * moved).sum(2)[..., :-1].transpose(0, 1)
        d_steps[:, needed] += join_transitions(*log_gradients(weights, gradients, Q))
    return d_steps, d_values, joined_gradients(d_rows[:window], exponents[:window])


def _contiguous(weights: Steps) -> Steps:
    return Steps(*(x.contiguous() for x in weights))


def _factors(logs: Tensor, window: int) -> Tensor:
    """(x, B, window): the mass of each row, divided by the mass of each of the `window` rows after it."""
    later = torch.nn.functional.pad(logs[1:], (0, 0, 0, window)).unfold(0, window, 1)  # (x, B, window)
    return (-later.cumsum(-1)).exp().contiguous()
