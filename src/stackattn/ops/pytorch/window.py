"""The windowed nondeterministic stack in plain PyTorch (docs/maths.md, section 10), forward and backward.

A *row* (B, Q S, m + 1) is all runs up to a time point, divided by their mass: their top vectors, summed, and alpha.
Rows are computed in segments, so that memory holds the band of charts of one segment only. Like chart.py, the code is
generic in `Number`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..immediate import reads_values
from ..lengths import length_mask
from ..transitions import join_transitions, split_transitions
from .chart import Number, Steps
from .extended import Extended
from .steps import log_gradients, scaled_steps

# Largest fall of ln M over one window for which float64 suffices, as SMALLEST_MASS in operators.py.
_LARGEST_FALL = 600.0
_SHORTEST_SEGMENT = 256  # steps; longer segments need fewer calls


class Rows(NamedTuple):
    """Rows of consecutive time points, time first."""

    numbers: Number  # (x, B, QS, m + 1)
    logs: Tensor  # (x, B): ln(M_t / M_{t-1})

    @classmethod
    def split(cls, rows: Tensor, QS: int, extended: bool) -> Rows:
        """From (B, x, QS (m + 1) + 1), the layout of the operator."""
        numbers = rows[..., :-1].unflatten(-1, (QS, -1)).transpose(0, 1)
        return cls(Extended.of(numbers) if extended else numbers, rows[..., -1].T)

    def joined(self) -> Tensor:
        numbers = self.numbers.to_tensor() if isinstance(self.numbers, Extended) else self.numbers
        return torch.cat([numbers.flatten(2), self.logs[..., None]], -1).transpose(0, 1)


def forward(steps: Tensor, values: Tensor, history: Tensor, lengths: Tensor | None, window: int) -> Tensor:
    """Rows (B, T, QS (m + 1) + 1) of the last T of `steps`; the arguments are those of `ops.window.rows_after`."""
    window, history = _full_history(steps, history, window)
    steps, values = _without_padding(steps, values, lengths)
    rows = _fill(steps, values, history, window, extended=False)
    found = rows.joined()[:, window:].contiguous()
    good = _in_range(rows.logs, lengths, window)  # (T, B)
    if not reads_values(found.device):
        found = found.where(good.T[..., None], torch.nan)
    for b in _out_of_range(good):
        one = slice(b, b + 1)
        found[one] = _fill(steps[one], values[one], history[one], window, extended=True).joined()[:, window:]
    if lengths is not None:
        found = found.where(length_mask(lengths, values.shape[1])[..., None], 0.0)
    return found


def backward(
    grad: Tensor, steps: Tensor, values: Tensor, history: Tensor, rows: Tensor, lengths: Tensor | None, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of steps, values and history, from those of `rows`, the result of `forward`."""
    QS, known = steps.shape[2] * steps.shape[3], history.shape[1]
    window, history = _full_history(steps, history, window)
    steps, values = _without_padding(steps, values, lengths)
    if lengths is not None:
        grad = grad.where(length_mask(lengths, values.shape[1])[..., None], 0.0)
    all_rows = Rows.split(torch.cat([history, rows], 1), QS, extended=False)
    results = _unfill(grad, steps, values, all_rows, window)
    for b in _out_of_range(_in_range(all_rows.logs, lengths, window)):
        one = slice(b, b + 1)
        exact = _fill(steps[one], values[one], history[one], window, extended=True)
        for result, found in zip(results, _unfill(grad[one], steps[one], values[one], exact, window), strict=True):
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


def _segments(steps: Tensor, T: int, window: int) -> list[tuple[int, int, slice]]:
    """(first new row, last + 1, steps that they depend on) for each segment."""
    known, size = steps.shape[1] - T, max(4 * window, _SHORTEST_SEGMENT)
    return [
        (a, min(a + size, T), slice(max(known + a - window + 1, 0), known + min(a + size, T)))
        for a in range(0, T, size)
    ]


def _weights(steps: Tensor, extended: bool) -> Steps:
    return scaled_steps(*split_transitions(steps), extended=extended)


def _with_one(values: Tensor, like: Number) -> Number:
    """(T, B, 1, m + 1): what is added to a row for each run that pushes."""
    values = torch.cat([values.double(), values.new_ones(*values.shape[:2], 1).double()], -1).transpose(0, 1)[
        :, :, None
    ]
    return Extended.of(values) if isinstance(like, Extended) else values


