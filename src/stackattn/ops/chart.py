"""The chart of docs/maths.md in plain PyTorch: any device, one sequential step per symbol, each a few matrix products.

Everything is written for a `Number`: a float64 tensor (fast, right while no weight that matters vanishes) or an
`Extended` one (slow, right always). The gradients are the same recurrences walked the other way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .extended import Extended

Number = Any  # a float64 Tensor, or an Extended that behaves like one

# A weight lost below 1e-308 at one step can grow in importance by at most 1 / (mass of all runs at a later step). While
# no mass is below e^-600, nothing that was lost can matter.
SMALLEST_MASS = 2.6e-261


class Steps(NamedTuple):
    """Transition weights (or their gradients), time first: step t of the chart is index t - 1."""

    push: Number  # (n, B, QS, QS) from (q, x) to (r, y)
    replace: Number  # (n, B, QS, QS)
    pop: Number  # (n, B, QS, Q)


class Chart:
    """The charts of a batch over the time points 0..n, with C = (n + 1) * Q columns (t, r), in one piece of memory.

    The axes are in an order that lets every product read its factors where they lie: the rows (j, p) of one symbol and
    sequence are evenly spaced (`by_symbol`), and so are the rows (p, w) of one time point and sequence (`by_time`).
    """

    def __init__(self, memory: Number, n: int, B: int, Q: int, S: int):
        self.memory = memory  # (Chart.size(n, B, Q, S),), zero at first
        self.axes = n + 1, Q, S, B
        rows, C = (n + 1) * Q * S * B, (n + 1) * Q
        self.PD = memory[: rows * 2 * C].reshape(2, *self.axes, C)
        self.P, self.D = self.PD[0], self.PD[1]  # (n + 1, Q, S, B, C) by j, p, w, sequence, (t, r)
        # (n + 1, Q, S, B, n + 2) by t, r, y, sequence, and what is on top: column 1 is the bottom element, column t + 1
        # the one that step t pushed. Column 0 is alpha: their sum follows nearly the same recurrence.
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
    S, C = QS // Q, (n + 1) * Q
    chart = Chart(steps.push.new_zeros(Chart.size(n, B, Q, S)), n, B, Q, S)
    P, D, F = (chart.by_symbol(x) for x in (chart.P, chart.D, chart.F))
    D_at, F_at = chart.by_time(chart.D), chart.by_time(chart.F)
    chart.pops(chart.D)[...] = steps.pop.reshape(n, B, Q, S, Q)[1:]
    moves = _stacked(steps.push, steps.replace)
    for j in range(n - 2, -1, -1):
        now, later = slice(j * Q, (j + 1) * Q), slice((j + 2) * Q, C)
        pushed_or_kept = chart.rows_by_time(moves[j] @ D_at[j + 1, :, :, later])
        if j == 0:
            chart.P[0, ..., later] = pushed_or_kept[0]
            break
        chart.PD[:, j, ..., later] = pushed_or_kept
        row = chart.D[j, ..., later]
        row += chart.rows_by_symbol(P[:, now, later] @ D[:, later, later])
    if superposition:
        chart.F[..., 0] = _one(chart.F)
    else:
        chart.F[0, 0, 0, :, :2] = _one(chart.F)
    moves = _stacked(steps.push.mT, steps.replace.mT)
    for t in range(1, n + 1):
        now, inner, old = slice(t * Q, (t + 1) * Q), slice(0, (t - 1) * Q), slice(0, t + 1)
        pushed, kept = _pair(chart.rows_by_time(moves[t - 1] @ F_at[t - 1, :, :, old]))  # (Q, S, B, t + 1) each
        row = chart.F[t, ..., old]
        returned = chart.rows_by_symbol(P[:, inner, now].mT @ F[:, inner, old])
        if superposition:
            row[..., 1:] = (kept + returned)[..., 1:]
            chart.F[t, ..., t + 1] = pushed[..., 0]
        else:
            row[...] = kept + returned
            both = chart.F[t, ..., 0 : t + 2 : t + 1]  # alpha, and the new element
            both += pushed[..., :1]
    return chart


def walk_back(steps: Steps, chart: Chart, dF: Number, superposition: bool = False) -> Steps:
    """Gradients with respect to the transition weights, from those with respect to F (which is used up).

    Each row gathers its gradient when its turn comes, from those that used it and are complete.
    """
    times, Q, S, B = chart.axes
    n, QS, C = times - 1, Q * S, times * Q
    P, D, F, dF_of = (chart.by_symbol(x) for x in (chart.P, chart.D, chart.F, dF))
    D_at, F_at, dF_at = (chart.by_time(x) for x in (chart.D, chart.F, dF))
    moves = _stacked(steps.push, steps.replace)
    replace = dF.new_zeros(n, B, QS, QS)
    for t in range(n, 0, -1):
        now, later, old = slice(t * Q, (t + 1) * Q), slice((t + 2) * Q, C), slice(0, t + 2)
        row = dF[t, ..., old]
        if t < n:
            # of the weights of a push, and of what was kept
            pushed, kept = _pair(chart.rows_by_time(moves[t] @ dF_at[t + 1, :, :, : t + 3]))
            row += kept[..., old] + chart.rows_by_symbol(P[:, now, later] @ dF_of[:, later, old])
            if not superposition:
                alpha = row[..., 0]
                alpha += pushed[..., :: t + 2].sum(-1)
        replace[t - 1] = F_at[t - 1, :, :, : t + 1] @ dF_at[t, :, :, : t + 1].mT
    pushed = dF.diagonal(1, 0, 4)[..., 1:] + dF[1:, ..., 0].permute(1, 2, 3, 0)  # (Q, S, B, n)
    push = F_at[:-1, :, :, :1] * pushed.permute(3, 2, 0, 1).reshape(n, B, 1, QS)

    stacked = dF.new_zeros(n, B, 2 * QS, QS)
    dD = dF.new_zeros(*chart.axes, C)
    dD_of = chart.by_symbol(dD)
    dPD = dF.new_zeros(2, Q, S, B, C)  # row j of both
    dPD_at = dPD.reshape(2 * QS, B, C).transpose(0, 1)
    for j in range(n):
        now, tail, later = slice(j * Q, (j + 1) * Q), slice((j + 1) * Q, C), slice((j + 2) * Q, C)
        earlier, old = slice(0, max(j - 1, 0) * Q), slice(0, j + 2)
        if j > 0:
            given = chart.rows_by_time(moves[j - 1].mT @ dPD_at[:, :, tail])[0]
            dD[j, ..., tail] = given + chart.rows_by_symbol(P[:, earlier, now].mT @ dD_of[:, earlier, tail])
            dPD[1, ..., later] = dD[j, ..., later]
        inner = F[:, now, old] @ dF_of[:, later, old].mT
        if j > 0:
            inner = inner + dD_of[:, now, later] @ D[:, later, later].mT
        dPD[0, ..., later] = chart.rows_by_symbol(inner)
        stacked[j] = dPD_at[:, :, later] @ D_at[j + 1, :, :, later].mT
    pop = dF.new_zeros(n, B, Q, S, Q)
    pop[1:] = chart.pops(dD)
    return Steps(push + stacked[:, :, :QS], replace + stacked[:, :, QS:], pop.reshape(n, B, QS, Q))


def _stacked(push: Number, replace: Number) -> Number:
    """(n, B, 2 QS, QS)"""
    n, B, QS, _ = push.shape
    both = push.new_zeros(n, B, 2 * QS, QS)
    both[:, :, :QS], both[:, :, QS:] = push, replace
    return both


def _pair(x: Number) -> tuple[Number, Number]:
    return x[0], x[1]


def _one(like: Number) -> Number:
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return Extended.of(one) if isinstance(like, Extended) else one


def nondeterministic(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention weights (B, T, T + 1, Q, S) in float64, and the memory of the charts, for the backward pass."""
    Q = log_push.shape[2]
    inputs = _neutral(log_push, log_replace, log_pop, lengths)
    chart = fill(scaled_steps(*inputs, extended=False), Q)
    weights, _, _ = _normalise(chart)
    for b in _not_vouched(chart, lengths):
        exact = fill(scaled_steps(*(x[b : b + 1] for x in inputs), extended=True), Q)
        weights[b] = _normalise(exact)[0][0]
    if lengths is not None:
        weights = weights.where(inside(lengths, log_push.shape[1])[..., None, None, None], 0.0)
    return weights, chart.memory


