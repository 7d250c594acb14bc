"""The charts and rows of the windowed nondeterministic stack in plain PyTorch (docs/maths.md, section 10).

Rows are computed in segments, so that only the band of one segment is in memory. Like chart.py, the code is generic in
`Number`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..transitions import join_transitions, split_transitions
from .chart import Number, Steps
from .extended import Extended
from .steps import log_gradients, scaled_steps

_SHORTEST_SEGMENT = 256  # steps; longer segments need fewer calls


class Rows(NamedTuple):
    """Rows of consecutive time points, time first."""

    numbers: Number  # (x, B, QS, m + 1)
    logs: Tensor  # (x, B): ln(M_t / M_{t-1})

    @classmethod
    def split(cls, rows: Tensor, QS: int, extended: bool) -> Rows:
        """From (B, x, QS (m + 2) + 1), the layout of the operator."""
        return cls(times_power(*units(rows, QS), extended=extended), rows[..., -1].T)

    def joined(self) -> Tensor:
        numbers, alpha = self.numbers, self.numbers[..., -1:]
        if isinstance(numbers, Extended):
            exponents = alpha.exponent.where(alpha.mantissa != 0, 0.0)
            scaled = Extended(numbers.mantissa, numbers.exponent - exponents).to_tensor()
        else:
            exponents = torch.frexp(alpha).exponent.clamp(min=-1000).double()
            scaled = torch.ldexp(numbers, -exponents)
        return torch.cat([torch.cat([scaled, exponents], -1).flatten(2), self.logs[..., None]], -1).transpose(0, 1)

    def reached(self) -> Tensor:
        """(x, B, QS, 1): which entries have a run. Gradients of the others have no effect, but may be out of range."""
        alpha = self.numbers[..., -1:]
        return (alpha.mantissa if isinstance(alpha, Extended) else alpha) != 0


def units(rows: Tensor, QS: int) -> tuple[Tensor, Tensor]:
    """Numbers (x, B, QS, m + 1) and exponents (x, B, QS, 1) of rows (B, x, QS (m + 2) + 1)."""
    entries = rows[..., :-1].unflatten(-1, (QS, -1)).transpose(0, 1)
    return entries[..., :-1], entries[..., -1:]


def times_power(x: Tensor, exponents: Tensor, *, extended: bool) -> Number:
    return Extended.normal(x, exponents) if extended else torch.ldexp(x, exponents)


def shortest_segment(window: int) -> int:
    """Length of a segment for which it costs little to recompute the band of the window - 1 steps before it."""
    return max(4 * window, _SHORTEST_SEGMENT)


def segments(steps: Tensor, T: int, window: int, size: int) -> list[tuple[int, int, slice]]:
    """(first new row, last + 1, steps that these rows depend on) for each segment of up to `size` rows."""
    known = steps.shape[1] - T
    return [
        (a, min(a + size, T), slice(max(known + a - window + 1, 0), known + min(a + size, T)))
        for a in range(0, T, size)
    ]


def segment_weights(steps: Tensor, extended: bool) -> Steps:
    return scaled_steps(*split_transitions(steps), extended=extended)


def with_one(values: Tensor, like: Number) -> Number:
    """(T, B, 1, m + 1): the values with a 1 appended, which is what a run of weight 1 that pushes adds to a row."""
    values = torch.cat([values.double(), values.new_ones(*values.shape[:2], 1).double()], -1).transpose(0, 1)[
        :, :, None
    ]
    return Extended.of(values) if isinstance(like, Extended) else values


class _Band:
    """The charts D and P of a segment of N steps, only for t - k <= window, with axes for matrix products."""

    def __init__(self, like: Number, N: int, B: int, Q: int, S: int, window: int):
        self.sizes = N, B, Q, S, window
        self.P = like.new_zeros(N + 1, B, S, Q, window + 1, Q)  # by start: [k, b, y, u, t - k, r]
        self.P_to = like.new_zeros(N + 1, B, S, window - 1, Q, Q)  # by end: [t, b, y, window - (t - k), u, r]
        self.D_to = like.new_zeros(N + 1, B, S, window, Q, Q)  # by end: [t, b, w, window - (t - j), p, r]

    def diagonal(self, s: int) -> tuple[Number, Number, Number]:
        """For all j: D[j+1 -> j+s] as (n, B, QS, Q); P[j -> k] and D[k -> j+s], k = j+2..j+s-1, as two matrices."""
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


def _walk_back_band(weights: Steps, band: _Band, dP_to: Number, gradients: Steps) -> None:
    """Add the gradients of the weights to `gradients`, from those of `band.P_to`."""
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
    """(B, S, (window - 1) Q, m + 1): the rows (window - 1, B, QS, m + 1), times exp(falls), by symbol."""
    x, B, QS, width = rows.shape
    scale: Number = Extended.exp(falls) if isinstance(rows, Extended) else falls.exp()
    scaled = (rows * scale[:, :, None, None]).reshape(x, B, QS // S, S, width)
    return scaled.permute(1, 3, 0, 2, 4).reshape(B, S, x * (QS // S), width)


def fill(steps: Tensor, values: Tensor, history: Tensor, window: int, extended: bool = False) -> Rows:
    """All rows, those of `history` first."""
    B, _, Q, S = steps.shape[:4]
    T = values.shape[1]
    known = Rows.split(history, Q * S, extended)
    numbers = known.numbers.new_zeros(window + T, *known.numbers.shape[1:])
    numbers[:window] = known.numbers
    pushable = with_one(values, numbers)
    logs = torch.cat([known.logs, known.logs.new_zeros(T, B)])
    for first, end, needed in segments(steps, T, window, shortest_segment(window)):
        weights = segment_weights(steps[:, needed], extended)
        band = _fill_band(weights, Q, window)
        before = weights.push.shape[0] - (end - first)  # steps of the segment that give no new row
        for t in range(first, end):
            at = before + t - first
            x, last = t + window, numbers[t + window - 1]
            falls = falls_before(logs, t, window)
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


def falls_before(logs: Tensor, t: int, window: int) -> Tensor:
    """(window - 1, B): ln(M_k / M_x) for the window - 1 rows k before row x = t + window - 1."""
    later = logs[t + 1 : t + window]
    return -later.flip(0).cumsum(0).flip(0)


def walk_back(
    grad: Tensor, steps: Tensor, values: Tensor, rows: Rows, exponents: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of steps, values and history. `d_rows` are the gradients of unnormalised rows, times their masses.

    `exponents` (window + T, B, QS, 1) are the exponents of the rows to which `grad` and the gradient of history belong.
    """
    B, _, Q, S = steps.shape[:4]
    QS, T = Q * S, values.shape[1]
    numbers, logs = rows
    extended = isinstance(numbers, Extended)
    d_rows = numbers.new_zeros(*numbers.shape)
    reached = rows.reached()
    d_rows[window:] = times_power(units(grad, QS)[0], -exponents[window:], extended=extended)
    pushable = with_one(values, numbers)
    d_values = values.new_zeros(values.shape, dtype=torch.float64)
    d_steps = steps.new_zeros(steps.shape, dtype=torch.float64)
    for first, end, needed in reversed(segments(steps, T, window, shortest_segment(window))):
        weights = segment_weights(steps[:, needed], extended)
        band = _fill_band(weights, Q, window)
        gradients = Steps(*(x.new_zeros(*x.shape) for x in weights))
        dP_to = band.P_to.new_zeros(*band.P_to.shape)
        before = weights.push.shape[0] - (end - first)
        for t in range(end - 1, first - 1, -1):
            at, x = before + t - first, t + window
            scale = Extended.exp(-logs[x]) if extended else (-logs[x]).exp()
            row = _only(d_rows[x], reached[x])  # in units of the mass of this row, then of the row before
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
            falls = falls_before(logs, t, window)
            ended = moved.reshape(B, Q, S, moved.shape[2]).transpose(1, 2)  # (B, S, Q, m + 1)
            dP_to[at + 1] = (_earlier(numbers[t : x - 1], falls, S) @ ended.mT).reshape(*dP_to.shape[1:])
            back = band.P_to[at + 1].reshape(B, S, (window - 1) * Q, Q) @ ended
            back = back.reshape(B, S, window - 1, Q, back.shape[3]).permute(2, 0, 3, 1, 4)
            factor = Extended.exp(falls) if extended else falls.exp()
            earlier = d_rows[t : x - 1]
            earlier += back.reshape(*earlier.shape) * factor[:, :, None, None]
        _walk_back_band(weights, band, dP_to, gradients)
        d_steps[:, needed] += join_transitions(*log_gradients(weights, gradients, Q))
    return d_steps, d_values, joined_gradients(_only(d_rows[:window], reached[:window]), exponents[:window])


def joined_gradients(d_rows: Number, exponents: Tensor) -> Tensor:
    """Gradients (B, x, QS (m + 2) + 1) of rows in units of 2^exponents; exponents and logarithms are constants."""
    if isinstance(d_rows, Extended):
        scaled = Extended(d_rows.mantissa, d_rows.exponent + exponents).to_tensor()
    else:
        scaled = torch.ldexp(d_rows, exponents)
    return pad(pad(scaled, (0, 1)).flatten(2), (0, 1)).transpose(0, 1)


def _only(rows: Number, reached: Tensor) -> Number:
    """`rows`, with zeros in place of entries without runs."""
    if isinstance(rows, Extended):
        return Extended.normal(rows.mantissa.where(reached, 0.0), rows.exponent)
    return rows.where(reached, 0.0)