class _Band:
    """The charts D and P of a segment of N steps, only for t - k <= window, in axes that make sums matrix products."""

    def __init__(self, like: Number, N: int, B: int, Q: int, S: int, window: int):
        self.sizes = N, B, Q, S, window
        self.P = like.new_zeros(N + 1, B, S, Q, window + 1, Q)  # by start: [k, b, y, u, t - k, r]
        self.P_to = like.new_zeros(N + 1, B, S, window - 1, Q, Q)  # by end: [t, b, y, window - (t - k), u, r]
        self.D_to = like.new_zeros(N + 1, B, S, window, Q, Q)  # by end: [t, b, w, window - (t - j), p, r]

    def diagonal(self, s: int) -> tuple[Number, Number, Number]:
        """For all j: D[j+1 -> j+s] as (n, B, QS, Q); P[j -> k] and D[k -> j+s] for k = j+2..j+s-1, two matrices."""
        N, B, Q, S, window = self.sizes
        n, inner = N + 1 - s, (s - 2) * Q
        later = self.D_to[s:, :, :, window - s + 1].transpose(2, 3).reshape(n, B, Q * S, Q)
        left = self.P[:n, :, :, :, 2:s].reshape(n, B, S, Q, inner)
        return later, left, self.D_to[s:, :, :, window - s + 2 :].reshape(n, B, S, inner, Q)

    def by_symbol(self, x: Number) -> Number:
        """(n, B, QS, Q) -> (n, B, S, Q, Q)"""
        _, B, Q, S, _ = self.sizes
        return x.reshape(x.shape[0], B, Q, S, Q).transpose(2, 3)


