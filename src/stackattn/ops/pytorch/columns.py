"""The chart one column at a time, in plain PyTorch, for stacks that are extended step by step.

A state is a flat array for each sequence (`Layout`), with the same layout as in the kernel's columns.h. A step is one
triangular solve and a few matrix products.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ..dispatch import kernel
from ..immediate import reads_values
from ..lengths import length_mask, without_padding
from .chart import Steps
from .operators import SMALLEST_MASS


def _padded(n):
    return (n + 7) // 8 * 8


class Layout(NamedTuple):
    """Positions of the entries of a state: column t = 1, 2, ... contains P, F, push and replace; see columns.h."""

    Q: int
    S: int

    def size(self, T: int) -> int:
        """Number of entries of a state of T steps, computed by the kernel if it is loaded."""
        return _size(self.Q, self.S, T)

    def positions(self, T: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """The position of each entry of `Dense`, without the batch axis, and whether the entry exists."""
        Q, S = self
        QS = Q * S

        def axis(size: int, dim: int, dims: int) -> Tensor:
            return torch.arange(size, device=device).reshape([-1 if d == dim else 1 for d in range(dims)])

        def p_row(t: Tensor) -> Tensor:
            return _padded((t - 1) * Q)

        def f_row(t: Tensor) -> Tensor:
            return _padded(t + 1)

        steps = torch.arange(1, T + 1, device=device)
        sizes = QS * (p_row(steps) + f_row(steps) + 2 * _padded(QS))
        offset = torch.cat([sizes.new_zeros(2), sizes.cumsum(0)])  # of column t; there is no column 0

        w, j, p, t, r = (axis(size, dim, 5) for dim, size in enumerate((S, T + 1, Q, T + 1, Q)))
        P = offset[t] + (w * Q + r) * p_row(t) + j * Q + p
        found = [(P, (j <= t - 2).expand(P.shape))]
        y, i, t, r = (axis(size, dim, 4) for dim, size in enumerate((S, T + 1, T + 1, Q)))
        F = offset[t] + QS * p_row(t) + (y * Q + r) * f_row(t) + i
        found.append((F, ((i <= t) & (t > 0)).expand(F.shape)))
        t, q, x, r, y = (axis(size, dim, 5) for dim, size in enumerate((T, Q, S, Q, S)))
        t = t + 1
        push = offset[t] + QS * (p_row(t) + f_row(t)) + (r * S + y) * _padded(QS) + q * S + x
        everywhere = torch.ones_like(push, dtype=torch.bool)
        return [*found, (push, everywhere), (push + QS * _padded(QS), everywhere)]


@functools.cache
def _size(Q: int, S: int, T: int) -> int:
    return size_in_python(Q, S, T) if kernel is None else kernel.state_size(Q, S, T)


def size_in_python(Q: int, S: int, T: int) -> int:
    """The result of the kernel's `state_size`: columns 1..T, with each row padded to a multiple of 8 entries."""
    # Column t has Q S rows of (t - 1) Q entries, Q S rows of t + 1 entries, and two matrices of the transitions.
    QS = Q * S
    return QS * (8 * _sum_of_ceilings(T, Q, 0) + 8 * _sum_of_ceilings(T, 1, 2) + 2 * _padded(QS) * T)


