"""The windowed nondeterministic stack in plain PyTorch (docs/maths.md, section 10), forward and backward.

A *row* (B, Q S, m + 1) contains the weighted sum of the top vectors of all runs up to a time point, and alpha, both
divided by the mass of these runs. band.py computes the rows; this module handles padding, and decides where the range
of float64 is sufficient.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..immediate import reads_values
from ..lengths import length_mask, without_padding
from . import band
from .extended import Extended

# Float64 suffices if the log mass of the runs in each entry is at most this much below that of all runs one window
# earlier. Compare SMALLEST_MASS in operators.py.
_LARGEST_FALL = 600.0


def forward(
    steps: Tensor,
    values: Tensor,
    history: Tensor,
    lengths: Tensor | None,
    window: int,
    charts: ModuleType = band,
) -> Tensor:
    """Rows (B, T, QS (m + 2) + 1) of the last T of `steps`; the arguments are those of `ops.window.rows_after`.

    `charts` is band.py, or another module with the same functions for float64.
    """
    window, history = _full_history(steps, history, window)
    steps, values = _without_padding(steps, values, lengths)
    rows = charts.fill(steps, values, history, window)
    found = rows.joined()[:, window:].contiguous()
    good = _in_range(rows, history, steps, lengths)  # (T, B)
    if not reads_values(found.device):
        # there are certainly no runs after a step that forbids all transitions
        ended = (steps[:, -values.shape[1] :] == -torch.inf).flatten(2).all(2).cumsum(1) > 0  # (B, T)
        found = found.where((good.T | ended)[..., None], torch.nan).where(~ended[..., None], 0.0)
    for b in _out_of_range(good):
        one = slice(b, b + 1)
        found[one] = band.fill(steps[one], values[one], history[one], window, extended=True).joined()[:, window:]
    return without_padding(found, lengths)


def backward(
    grad: Tensor,
    steps: Tensor,
    values: Tensor,
    history: Tensor,
    rows: Tensor,
    lengths: Tensor | None,
    window: int,
    charts: ModuleType = band,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of steps, values and history, from those of `rows`, the result of `forward`."""
    QS, known = steps.shape[2] * steps.shape[3], history.shape[1]
    window, history = _full_history(steps, history, window)
    steps, values = _without_padding(steps, values, lengths)
    grad = without_padding(grad, lengths)
    if lengths is not None:
        # sequences without new steps are always in range, but the masses of their earlier rows may not be
        history = history.where((lengths > 0)[:, None, None], 0.0)
    joined = torch.cat([history, rows], 1)
    exponents = band.units(joined, QS)[1]
    all_rows = band.Rows.split(joined, QS, extended=False)
    results = charts.walk_back(grad, steps, values, all_rows, exponents, window)
    for b in _out_of_range(_in_range(all_rows, history, steps, lengths)):
        one = slice(b, b + 1)
        exact = band.fill(steps[one], values[one], history[one], window, extended=True)
        found = band.walk_back(grad[one], steps[one], values[one], exact, exponents[:, one], window)
        for result, part in zip(results, found, strict=True):
            result[one] = part
    d_steps, d_values, d_history = results
    return d_steps, d_values, d_history[:, -known:]


def _full_history(steps: Tensor, history: Tensor, window: int) -> tuple[int, Tensor]:
    """The window, limited to the number of steps, and `history` with as many rows: zeros before the first one."""
    window = min(window, steps.shape[1])
    return window, pad(history, (0, 0, window - history.shape[1], 0))


def _without_padding(steps: Tensor, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    if lengths is None:
        return steps, values
    mask = length_mask(lengths, values.shape[1])
    known = mask.new_ones(len(mask), steps.shape[1] - values.shape[1])
    steps = steps.where(torch.cat([known, mask], 1)[..., None, None, None], 0.0)
    return steps, values.where(mask[..., None], 0.0)


def _in_range(rows: band.Rows, history: Tensor, steps: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, B): whether each entry of a row is exact up to rounding, given the rows before; true for padding."""
    assert not isinstance(rows.numbers, Extended)
    total, alpha, window = rows.logs.cumsum(0), rows.numbers[..., -1], history.shape[1]
    lost = (alpha[:window] == 0) & (band.units(history, alpha.shape[2])[0][..., -1] > 0)  # (window, B, QS)
    least = alpha.where(alpha > 0, torch.inf).amin(-1).log()  # (window + T, B)
    good = total[:-window] - total[window:] - least[window:] <= _LARGEST_FALL  # (T, B); false for nan
    runs = _lightest_runs(steps, len(good), window) + least.amin(0).clamp(max=0.0)
    runs = runs.masked_fill(lost.any(2).any(0), -torch.inf)
    good &= (alpha[window:] > 0).all(-1) | (runs >= -_LARGEST_FALL)
    if lengths is not None:
        good |= ~length_mask(lengths, len(good)).T
    return good


def _lightest_runs(steps: Tensor, T: int, window: int) -> Tensor:
    """(T, B): lower bounds for the log weights of the runs of one window.

    If a bound is in range, entries are zero only because of forbidden transitions, not because their runs underflow.
    """
    weights = steps.flatten(2)  # (B, H + T, Q S (Q S + Q S + Q))
    forbidden, outgoing = weights == -torch.inf, steps.shape[4]
    least = weights.double().masked_fill(forbidden, torch.inf).amin(2) - weights.amax(2) - math.log(outgoing)
    least = least.masked_fill(forbidden.all(2), 0.0).clamp(min=-1e4)
    total = pad(least.cumsum(1), (window, 0))  # zeros before the first step
    return (total[:, window:] - total[:, :-window])[:, -T:].T


def _out_of_range(good: Tensor) -> list[int]:
    """The sequences with a row that is out of range; none if values are not read."""
    if not reads_values(good.device):
        return []
    return (~good.all(0)).nonzero()[:, 0].tolist()
