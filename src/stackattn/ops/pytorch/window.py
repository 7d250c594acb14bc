"""The windowed nondeterministic stack in plain PyTorch (docs/maths.md, section 10), forward and backward.

A *row* (B, Q S, m + 1) is all runs up to a time point, divided by their mass: their top vectors, summed, and alpha.
band.py computes them; here are the padding and the criterion for the range of float64.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..immediate import reads_values
from ..lengths import length_mask
from . import band

# Largest fall of ln M over one window for which float64 suffices, as SMALLEST_MASS in operators.py.
_LARGEST_FALL = 600.0


def forward(
    steps: Tensor,
    values: Tensor,
    history: Tensor,
    lengths: Tensor | None,
    window: int,
    charts: ModuleType = band,
) -> Tensor:
    """Rows (B, T, QS (m + 1) + 1) of the last T of `steps`; the arguments are those of `ops.window.rows_after`.

    `charts` is band.py, or another module with the same functions for float64.
    """
    window, history = _full_history(steps, history, window)
    steps, values = _without_padding(steps, values, lengths)
    rows = charts.fill(steps, values, history, window)
    found = rows.joined()[:, window:].contiguous()
    good = _in_range(rows.logs, lengths, window)  # (T, B)
    if not reads_values(found.device):
        # there are certainly no runs after a step that forbids all transitions
        ended = (steps[:, -values.shape[1] :] == -torch.inf).flatten(2).all(2).cumsum(1) > 0  # (B, T)
        found = found.where((good.T | ended)[..., None], torch.nan).where(~ended[..., None], 0.0)
    for b in _out_of_range(good):
        one = slice(b, b + 1)
        found[one] = band.fill(steps[one], values[one], history[one], window, extended=True).joined()[:, window:]
    if lengths is not None:
        found = found.where(length_mask(lengths, values.shape[1])[..., None], 0.0)
    return found


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
    if lengths is not None:
        grad = grad.where(length_mask(lengths, values.shape[1])[..., None], 0.0)
    all_rows = band.Rows.split(torch.cat([history, rows], 1), QS, extended=False)
    results = charts.walk_back(grad, steps, values, all_rows, window)
    for b in _out_of_range(_in_range(all_rows.logs, lengths, window)):
        one = slice(b, b + 1)
        exact = band.fill(steps[one], values[one], history[one], window, extended=True)
        for result, found in zip(
            results, band.walk_back(grad[one], steps[one], values[one], exact, window), strict=True
        ):
            result[one] = found
    d_steps, d_values, d_history = results
    return d_steps, d_values, d_history[:, -known:]


def _full_history(steps: Tensor, history: Tensor, window: int) -> tuple[int, Tensor]:
    """The window, at most the number of steps, and `history` with as many rows: zeros before the first one."""
    window = min(window, steps.shape[1])
    return window, pad(history, (0, 0, window - history.shape[1], 0))


def _without_padding(steps: Tensor, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    if lengths is None:
        return steps, values
    mask = length_mask(lengths, values.shape[1])
    known = mask.new_ones(len(mask), steps.shape[1] - values.shape[1])
    steps = steps.where(torch.cat([known, mask], 1)[..., None, None, None], 0.0)
    return steps, values.where(mask[..., None], 0.0)


def _in_range(logs: Tensor, lengths: Tensor | None, window: int) -> Tensor:
    """(T, B): whether the mass of a row is not too far below that of the row a window earlier; true for padding."""
    total = logs.cumsum(0)
    good = total[:-window] - total[window:] <= _LARGEST_FALL  # (T, B); false for nan
    if lengths is not None:
        good |= ~length_mask(lengths, len(good)).T
    return good


def _out_of_range(good: Tensor) -> list[int]:
    """The sequences with a row that is not good; none where values are not read."""
    if not reads_values(good.device):
        return []
    return (~good.all(0)).nonzero()[:, 0].tolist()
