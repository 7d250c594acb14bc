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

    push: Number  # (n, B, QS, QS) from (q, x) to (r, y), symbols before states: x * Q + q
    replace: Number  # (n, B, QS, QS)
    pop: Number  # (n, B, QS, Q)


class Chart(NamedTuple):
    """Time points 0..n in the rows and columns; C = (n + 1) * Q columns (t, r)."""

    D: Number  # (B, S, C, C) rows (j, p), columns (t, r)
    P: Number  # (B, S, C, C)
    F: Number  # (B, S, n + 1, C) rows i, shifted by one: row 0 is the bottom element
    alpha: Number  # (n + 1, B, QS)


def fill(steps: Steps, Q: int, superposition: bool = False) -> Chart:
    n, B, QS, _ = steps.push.shape
    S, C = QS // Q, (n + 1) * Q
    D, P = steps.push.new_zeros(B, S, C, C), steps.push.new_zeros(B, S, C, C)
    for j in range(n - 1, -1, -1):
        now, after, later = slice(j * Q, (j + 1) * Q), slice((j + 1) * Q, (j + 2) * Q), slice((j + 2) * Q, C)
        below = D[:, :, after, later].reshape(B, QS, C - (j + 2) * Q)
        P[:, :, now, later] = (steps.push[j] @ below).reshape(B, S, Q, C - (j + 2) * Q)
        if j > 0:  # the bottom element is never popped
            kept = (steps.replace[j] @ below).reshape(B, S, Q, C - (j + 2) * Q)
            D[:, :, now, later] = kept + P[:, :, now, later] @ D[:, :, later, later]
            D[:, :, now, after] = steps.pop[j].reshape(B, S, Q, Q)
    F, alpha = steps.push.new_zeros(B, S, n + 1, C), steps.push.new_zeros(n + 1, B, QS)
    alpha[0, :, 0] = _one(alpha)
    if not superposition:
        F[:, 0, 0, 0] = _one(alpha)
    for t in range(1, n + 1):
        now, before, inner = slice(t * Q, (t + 1) * Q), slice((t - 1) * Q, t * Q), slice(0, (t - 1) * Q)
        # rows i of F, columns (z, s): what was on top one step ago
        on_top = F[:, :, :t, before].transpose(1, 2).reshape(B, t, QS)
        kept = (on_top @ steps.replace[t - 1]).reshape(B, t, S, Q).transpose(1, 2)
        F[:, :, :t, now] = kept + F[:, :, :t, inner] @ P[:, :, inner, now]
        F[:, :, t, now] = (alpha[t - 1][:, None] @ steps.push[t - 1]).reshape(B, S, Q)
        alpha[t] = torch.ones_like(alpha[t]) if superposition else F[:, :, : t + 1, now].sum(2).reshape(B, QS)
    return Chart(D, P, F, alpha)