def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None, memory: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the log weights in float64, from `grad` with respect to the attention weights.

    `memory` comes from the forward pass; where it is empty, the charts are filled again.
    """

    def gradients(steps: Steps, chart: Chart, grad: Number) -> tuple[Tensor, Tensor, Tensor]:
        weights, mass, alive = _normalise(chart)
        # the normalisation has a derivative too
        grad = (grad - (grad * weights).sum((2, 3, 4), keepdim=True)).where(alive, 0.0)
        if isinstance(mass, Extended):
            grad = Extended.of(grad)
        dF = chart.F.new_zeros(*chart.F.shape)
        dF[1:, ..., 1:] = (grad / mass).permute(1, 3, 4, 0, 2)
        return log_gradients(steps, walk_back(steps, chart, dF), Q)

    B, T, Q, S = log_push.shape[:4]
    inputs = _neutral(log_push, log_replace, log_pop, lengths)
    grad = grad.double()
    if lengths is not None:
        grad = grad.where(inside(lengths, T)[..., None, None, None], 0.0)
    steps = scaled_steps(*inputs, extended=False)
    chart = Chart(memory, T, B, Q, S) if memory.numel() else fill(steps, Q)
    results = gradients(steps, chart, grad)
    for b in _not_vouched(chart, lengths):
        steps = scaled_steps(*(x[b : b + 1] for x in inputs), extended=True)
        for result, exact in zip(results, gradients(steps, fill(steps, Q), grad[b : b + 1]), strict=True):
            result[b] = exact[0]
    return results


def inside(lengths: Tensor, T: int) -> Tensor:
    """(B, T): which steps lie inside the lengths."""
    return torch.arange(T, device=lengths.device) < lengths[:, None]


def _neutral(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Beyond the lengths may stand anything: put zeros there."""
    inputs = [log_push, log_replace, log_pop]
    if lengths is None:
        return inputs
    mask = inside(lengths, log_push.shape[1])
    return [x.where(mask[(...,) + (None,) * (x.dim() - 2)], 0.0) for x in inputs]