def _sum_of_ceilings(n: int, a: int, b: int) -> int:
    """The sum of ceil((i * a + b) / 8) for i = 0..n-1: every 8 steps the terms grow by a."""
    whole, rest = divmod(n, 8)
    period = sum(-(-(i * a + b) // 8) for i in range(8))
    tail = sum(-(-(i * a + b) // 8) for i in range(rest))
    return whole * period + 8 * a * whole * (whole - 1) // 2 + tail + rest * whole * a


class Dense(NamedTuple):
    """A state (or its gradient) as tensors over the time points 0..T."""

    P: Tensor  # (B, S, T+1, Q, T+1, Q)
    F: Tensor  # (B, S, T+1, T+1, Q)
    push: Tensor  # (B, T, Q, S, Q, S)
    replace: Tensor  # (B, T, Q, S, Q, S)


def to_dense(state: Tensor, layout: Layout, T: int) -> Dense:
    """The dense form of a flat state (B, layout.size(T))."""
    positions = layout.positions(T, state.device)
    if state.shape[1] == 0:
        return Dense(*(state.new_zeros(state.shape[0], *at.shape) for at, _ in positions))
    return Dense(*(state[:, at.where(there, 0)].where(there, 0.0) for at, there in positions))


def to_flat(dense: Dense, layout: Layout, T: int) -> Tensor:
    """The flat form (B, layout.size(T)) of the first T steps of `dense`."""
    size = layout.size(T)
    state = dense.P.new_zeros(dense.P.shape[0], size + 1)  # the last column collects the entries that do not exist
    P, F, push, replace = dense
    parts = (P[:, :, : T + 1, :, : T + 1], F[:, :, : T + 1, : T + 1], push[:, :T], replace[:, :T])
    for x, (at, there) in zip(parts, layout.positions(T, state.device), strict=True):
        state[:, at.where(there, size)] = x
    return state[:, :size]


class Column(NamedTuple):
    """Intermediate results of one step: the linear system, its solution, and the previous column."""

    system: Tensor  # (B, N, N), unit upper triangular, N = (t - 1) Q S
    D: Tensor  # (B, t - 1, Q S, Q): D[j -> t] for j = 1..t-1
    alpha: Tensor  # (B, Q S) at t - 1
    on_top: Tensor  # (B, t, Q S): F[. -> t - 1]


def _column(dense: Dense, pop: Tensor, t: int, superposition: bool) -> Column:
    """Intermediate results of step t; `pop` is (B, Q S, Q)."""
    B, S, _, Q = dense.P.shape[:4]
    system = pop.new_zeros(B, t - 1, Q, S, t - 1, Q, S)
    system.diagonal(dim1=3, dim2=6).copy_(dense.P[:, :, 1:t, :, 1:t].permute(0, 2, 3, 4, 5, 1)).neg_()
    if t > 2:
        kept = dense.replace[:, 1 : t - 1].permute(0, 2, 3, 4, 5, 1)
        system.diagonal(offset=1, dim1=1, dim2=4).sub_(kept)
    N = (t - 1) * Q * S
    system = system.reshape(B, N, N)
    popped = pop.new_zeros(B, N, Q)
    popped[:, N - Q * S :] = pop[:, : min(N, Q * S)]
    D = torch.linalg.solve_triangular(system, popped, upper=True, unitriangular=True)
    on_top = dense.F[:, :, :t, t - 1].permute(0, 2, 3, 1).reshape(B, t, Q * S)
    alpha = torch.ones_like(on_top[:, 0]) if superposition else on_top.sum(1)
    return Column(system, D.reshape(B, t - 1, Q * S, Q), alpha, on_top)


def extend(
    state: Tensor, layout: Layout, before: int, steps: Steps, lengths: Tensor | None, superposition: bool
) -> tuple[Tensor, Tensor, bool]:
    """The state after `steps` (c, B, ...), their attention weights (B, c, i, Q, S), and `in_range`.

    Where values are not read (immediate.py), rows that are out of range are nan, and `in_range` is True.
    """
    (c, B), (Q, S) = steps.push.shape[:2], layout
    T = before + c
    dense = _grown(to_dense(state, layout, before), c, superposition)
    dense.push[:, before:] = steps.push.transpose(0, 1).reshape(B, c, Q, S, Q, S)
    dense.replace[:, before:] = steps.replace.transpose(0, 1).reshape(B, c, Q, S, Q, S)
    for t in range(before + 1, T + 1):
        step = t - before - 1
        column = _column(dense, steps.pop[step], t, superposition)
        inner = dense.push[:, : t - 1].reshape(B, t - 1, Q * S, Q * S) @ column.D  # (B, t - 1, Q S, Q)
        dense.P[:, :, : t - 1, :, t] = inner.reshape(B, t - 1, Q, S, Q).permute(0, 3, 1, 2, 4)
        kept = (column.on_top @ steps.replace[step]).reshape(B, t, Q, S).permute(0, 3, 1, 2)
        after = dense.F[:, :, :t, : t - 1].reshape(B, S, t, (t - 1) * Q)
        returned = after @ dense.P[:, :, : t - 1, :, t].reshape(B, S, (t - 1) * Q, Q)
        dense.F[:, :, :t, t] = kept + returned
        dense.F[:, :, t, t] = (column.alpha[:, None] @ steps.push[step]).reshape(B, Q, S).mT
    rows = dense.F[:, :, :, before + 1 :].permute(0, 3, 2, 4, 1)  # (B, c, T + 1, Q, S)
    if superposition:
        return to_flat(dense, layout, T), without_padding(rows[:, :, 1:], lengths), True
    mass = rows.sum((2, 3, 4), keepdim=True)
    in_range = mass >= SMALLEST_MASS
    if not reads_values(mass.device):
        return to_flat(dense, layout, T), without_padding((rows / mass).where(in_range, torch.nan), lengths), True
    if lengths is not None:
        in_range |= ~length_mask(lengths, c)[..., None, None, None]
    return to_flat(dense, layout, T), without_padding(rows / mass, lengths), bool(in_range.all())


def retract(
    state: Tensor,
    layout: Layout,
    before: int,
    steps: Steps,
    lengths: Tensor | None,
    superposition: bool,
    grad_weights: Tensor | None,
    grad_after: Tensor | None,
) -> tuple[Tensor, Steps]:
    """Gradients with respect to the state before the steps and to their weights; `state` is the state after them."""
    (c, B), (Q, S) = steps.push.shape[:2], layout
    T = before + c
    dense = to_dense(state, layout, T)
    if not superposition:
        dense.F[:, 0, 0, 0, 0] = 1.0
    grad = to_dense(torch.zeros_like(state) if grad_after is None else grad_after, layout, T)
    if grad_weights is not None:
        grad_weights = without_padding(grad_weights.double(), lengths)
        if superposition:
            grad.F[:, :, 1:, before + 1 :] += grad_weights.permute(0, 4, 2, 1, 3)
        else:
            rows = dense.F[:, :, :, before + 1 :].permute(0, 3, 2, 4, 1)
            mass = rows.sum((2, 3, 4), keepdim=True)
            mean = (grad_weights * rows / mass).sum((2, 3, 4), keepdim=True)
            grad.F[:, :, :, before + 1 :] += ((grad_weights - mean) / mass).permute(0, 4, 2, 1, 3)
    pop = torch.zeros_like(steps.pop)
    for t in range(T, before, -1):
        step = t - before - 1
        column = _column(dense, steps.pop[step], t, superposition)
        dF = grad.F[:, :, :t, t].permute(0, 2, 3, 1).reshape(B, t, Q * S)
        pushed = grad.F[:, :, t, t].mT.reshape(B, 1, Q * S)
        grad.push[:, t - 1] += (column.alpha[:, :, None] * pushed).reshape(B, Q, S, Q, S)
        grad.replace[:, t - 1] += (column.on_top.mT @ dF).reshape(B, Q, S, Q, S)
        below = dF @ steps.replace[step].mT
        if not superposition:
            below = below + pushed @ steps.push[step].mT
        grad.F[:, :, :t, t - 1] += below.reshape(B, t, Q, S).permute(0, 3, 1, 2)
        after = dense.F[:, :, :t, : t - 1].reshape(B, S, t, (t - 1) * Q)
        inner = dense.P[:, :, : t - 1, :, t].reshape(B, S, (t - 1) * Q, Q)
        dF = grad.F[:, :, :t, t]  # (B, S, t, Q)
        dP = grad.P[:, :, : t - 1, :, t].reshape(B, S, (t - 1) * Q, Q) + after.mT @ dF
        grad.F[:, :, :t, : t - 1] += (dF @ inner.mT).reshape(B, S, t, t - 1, Q)
        dP = dP.reshape(B, S, t - 1, Q, Q).permute(0, 2, 3, 1, 4).reshape(B, t - 1, Q * S, Q)
        dD = dense.push[:, : t - 1].reshape(B, t - 1, Q * S, Q * S).mT @ dP
        adjoint = torch.linalg.solve_triangular(
            column.system.mT, dD.reshape(B, (t - 1) * Q * S, Q), upper=False, unitriangular=True
        ).reshape(B, t - 1, Q * S, Q)
        grad.push[:, : t - 1] += (dP @ column.D.mT).reshape(B, t - 1, Q, S, Q, S)
        grad.replace[:, 1 : t - 1] += (adjoint[:, :-1] @ column.D[:, 1:].mT).reshape(B, max(t - 2, 0), Q, S, Q, S)
        ours, theirs = (x.reshape(B, t - 1, Q, S, Q) for x in (adjoint, column.D))
        grad.P[:, :, 1:t, :, 1:t] += torch.einsum("bjpwr,bkswr->bwjpks", ours, theirs)
        if t > 1:
            pop[step] = adjoint[:, -1]
    push, replace = (x[:, before:].reshape(B, c, Q * S, Q * S).transpose(0, 1) for x in (grad.push, grad.replace))
    return to_flat(grad, layout, before), Steps(push, replace, pop)


def _grown(dense: Dense, c: int, superposition: bool) -> Dense:
    """Add room for c more time points, and the bottom element, which exists before the first step."""
    P = torch.nn.functional.pad(dense.P, (0, 0, 0, c, 0, 0, 0, c))
    F = torch.nn.functional.pad(dense.F, (0, 0, 0, c, 0, c))
    if not superposition:
        F[:, 0, 0, 0, 0] = 1.0
    push, replace = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 0, 0, 0, 0, c)) for x in (dense.push, dense.replace))
    return Dense(P, F, push, replace)