def walk_back(steps: Steps, chart: Chart, dF: Number, Q: int, superposition: bool = False) -> Steps:
    """Gradients with respect to the transition weights, from those with respect to F (which is used up).

    Each row or column gathers its gradient when its turn comes, from those that used it and are complete.
    """
    n, B, QS, _ = steps.push.shape
    S, C = QS // Q, (n + 1) * Q
    D, P, F, alpha = chart
    push, replace = D.new_zeros(n, B, QS, QS), D.new_zeros(n, B, QS, QS)
    pop = D.new_zeros(n, B, QS, Q)
    for t in range(n, 0, -1):
        now, before, later = slice(t * Q, (t + 1) * Q), slice((t - 1) * Q, t * Q), slice((t + 2) * Q, C)
        # of F[i -> t] for i <= t
        column = dF[:, :, : t + 1, now] + dF[:, :, : t + 1, later] @ P[:, :, now, later].mT
        dF[:, :, : t + 1, now] = column
        pushed = column[:, :, t].reshape(B, 1, QS)
        push[t - 1] = alpha[t - 1][:, :, None] * pushed
        dalpha = (pushed @ steps.push[t - 1].mT).reshape(B, S, 1, Q)
        kept = column[:, :, :t].transpose(1, 2).reshape(B, t, QS)
        on_top = F[:, :, :t, before].transpose(1, 2).reshape(B, t, QS)
        replace[t - 1] = on_top.mT @ kept
        below = (kept @ steps.replace[t - 1].mT).reshape(B, t, S, Q).transpose(1, 2)
        dF[:, :, :t, before] = dF[:, :, :t, before] + (below if superposition else below + dalpha)
    dP = F.mT @ dF  # what is not at k <= t - 2 means nothing, and is not read
    dD = D.new_zeros(B, S, C, C)
    for j in range(n):
        now, after, later = slice(j * Q, (j + 1) * Q), slice((j + 1) * Q, (j + 2) * Q), slice((j + 2) * Q, C)
        width = C - (j + 2) * Q
        if j > 0:
            earlier, tail = slice(0, max(j - 1, 0) * Q), slice((j + 1) * Q, C)
            dD[:, :, now, tail] = dD[:, :, now, tail] + P[:, :, earlier, now].mT @ dD[:, :, earlier, tail]
            pop[j] = dD[:, :, now, after].reshape(B, QS, Q)
            dP[:, :, now, later] = dP[:, :, now, later] + dD[:, :, now, later] @ D[:, :, later, later].mT
        below = D[:, :, after, later].reshape(B, QS, width)
        inner_runs = dP[:, :, now, later].reshape(B, QS, width)
        kept = dD[:, :, now, later].reshape(B, QS, width)
        push[j] = push[j] + inner_runs @ below.mT
        replace[j] = replace[j] + kept @ below.mT
        given = steps.push[j].mT @ inner_runs + steps.replace[j].mT @ kept
        dD[:, :, after, later] = given.reshape(B, S, Q, width)
    return Steps(push, replace, pop)


def _one(like: Number) -> Number:
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return Extended.of(one) if isinstance(like, Extended) else one