def scaled_steps(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, extended: bool) -> Steps:
    """Weights of each step, divided by their largest outgoing row sum: nothing overflows, and in the end it cancels."""
    QS = log_push.shape[2] * log_push.shape[3]
    logs = [x.double().transpose(0, 1).flatten(2, 3) for x in (log_push, log_replace, log_pop)]
    logs = [x.reshape(*x.shape[:3], x.shape[3:].numel()) for x in logs]  # (n, B, QS, QS), (n, B, QS, QS), (n, B, QS, Q)
    shift = torch.cat(logs, dim=-1).logsumexp(-1).amax(-1)[..., None, None]  # (n, B, 1, 1)
    shift = shift.where(shift > -torch.inf, 0.0)
    return Steps(*(Extended.exp(x - shift) if extended else (x - shift).exp() for x in logs))


def log_gradients(weights: Steps, gradients: Steps, Q: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of a log weight is weight * gradient of the weight."""
    products = (w * g for w, g in zip(weights, gradients, strict=True))
    push, replace, pop = (x.to_tensor() if isinstance(x, Extended) else x for x in products)
    n, B, QS, _ = push.shape
    S = QS // Q
    push, replace = (x.reshape(n, B, Q, S, Q, S).transpose(0, 1) for x in (push, replace))
    return push, replace, pop.reshape(n, B, Q, S, Q).transpose(0, 1)


def _normalise(chart: Chart) -> tuple[Tensor, Number, Tensor]:
    """Attention weights (B, n, n + 1, Q, S), the mass of all runs of each row, and which rows have a run at all.

    A row that has none gets the mass 1, so that one can divide by it.
    """
    F = chart.F[1:, ..., 1:].permute(3, 0, 4, 1, 2)
    mass = _mass(chart).transpose(0, 1)[:, :, None, None, None]  # (B, n, 1, 1, 1)
    if not isinstance(mass, Extended):
        return F / mass, mass, mass > 0
    alive = mass.mantissa > 0
    mass.mantissa = mass.mantissa.where(alive, 1.0)
    return (F / mass).to_tensor(), mass, alive


def _mass(chart: Chart) -> Number:
    """(n, B): all runs up to each step."""
    return chart.F[1:, ..., 0].sum((1, 2))


def _not_vouched(chart: Chart, lengths: Tensor | None) -> list[int]:
    good = _mass(chart) >= SMALLEST_MASS  # (n, B)
    if lengths is not None:
        good |= ~inside(lengths, good.shape[0]).T
    return (~good.all(0)).nonzero()[:, 0].tolist()


def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    chart = fill(action_steps(actions, lengths), 1, superposition=True)
    weights = chart.F[1:, 0, 0, :, 2:].transpose(0, 1)  # (B, T, T)
    return weights if lengths is None else weights.where(inside(lengths, actions.shape[1])[..., None], 0.0)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    steps = action_steps(actions, lengths)
    chart = fill(steps, 1, superposition=True)
    grad = grad.double()
    if lengths is not None:
        grad = grad.where(inside(lengths, actions.shape[1])[..., None], 0.0)
    dF = torch.zeros_like(chart.F)
    dF[1:, 0, 0, :, 2:] = grad.transpose(0, 1)
    found = walk_back(steps, chart, dF, superposition=True)
    return torch.cat([x.reshape(*x.shape[:2], 1) for x in found], dim=-1).transpose(0, 1)  # (B, T, 3)


def action_steps(actions: Tensor, lengths: Tensor | None) -> Steps:
    if lengths is not None:
        actions = actions.where(inside(lengths, actions.shape[1])[..., None], 0.0)
    return Steps(*(x[..., None] for x in actions.double().transpose(0, 1).split(1, dim=-1)))  # (T, B, 1, 1) each
