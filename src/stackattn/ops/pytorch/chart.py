"""The chart of docs/maths.md in plain PyTorch: per step, five kernel launches forward and six backward.

The code is generic in the type `Number`: a float64 tensor (fast, but with a limited range) or `Extended` (slow, with an
unlimited range). The gradients are the same recurrences in reverse order. Products are written directly to their place
in the chart, because on a GPU the number of launches determines the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .extended import Extended, add, multiply

Number = Any  # a float64 Tensor, or an Extended, which has the same interface


class Steps(NamedTuple):
    """Transition weights (or their gradients), time first: step t of the chart is index t - 1."""

    push: Number  # (n, B, QS, QS) from (q, x) to (r, y)
    replace: Number  # (n, B, QS, QS)
    pop: Number  # (n, B, QS, Q)


class Chart:
    """The charts of a batch over the time points 0..n, with C = (n + 1) * Q columns (t, r), in one block of memory.

    Each array has two kinds of rows: P and D in `PD`, F and U in `FU`. The order of the axes avoids copies in the
    matrix products: the rows (j, p) of one kind, symbol and sequence are evenly spaced (`by_symbol`), and so are the
    rows (p, kind, w) of one time point and sequence (`by_time`).
    """

    def __init__(self, memory: Number, n: int, B: int, Q: int, S: int):
        self.memory = memory  # (Chart.size(n, B, Q, S),), initially zero
        self.axes = n + 1, Q, S, B
        rows, C = (n + 1) * Q * 2 * S * B, (n + 1) * Q
        # (n + 1, Q, 2, S, B, C) by j, p, kind, w, sequence, (t, r). The first kind is P and the second D.
        self.PD = memory[: rows * C].reshape(n + 1, Q, 2, S, B, C)
        # (n + 1, Q, 2, S, B, n + 2) by t, r, kind, y, sequence, and the element on top: column 1 is the bottom element,
        # column t + 1 the one that step t pushed. The first kind is F; its column 0 is the sum alpha, which has nearly
        # the same recurrence. Column 0 of the second kind, U, is what step t pushes; its other columns are not used.
        self.FU = memory[rows * C :].reshape(n + 1, Q, 2, S, B, n + 2)

    @staticmethod
    def size(n: int, B: int, Q: int, S: int) -> int:
        return (n + 1) * Q * 2 * S * B * ((n + 1) * Q + n + 2)

    @property
    def F(self) -> Number:
        """(n + 1, Q, S, B, n + 2), a view"""
        return self.FU[:, :, 0]


def by_symbol(x: Number, kind: int) -> Number:
    """(times, Q, 2, S, B, columns) -> (S B, times Q, columns), a view of one kind"""
    times, Q, _, S, B, columns = x.shape
    return x[:, :, kind].reshape(times * Q, S * B, columns).transpose(0, 1)


def by_time(x: Number) -> Number:
    """(times, Q, 2, S, B, columns) -> (times, B, 2 QS, columns), a view"""
    times, Q, _, S, B, columns = x.shape
    return x.reshape(times, 2 * Q * S, B, columns).transpose(1, 2)


def _pops(PD: Number) -> Number:
    """D[t - 1 -> t] for t = 2..n as (n - 1, B, Q, S, Q), a view; the bottom element is never popped."""
    times, Q, _, S, B, _ = PD.shape
    return PD[:, :, 1].reshape(times, Q, S, B, times, Q).diagonal(1, 0, 4).permute(4, 2, 0, 1, 3)[1:]


def fill(steps: Steps, Q: int, superposition: bool = False) -> Chart:
    n, B, QS, _ = steps.push.shape
    chart = Chart(steps.push.new_zeros(Chart.size(n, B, Q, QS // Q)), n, B, Q, QS // Q)
    _fill_P_and_D(steps, chart)
    _fill_F(steps, chart, superposition)
    return chart


def _fill_P_and_D(steps: Steps, chart: Chart) -> None:
    times, Q, S, B = chart.axes
    n, C = times - 1, times * Q
    P, D, PD = by_symbol(chart.PD, 0), by_symbol(chart.PD, 1), by_time(chart.PD)
    _pops(chart.PD)[...] = steps.pop.reshape(n, B, Q, S, Q)[1:]
    moves = _P_and_D_from_D(steps, Q)
    for j in range(n - 2, -1, -1):
        now, later = slice(j * Q, (j + 1) * Q), slice((j + 2) * Q, C)
        multiply(moves[j], PD[j + 1, :, :, later], out=PD[j, :, :, later])
        if j > 0:  # the bottom element is never popped: D[0] is not used
            multiply(P[:, now, later], D[:, later, later], out=D[:, now, later], accumulate=True)


def _fill_F(steps: Steps, chart: Chart, superposition: bool) -> None:
    times, Q, _, B = chart.axes
    n = times - 1
    P, F, FU = by_symbol(chart.PD, 0), by_symbol(chart.FU, 0), by_time(chart.FU)
    if superposition:  # alpha is 1
        chart.F.diagonal(1, 0, 4)[..., 1:] = steps.push.reshape(n, B, 1, 1).permute(2, 3, 1, 0)
        _set_to_one(chart.F[..., 0])
    else:
        _set_to_one(chart.F[0, 0, 0, :, :2])
    moves = _F_and_U_from_F(steps, Q)
    for t in range(1, times):
        now, inner, old = slice(t * Q, (t + 1) * Q), slice(0, (t - 1) * Q), slice(int(superposition), t + 1)
        multiply(moves[t - 1], FU[t - 1, :, :, old], out=FU[t, :, :, old])
        multiply(P[:, inner, now].mT, F[:, inner, old], out=F[:, now, old], accumulate=True)
        if not superposition:
            both = chart.F[t, ..., 0 : t + 2 : t + 1]  # alpha, and the new element
            both += chart.FU[t, :, 1, ..., :1]


def walk_back(steps: Steps, chart: Chart, dF: Number, superposition: bool = False) -> Steps:
    """Gradients with respect to the transition weights, from those with respect to F.

    Rows are processed in reverse order; each row sums its gradient from the completed rows that used it.
    """
    Q = chart.axes[1]
    dFU = dF.new_zeros(*chart.FU.shape)
    dFU[:, :, 0] = dF
    F_moves = _walk_back_F(steps, chart, dFU, superposition)
    D_moves, pop = _walk_back_P_and_D(steps, chart, dFU)
    replace, push = (_block(F_moves, Q, kind, 0).mT for kind in (0, 1))
    return Steps(push + _block(D_moves, Q, 0, 1), replace + _block(D_moves, Q, 1, 1), pop)


def _walk_back_F(steps: Steps, chart: Chart, dFU: Number, superposition: bool) -> Number:
    """The gradients of `_F_and_U_from_F`; completes dFU."""
    times, Q = chart.axes[:2]
    n, C = times - 1, times * Q
    P, dF, dFU_at = by_symbol(chart.PD, 0), by_symbol(dFU, 0), by_time(dFU)
    moves = _F_and_U_from_F(steps, Q)
    for t in range(n, 0, -1):
        now, later, old = slice(t * Q, (t + 1) * Q), slice((t + 2) * Q, C), slice(int(superposition), t + 2)
        if t < n:
            multiply(moves[t].mT, dFU_at[t + 1, :, :, old], out=dFU_at[t, :, :, old], accumulate=True)
            multiply(P[:, now, later], dF[:, later, old], out=dF[:, now, old], accumulate=True)
        if superposition:
            dFU[t, :, 1, ..., 0] = dFU[t, :, 0, ..., t + 1]
        else:
            add(dFU[t, :, 0, ..., 0], dFU[t, :, 0, ..., t + 1], out=dFU[t, :, 1, ..., 0])
    return _products_of_rows(dFU_at[1:], by_time(chart.FU)[:-1])


def _walk_back_P_and_D(steps: Steps, chart: Chart, dFU: Number) -> tuple[Number, Number]:
    """The gradients of `_P_and_D_from_D` and of pop."""
    times, Q, S, B = chart.axes
    n, C = times - 1, times * Q
    dPD = dFU.new_zeros(*chart.PD.shape)
    P, D, dP, dD, dPD_at = (*(by_symbol(x, kind) for x in (chart.PD, dPD) for kind in (0, 1)), by_time(dPD))
    multiply(by_symbol(chart.FU, 0), by_symbol(dFU, 0).mT, out=dP)  # columns below j + 2 are not used
    moves = _P_and_D_from_D(steps, Q)
    for j in range(1, n):  # the bottom element is never popped: dD[0] is zero
        now, tail, later = slice(j * Q, (j + 1) * Q), slice((j + 1) * Q, C), slice((j + 2) * Q, C)
        earlier = slice(0, (j - 1) * Q)
        multiply(moves[j - 1].mT, dPD_at[j - 1, :, :, tail], out=dPD_at[j, :, :, tail], accumulate=True)
        multiply(P[:, earlier, now].mT, dD[:, earlier, tail], out=dD[:, now, tail], accumulate=True)
        multiply(dD[:, now, later], D[:, later, later].mT, out=dP[:, now, later], accumulate=True)
    pop = dFU.new_zeros(n, B, Q, S, Q)
    pop[1:] = _pops(dPD)
    return _products_of_rows(dPD_at[:-1], by_time(chart.PD)[1:]), pop.reshape(n, B, Q * S, Q)


# A move is a matrix (2 QS, 2 QS) with rows (state, kind, symbol) of a result and columns (state, kind, symbol) of its
# source at the neighbouring time point. Its columns of the kind that is not the source are zero.


def _P_and_D_from_D(steps: Steps, Q: int) -> Number:
    """(n, B, 2 QS, 2 QS): P[j] pushes and D[j] replaces at step j + 1, and both continue with D[j + 1]."""
    return _moves(steps.push, steps.replace, Q, source=1)


def _F_and_U_from_F(steps: Steps, Q: int) -> Number:
    """(n, B, 2 QS, 2 QS): F[t] replaces and U[t] pushes at step t, and both continue from F[t - 1]."""
    return _moves(steps.replace.mT, steps.push.mT, Q, source=0)


def _moves(first: Number, second: Number, Q: int, source: int) -> Number:
    n, B, QS, _ = first.shape
    moves = first.new_zeros(n, B, 2 * QS, 2 * QS)
    for kind, x in enumerate((first, second)):
        _block_view(moves, Q, kind, source)[...] = x.reshape(n, B, Q, QS // Q, Q, QS // Q)
    return moves


def _block(moves: Number, Q: int, result: int, source: int) -> Number:
    """(n, B, QS, QS): the entries of one kind of result and source."""
    n, B, size, _ = moves.shape
    return _block_view(moves, Q, result, source).reshape(n, B, size // 2, size // 2)


def _block_view(moves: Number, Q: int, result: int, source: int) -> Number:
    """(n, B, Q, S, Q, S)"""
    n, B, size, _ = moves.shape
    S = size // (2 * Q)
    return moves.reshape(n, B, Q, 2, S, Q, 2, S)[:, :, :, result, :, :, source]


def _products_of_rows(a: Number, b: Number) -> Number:
    """(n, B, rows, columns) twice -> (n, B, rows, rows): a @ b.mT, one product for each index of the shorter axis.

    One product over both axes would copy a and b, because their first two axes are not evenly spaced.
    """
    n, B, rows, _ = a.shape
    out = a.new_zeros(n, B, rows, rows)
    for i in range(min(n, B)):
        at = i if n < B else (slice(None), i)
        multiply(a[at], b[at].mT, out=out[at])
    return out


def _set_to_one(x: Number) -> None:
    if isinstance(x, Extended):
        x.mantissa.fill_(0.5)
        x.exponent.fill_(1.0)
    else:
        x.fill_(1.0)