def _fill_band(weights: Steps, Q: int, window: int) -> _Band:
    N, B, QS, _ = weights.push.shape
    band = _Band(weights.push, N, B, Q, QS // Q, window)
    if window > 1:
        band.D_to[1:, :, :, window - 1] = band.by_symbol(weights.pop)
    for s in range(2, min(window, N) + 1):
        n = N + 1 - s
        later, left, right = band.diagonal(s)
        pushed = band.by_symbol(weights.push[:n] @ later)
        band.P[:n, :, :, :, s] = pushed
        band.P_to[s:, :, :, window - s] = pushed
        if s < window:
            kept = band.by_symbol(weights.replace[:n] @ later)
            band.D_to[s:, :, :, window - s] = kept + left @ right if s > 2 else kept
    return band


def _unfill_band(weights: Steps, band: _Band, dP_to: Number, gradients: Steps) -> None:
    """Add the gradients of the weights, from those of P by end."""
    N, B, Q, S, window = band.sizes
    dP, dD_to = dP_to.new_zeros(*band.P.shape), dP_to.new_zeros(*band.D_to.shape)
    for s in range(min(window, N), 1, -1):
        n = N + 1 - s
        later, left, right = band.diagonal(s)
        to_later = dD_to[s:, :, :, window - s + 1]
        for kind, grad in enumerate((dP[:n, :, :, :, s] + dP_to[s:, :, :, window - s], dD_to[s:, :, :, window - s])):
            if kind == 1 and s == window:
                break
            rows = grad.transpose(2, 3).reshape(n, B, Q * S, Q)
            total = gradients[kind][:n]
            total += rows @ later.mT
            to_later += band.by_symbol(weights[kind][:n].mT @ rows)
            if kind == 1 and s > 2:
                to_left, to_right = dP[:n, :, :, :, 2:s], dD_to[s:, :, :, window - s + 2 :]
                to_left += (grad @ right.mT).reshape(*to_left.shape)
                to_right += (left.mT @ grad).reshape(*to_right.shape)
    if window > 1:
        pops = gradients.pop
        pops += dD_to[1:, :, :, window - 1].transpose(2, 3).reshape(*pops.shape)


def _earlier(rows: Number, falls: Tensor, S: int) -> Number:
    """(B, S, (window - 1) Q, m + 1): the rows (window - 1, B, QS, m + 1) in units of another mass, by symbol."""
    x, B, QS, width = rows.shape
    scale: Number = Extended.exp(falls) if isinstance(rows, Extended) else falls.exp()
    scaled = (rows * scale[:, :, None, None]).reshape(x, B, QS // S, S, width)
    return scaled.permute(1, 3, 0, 2, 4).reshape(B, S, x * (QS // S), width)


def _fill(steps: Tensor, values: Tensor, history: Tensor, window: int, extended: bool) -> Rows:
    """All rows, those of `history` first."""
    B, _, Q, S = steps.shape[:4]
    T = values.shape[1]
    known = Rows.split(history, Q * S, extended)
    numbers = known.numbers.new_zeros(window + T, *known.numbers.shape[1:])
    numbers[:window] = known.numbers
    pushable = _with_one(values, numbers)
    logs = torch.cat([known.logs, known.logs.new_zeros(T, B)])
    for first, end, needed in _segments(steps, T, window):
        weights = _weights(steps[:, needed], extended)
        band = _fill_band(weights, Q, window)
        before = weights.push.shape[0] - (end - first)  # steps of the segment that give no new row
        for t in range(first, end):
            at = before + t - first
            x, last = t + window, numbers[t + window - 1]
            falls = _falls(logs, t, window)
            inner = band.P_to[at + 1].reshape(B, S, (window - 1) * Q, Q)
            returned = inner.mT @ _earlier(numbers[t : x - 1], falls, S)  # (B, S, Q, m + 1)
            row = weights.replace[at].mT @ last + (weights.push[at].mT @ last[..., -1:]) * pushable[t]
            row = row + returned.transpose(1, 2).reshape(*row.shape)
            mass = row[..., -1].sum(1)
            if isinstance(mass, Extended):
                alive = mass.mantissa > 0
                mass.mantissa = mass.mantissa.where(alive, 0.5)
                mass.exponent = mass.exponent.where(alive, 1.0)
            numbers[x] = row / mass[:, None, None]
            logs[x] = mass.log()
    return Rows(numbers, logs)


def _falls(logs: Tensor, t: int, window: int) -> Tensor:
    """(window - 1, B): ln(M_k / M_x) for the window - 1 rows k before row x = t + window - 1."""
    later = logs[t + 1 : t + window]
    return -later.flip(0).cumsum(0).flip(0)


def _unfill(grad: Tensor, steps: Tensor, values: Tensor, rows: Rows, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of steps, values and history. Gradients of rows are those of all runs, times the mass of the row."""
    B, _, Q, S = steps.shape[:4]
    QS, T = Q * S, values.shape[1]
    numbers, logs = rows
    extended = isinstance(numbers, Extended)
    d_rows = numbers.new_zeros(*numbers.shape)
    given = grad[..., :-1].unflatten(-1, (QS, -1)).transpose(0, 1)
    d_rows[window:] = Extended.of(given) if extended else given
    pushable = _with_one(values, numbers)
    d_values = values.new_zeros(values.shape, dtype=torch.float64)
    d_steps = steps.new_zeros(steps.shape, dtype=torch.float64)
    for first, end, needed in reversed(_segments(steps, T, window)):
        weights = _weights(steps[:, needed], extended)
        band = _fill_band(weights, Q, window)
        gradients = Steps(*(x.new_zeros(*x.shape) for x in weights))
        dP_to = band.P_to.new_zeros(*band.P_to.shape)
        before = weights.push.shape[0] - (end - first)
        for t in range(end - 1, first - 1, -1):
            at, x = before + t - first, t + window
            scale = Extended.exp(-logs[x]) if extended else (-logs[x]).exp()
            row = d_rows[x]  # in units of the mass of this row, then of the row before
            moved, last = row * scale[:, None, None], numbers[x - 1]
            pushes = (moved * pushable[t]).sum(-1, keepdim=True)  # (B, QS, 1)
            gradients.push[at] = last[..., -1:] @ pushes.mT
            gradients.replace[at] = last @ moved.mT
            pushed = weights.push[at].mT @ last[..., -1:]  # (B, QS, 1)
            to_value = (pushed * moved).sum(1)
            d_values[:, t] = (to_value.to_tensor() if isinstance(to_value, Extended) else to_value)[:, :-1]
            before_it = d_rows[x - 1]
            before_it += weights.replace[at] @ moved
            alpha = before_it[..., -1:]
            alpha += weights.push[at] @ pushes
            falls = _falls(logs, t, window)
            ended = moved.reshape(B, Q, S, moved.shape[2]).transpose(1, 2)  # (B, S, Q, m + 1)
            dP_to[at + 1] = (_earlier(numbers[t : x - 1], falls, S) @ ended.mT).reshape(*dP_to.shape[1:])
            back = band.P_to[at + 1].reshape(B, S, (window - 1) * Q, Q) @ ended
            back = back.reshape(B, S, window - 1, Q, back.shape[3]).permute(2, 0, 3, 1, 4)
            factor = Extended.exp(falls) if extended else falls.exp()
            earlier = d_rows[t : x - 1]
            earlier += back.reshape(*earlier.shape) * factor[:, :, None, None]
        _unfill_band(weights, band, dP_to, gradients)
        d_steps[:, needed] += join_transitions(*log_gradients(weights, gradients, Q))
    d_history = d_rows[:window]
    d_history = d_history.to_tensor() if isinstance(d_history, Extended) else d_history
    zeros = torch.zeros_like(logs[:window])
    return d_steps, d_values, torch.cat([d_history.flatten(2), zeros[..., None]], -1).transpose(0, 1)