def nondeterministic(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> Tensor:
    """Attention weights (B, T, T + 1, Q, S) in float64."""
    Q = log_push.shape[2]
    inputs = _neutral(log_push, log_replace, log_pop, lengths)
    chart = fill(scaled_steps(*inputs, extended=False), Q)
    weights, _, _ = _normalise(chart, Q)
    for b in _not_vouched(chart, lengths):
        exact = fill(scaled_steps(*(x[b : b + 1] for x in inputs), extended=True), Q)
        weights[b] = _normalise(exact, Q)[0][0]
    if lengths is not None:
        weights = weights.where(inside(lengths, log_push.shape[1])[..., None, None, None], 0.0)
    return weights


def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the log weights in float64, from `grad` with respect to the attention weights."""

    def gradients(steps: Steps, chart: Chart, grad: Number) -> tuple[Tensor, Tensor, Tensor]:
        weights, mass, alive = _normalise(chart, Q)
        # the normalisation has a derivative too
        grad = (grad - (grad * weights).sum((2, 3, 4), keepdim=True)).where(alive, 0.0)
        if isinstance(mass, Extended):
            grad = Extended.of(grad)
        dF = _to_chart(grad / mass)
        return log_gradients(steps, walk_back(steps, chart, dF, Q), Q)

    Q = log_push.shape[2]
    inputs = _neutral(log_push, log_replace, log_pop, lengths)
    grad = grad.double()
    if lengths is not None:
        grad = grad.where(inside(lengths, log_push.shape[1])[..., None, None, None], 0.0)
    steps = scaled_steps(*inputs, extended=False)
    chart = fill(steps, Q)
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
    B, n, Q, S = log_push.shape[:4]
    # symbols before states, so that one symbol's rows lie together
    push, replace = (x.double().permute(1, 0, 3, 2, 5, 4).reshape(n, B, S * Q, S * Q) for x in (log_push, log_replace))
    pop = log_pop.double().permute(1, 0, 3, 2, 4).reshape(n, B, S * Q, Q)
    shift = torch.cat([push, replace, pop], dim=-1).logsumexp(-1).amax(-1)[..., None, None]  # (n, B, 1, 1)
    shift = shift.where(shift > -torch.inf, 0.0)
    return Steps(*(Extended.exp(x - shift) if extended else (x - shift).exp() for x in (push, replace, pop)))


def log_gradients(weights: Steps, gradients: Steps, Q: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of a log weight is weight * gradient of the weight."""
    products = (w * g for w, g in zip(weights, gradients, strict=True))
    push, replace, pop = (x.to_tensor() if isinstance(x, Extended) else x for x in products)
    n, B, QS, _ = push.shape
    S = QS // Q
    push, replace = (x.reshape(n, B, S, Q, S, Q).permute(1, 0, 3, 2, 5, 4) for x in (push, replace))
    return push, replace, pop.reshape(n, B, S, Q, Q).permute(1, 0, 3, 2, 4)


def _normalise(chart: Chart, Q: int) -> tuple[Tensor, Number, Tensor]:
    """Attention weights (B, n, n + 1, Q, S), the mass of all runs of each row, and which rows have a run at all.

    A row that has none gets the mass 1, so that one can divide by it.
    """
    B, S, rows, _ = chart.F.shape
    F = chart.F.reshape(B, S, rows, rows, Q)[:, :, :, 1:].transpose(1, 4).transpose(1, 3)
    mass = chart.alpha[1:].sum(-1).transpose(0, 1).reshape(B, rows - 1, 1, 1, 1)
    if not isinstance(mass, Extended):
        return F / mass, mass, mass > 0
    alive = mass.mantissa > 0
    mass.mantissa = mass.mantissa.where(alive, 1.0)
    return (F / mass).to_tensor(), mass, alive


def _not_vouched(chart: Chart, lengths: Tensor | None) -> list[int]:
    mass = chart.alpha[1:].sum(-1)  # (n, B)
    good = mass >= SMALLEST_MASS
    if lengths is not None:
        good |= ~inside(lengths, mass.shape[0]).T
    return (~good.all(0)).nonzero()[:, 0].tolist()


def _to_chart(grad: Number) -> Number:
    """(B, n, n + 1, Q, S) -> (B, S, n + 1, C)"""
    B, _, rows, Q, S = grad.shape
    out = grad.new_zeros(B, S, rows, rows, Q)
    out[:, :, :, 1:] = grad.transpose(1, 3).transpose(1, 4)
    return out.reshape(B, S, rows, rows * Q)


def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    chart = fill(action_steps(actions, lengths), 1, superposition=True)
    weights = chart.F[:, 0, 1:, 1:].mT  # (B, T, T)
    return weights if lengths is None else weights.where(inside(lengths, actions.shape[1])[..., None], 0.0)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    steps = action_steps(actions, lengths)
    chart = fill(steps, 1, superposition=True)
    grad = grad.double()
    if lengths is not None:
        grad = grad.where(inside(lengths, actions.shape[1])[..., None], 0.0)
    dF = torch.zeros_like(chart.F)
    dF[:, 0, 1:, 1:] = grad.mT
    found = walk_back(steps, chart, dF, 1, superposition=True)
    return torch.cat([x.reshape(*x.shape[:2], 1) for x in found], dim=-1).transpose(0, 1)  # (B, T, 3)


def action_steps(actions: Tensor, lengths: Tensor | None) -> Steps:
    if lengths is not None:
        actions = actions.where(inside(lengths, actions.shape[1])[..., None], 0.0)
    return Steps(*(x[..., None] for x in actions.double().transpose(0, 1).split(1, dim=-1)))  # (T, B, 1, 1) each
