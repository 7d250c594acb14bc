"""The chart of docs/maths.md in plain PyTorch, with a few matrix products per step.

The code is generic in the type `Number`: a float64 tensor (fast, but with a limited range) or `Extended` (slow, with an
unlimited range). The gradients are the same recurrences in reverse order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .extended import Extended

Number = Any  # a float64 Tensor, or an Extended, which has the same interface


class Steps(NamedTuple):
    """Transition weights (or their gradients), time first: step t of the chart is index t - 1."""

    push: Number  # (n, B, QS, QS) from (q, x) to (r, y)
    replace: Number  # (n, B, QS, QS)
    pop: Number  # (n, B, QS, Q)


class Chart:
    """The charts of a batch over the time points 0..n, with C = (n + 1) * Q columns (t, r), in one block of memory.

    The order of the axes avoids copies in the matrix products: the rows (j, p) of one symbol and sequence are evenly
    spaced (`by_symbol`), and so are the rows (p, w) of one time point and sequence (`by_time`).
    """

    def __init__(self, memory: Number, n: int, B: int, Q: int, S: int):
        self.memory = memory  # (Chart.size(n, B, Q, S),), initially zero
        self.axes = n + 1, Q, S, B
        rows, C = (n + 1) * Q * S * B, (n + 1) * Q
        self.PD = memory[: rows * 2 * C].reshape(2, *self.axes, C)
        self.P, self.D = self.PD[0], self.PD[1]  # (n + 1, Q, S, B, C) by j, p, w, sequence, (t, r)
        # (n + 1, Q, S, B, n + 2) by t, r, y, sequence, and the element on top: column 1 is the bottom element, column
        # t + 1 the one that step t pushed. Column 0 is their sum alpha, which has nearly the same recurrence.
        self.F = memory[rows * 2 * C :].reshape(*self.axes, n + 2)

    @staticmethod
    def size(n: int, B: int, Q: int, S: int) -> int:
        return (n + 1) * Q * S * B * (2 * (n + 1) * Q + n + 2)

    def by_symbol(self, x: Number) -> Number:
        """(S B, C, columns), a view"""
        times, Q, S, B = self.axes
        return x.reshape(times * Q, S * B, x.shape[-1]).transpose(0, 1)

    def by_time(self, x: Number) -> Number:
        """(n + 1, B, QS, columns), a view"""
        times, Q, S, B = self.axes
        return x.reshape(times, Q * S, B, x.shape[-1]).transpose(1, 2)

    def rows_by_symbol(self, product: Number) -> Number:
        """(S B, Q, columns) -> (Q, S, B, columns)"""
        _, Q, S, B = self.axes
        return product.transpose(0, 1).reshape(Q, S, B, product.shape[-1])

    def rows_by_time(self, product: Number) -> Number:
        """(B, kinds QS, columns) -> (kinds, Q, S, B, columns)"""
        _, Q, S, B = self.axes
        return product.transpose(0, 1).reshape(product.shape[1] // (Q * S), Q, S, B, product.shape[-1])

    def pops(self, D: Number) -> Number:
        """D[t - 1 -> t] for t = 2..n as (n - 1, B, Q, S, Q), a view; the bottom element is never popped."""
        times, Q, S, B = self.axes
        return D.reshape(times, Q, S, B, times, Q).diagonal(1, 0, 4).permute(4, 2, 0, 1, 3)[1:]


def fill(steps: Steps, Q: int, superposition: bool = False) -> Chart:
    n, B, QS, _ = steps.push.shape
    chart = Chart(steps.push.new_zeros(Chart.size(n, B, Q, QS // Q)), n, B, Q, QS // Q)
    _fill_D_and_P(steps, chart)
    _fill_F(steps, chart, superposition)
    return chart


def _fill_D_and_P(steps: Steps, chart: Chart) -> None:
    times, Q, S, B = chart.axes
    n, C = times - 1, times * Q
    P, D, D_at = chart.by_symbol(chart.P), chart.by_symbol(chart.D), chart.by_time(chart.D)
    chart.pops(chart.D)[...] = steps.pop.reshape(n, B, Q, S, Q)[1:]
    moves = _stacked(steps.push, steps.replace)
    for j in range(n - 2, -1, -1):
        now, later = slice(j * Q, (j + 1) * Q), slice((j + 2) * Q, C)
        pushed_or_kept = chart.rows_by_time(moves[j] @ D_at[j + 1, :, :, later])
        if j == 0:  # the bottom element is never popped
            chart.P[0, ..., later] = pushed_or_kept[0]
            break
        chart.PD[:, j, ..., later] = pushed_or_kept
        row = chart.D[j, ..., later]
        row += chart.rows_by_symbol(P[:, now, later] @ D[:, later, later])


def _fill_F(steps: Steps, chart: Chart, superposition: bool) -> None:
    times, Q = chart.axes[:2]
    P, F, F_at = chart.by_symbol(chart.P), chart.by_symbol(chart.F), chart.by_time(chart.F)
    if superposition:
        chart.F[..., 0] = _one(chart.F)
    else:
        chart.F[0, 0, 0, :, :2] = _one(chart.F)
    moves = _stacked(steps.push.mT, steps.replace.mT)
    for t in range(1, times):
        now, inner, old = slice(t * Q, (t + 1) * Q), slice(0, (t - 1) * Q), slice(0, t + 1)
        pushed, kept = chart.rows_by_time(moves[t - 1] @ F_at[t - 1, :, :, old])  # (Q, S, B, t + 1) each
        row = chart.F[t, ..., old]
        returned = chart.rows_by_symbol(P[:, inner, now].mT @ F[:, inner, old])
        if superposition:
            row[..., 1:] = (kept + returned)[..., 1:]
            chart.F[t, ..., t + 1] = pushed[..., 0]
        else:
            row[...] = kept + returned
            both = chart.F[t, ..., 0 : t + 2 : t + 1]  # alpha, and the new element
            both += pushed[..., :1]


def walk_back(steps: Steps, chart: Chart, dF: Number, superposition: bool = False) -> Steps:
    """Gradients with respect to the transition weights, from those with respect to F, which are overwritten.

    Rows are processed in reverse order; each row sums its gradient from the completed rows that used it.
    """
    QS = chart.axes[1] * chart.axes[2]
    moves = _stacked(steps.push, steps.replace)
    push, replace = _walk_back_F(moves, chart, dF, superposition)
    both, pop = _walk_back_D_and_P(moves, chart, dF)
    return Steps(push + both[:, :, :QS], replace + both[:, :, QS:], pop)


def _walk_back_F(moves: Number, chart: Chart, dF: Number, superposition: bool) -> tuple[Number, Number]:
    """The contributions of F to the gradients of push and replace; completes dF."""
    times, Q, S, B = chart.axes
    n, QS, C = times - 1, Q * S, times * Q
    P, dF_of = chart.by_symbol(chart.P), chart.by_symbol(dF)
    F_at, dF_at = chart.by_time(chart.F), chart.by_time(dF)
    replace = dF.new_zeros(n, B, QS, QS)
    for t in range(n, 0, -1):
        now, later, old = slice(t * Q, (t + 1) * Q), slice((t + 2) * Q, C), slice(0, t + 2)
        if t < n:
            pushed, kept = chart.rows_by_time(moves[t] @ dF_at[t + 1, :, :, : t + 3])
            row = dF[t, ..., old]
            row += kept[..., old] + chart.rows_by_symbol(P[:, now, later] @ dF_of[:, later, old])
            if not superposition:
                alpha = row[..., 0]
                alpha += pushed[..., :: t + 2].sum(-1)  # from alpha, and from the new element
        replace[t - 1] = F_at[t - 1, :, :, : t + 1] @ dF_at[t, :, :, : t + 1].mT
    pushed = dF.diagonal(1, 0, 4)[..., 1:] + dF[1:, ..., 0].permute(1, 2, 3, 0)  # (Q, S, B, n)
    return F_at[:-1, :, :, :1] * pushed.permute(3, 2, 0, 1).reshape(n, B, 1, QS), replace


def _walk_back_D_and_P(moves: Number, chart: Chart, dF: Number) -> tuple[Number, Number]:
    """The contributions of D and P to the gradients of push and replace, stacked, and of pop."""
    times, Q, S, B = chart.axes
    n, QS, C = times - 1, Q * S, times * Q
    dD = dF.new_zeros(*chart.axes, C)
    P, D, F, dD_of, dF_of = (chart.by_symbol(x) for x in (chart.P, chart.D, chart.F, dD, dF))
    D_at = chart.by_time(chart.D)
    row = dF.new_zeros(2, Q, S, B, C)  # row j of dP and of dD
    row_at = row.reshape(2 * QS, B, C).transpose(0, 1)
    both = dF.new_zeros(n, B, 2 * QS, QS)
    for j in range(n):
        now, tail, later = slice(j * Q, (j + 1) * Q), slice((j + 1) * Q, C), slice((j + 2) * Q, C)
        earlier, old = slice(0, max(j - 1, 0) * Q), slice(0, j + 2)
        dP = F[:, now, old] @ dF_of[:, later, old].mT
        if j > 0:  # the bottom element is never popped
            given = chart.rows_by_time(moves[j - 1].mT @ row_at[:, :, tail])[0]  # from row j - 1
            dD[j, ..., tail] = given + chart.rows_by_symbol(P[:, earlier, now].mT @ dD_of[:, earlier, tail])
            row[1, ..., later] = dD[j, ..., later]
            dP = dP + dD_of[:, now, later] @ D[:, later, later].mT
        row[0, ..., later] = chart.rows_by_symbol(dP)
        both[j] = row_at[:, :, later] @ D_at[j + 1, :, :, later].mT
    pop = dF.new_zeros(n, B, Q, S, Q)
    pop[1:] = chart.pops(dD)
    return both, pop.reshape(n, B, QS, Q)


def _stacked(push: Number, replace: Number) -> Number:
    """(n, B, 2 QS, QS)"""
    n, B, QS, _ = push.shape
    both = push.new_zeros(n, B, 2 * QS, QS)
    both[:, :, :QS], both[:, :, QS:] = push, replace
    return both


def _one(like: Number) -> Number:
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return Extended.of(one) if isinstance(like, Extended) else one
