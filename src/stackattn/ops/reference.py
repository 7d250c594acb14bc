"""The equations of the stack attention paper (DuSell & Chiang, 2024), literal and slow: the oracle for the tests.

The functions follow Section 3.2.1 (superposition) and Appendix B (nondeterministic, in log space); the stratified
stack is from another paper. Time points are the paper's: step t = 1..n leads from t-1 to t and uses index t-1 of the
arguments. All computation is in float64, and autograd differentiates it. At time points that no run reaches, readings,
weights and gradients are zero.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from .pytorch.extended import LOWEST
from .pytorch.log_chart import log_einsum, log_sum


def superposition_readings(actions: Tensor, values: Tensor, depth: int | None = None) -> Tensor:
    """Readings (B, T, m) of actions (B, T, 3), in the order push, no-op, pop, on values (B, T, m).

    With `depth`, only the top `depth` elements are kept after each step.
    """
    (B, n, m), dtype = values.shape, values.dtype
    actions, values = actions.double(), values.double()
    V = actions[:, :0, :1] * values[:, :0]  # (B, t, m): the stack matrix after step t, top first
    readings = [V]
    for t in range(1, n + 1):
        padded = torch.cat([V, values.new_zeros(B, 2, m)], 1)
        above = torch.cat([values[:, t - 1 : t], V], 1)
        at = padded[:, : above.shape[1]]
        below = padded[:, 1:]
        push, noop, pop = actions[:, t - 1, :, None, None].unbind(1)
        V = (push * above + noop * at + pop * below)[:, :depth]
        readings.append(V[:, :1])
    return torch.cat(readings, 1).to(dtype)


def superposition_weights(actions: Tensor, depth: int | None = None) -> Tensor:
    """Weights (B, T, T) of actions (B, T, 3): `weights[:, t, i]` is the share of value i in the reading of step t."""
    B, n, _ = actions.shape
    one_hot = torch.eye(n, dtype=actions.dtype, device=actions.device)
    return superposition_readings(actions, one_hot.expand(B, n, n), depth)


def stratified_weights(push: Tensor, pop: Tensor) -> Tensor:
    """Weights (B, T, T) of strengths (B, T): the recurrence of Grefenstette et al. (2015), Equations 1 to 3."""
    (B, n), dtype = push.shape, push.dtype
    push, pop = push.double(), pop.double()
    nothing = push.new_zeros(B)
    strengths: list[Tensor] = []  # of all elements, in the order of their pushes
    rows = [(push + pop)[:, None, :][:, :0]]
    for t in range(n):
        remaining, kept = pop[:, t], []
        for strength in reversed(strengths):
            kept.append((strength - remaining).clamp(min=0))
            remaining = (remaining - strength).clamp(min=0)
        strengths = [*reversed(kept), push[:, t]]
        remaining, row = torch.ones_like(nothing), []
        for strength in reversed(strengths):
            row.append(torch.minimum(strength, remaining))
            remaining = (remaining - strength).clamp(min=0)
        rows.append(torch.stack([*reversed(row), *[nothing] * (n - t - 1)], 1)[:, None])
    return torch.cat(rows, 1).to(dtype)


def nondeterministic_readings(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    log_values: Tensor,
    log_bottom: Tensor,
    window: int | None = None,
) -> Tensor:
    """Readings (B, T, Q, S, m), in real space, of positive values given as logs.

    Log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q), where -inf forbids a transition; log_values (B, T, m);
    log_bottom (m,) or (B, m).
    """
    push, replace, pop = _shifted(log_push.double(), log_replace.double(), log_pop.double())
    v = log_values.double()
    (B, n, Q, S), m = push.shape[:4], v.shape[2]
    bottom = log_bottom.double().expand(B, m)
    _, gamma_prime, alpha = _inner_and_forward_weights(push, replace, pop, window)

    zeta = {(-1, 0): _initial(push, B, Q, S, Q, S, 1) + bottom[:, None, None, None, None]}  # [i, t]: (B, Q, S, Q, S, m)
    for t in range(1, n + 1):
        for i in range(-1, t):
            pushed = push[:, t - 1, ..., None] + v[:, t - 1, None, None, None, None]
            zeta[i, t] = _inner_weight(zeta, gamma_prime, i, t, pushed, replace[:, t - 1], "m")

    readings = [alpha[0][:, None, :, :, None].expand(B, 1, Q, S, m)[:, :0]]
    for t in range(1, n + 1):
        eta = _sum_over_i("biqx,biqxrym->brym", alpha, zeta, t)
        readings.append((eta - _log_total(alpha[t])[..., None]).exp()[:, None])
    return torch.cat(readings, 1).to(log_values.dtype)


def nondeterministic_weights(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, window: int | None = None
) -> Tensor:
    """Weights (B, T, T+1, Q, S) of log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q).

    W[t, i][r, y] = sum over q, x of alpha[i][q, x] gamma[i -> t][q, x -> r, y], divided by the sum of alpha[t]. Along
    the third axis, index 0 is the bottom vector (i = -1), and index i+1 is the value pushed at argument index i. With a
    window, runs that pop an element `window` or more steps after its push contribute nothing: gamma'[k -> t] is absent
    for t - k > window.
    """
    B, n, Q, S = log_push.shape[:4]
    push, replace, pop = _shifted(log_push.double(), log_replace.double(), log_pop.double())
    gamma, _, alpha = _inner_and_forward_weights(push, replace, pop, window)
    weights = [alpha[0][:, None, None].expand(B, 1, n + 1, Q, S)[:, :0]]
    for t in range(1, n + 1):
        log_weights = _sum_over_i("biqx,biqxry->biry", alpha, gamma, t) - _log_total(alpha[t])[:, None]
        weights.append(pad(log_weights.exp(), (0, 0, 0, 0, 0, n - t))[:, None])
    return torch.cat(weights, 1).to(log_push.dtype)


def _shifted(push: Tensor, replace: Tensor, pop: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log weights minus the largest one of each step; -inf where the difference is below `LOWEST`.

    The subtraction divides the weights of all runs by the same number, which cancels. Without it, sums of logits such
    as 1e30 would have no digits left for the logarithms of the probabilities. The other backends have the same lower
    limit.
    """
    if push.shape[1] == 0:
        return push, replace, pop
    top = torch.stack([x.detach().flatten(2).amax(2) for x in (push, replace, pop)]).amax(0)  # (B, T)
    top = top.where(top > -torch.inf, 0.0)
    push, replace, pop = (x - top[(...,) + (None,) * (x.dim() - 2)] for x in (push, replace, pop))
    push, replace, pop = (x.where(x >= LOWEST, -torch.inf) for x in (push, replace, pop))
    return push, replace, pop


def _inner_and_forward_weights(
    push: Tensor, replace: Tensor, pop: Tensor, window: int | None
) -> tuple[dict[tuple[int, int], Tensor], dict[tuple[int, int], Tensor], dict[int, Tensor]]:
    """Logs of gamma[i, t] (B, Q, S, Q, S), gamma'[k, t] (B, Q, S, Q) and alpha[t] (B, Q, S)."""
    B, n, Q, S = push.shape[:4]
    nothing = sum(x[:, :0].sum() for x in (push, replace, pop))  # gives unused inputs zero gradients, not None
    gamma = {(-1, 0): _initial(push, B, Q, S, Q, S) + nothing}
    gamma_prime = {}
    alpha = {-1: _initial(push, B, Q, S)}
    alpha[0] = _sum_over_i("biqx,biqxry->bry", alpha, gamma, 0)
    for t in range(1, n + 1):
        for k in range(0 if window is None else max(0, t - window), t - 1):
            gamma_prime[k, t] = log_einsum("buysz,bszr->buyr", gamma[k, t - 1], pop[:, t - 1])
        for i in range(-1, t):
            gamma[i, t] = _inner_weight(gamma, gamma_prime, i, t, push[:, t - 1], replace[:, t - 1])
        alpha[t] = _sum_over_i("biqx,biqxry->bry", alpha, gamma, t)
    return gamma, gamma_prime, alpha


def _inner_weight(
    inner: Mapping[tuple[int, int], Tensor],
    gamma_prime: Mapping[tuple[int, int], Tensor],
    i: int,
    t: int,
    pushed: Tensor,
    replace: Tensor,
    m: str = "",
) -> Tensor:
    """inner[i, t], (B, Q, S, Q, S), from earlier inner weights and step t.

    Its runs end with the push of element i, with a replacement of element i, or with the pop of an element above it.
    `m` is the letter of an additional last axis, if there is one.
    """
    terms = [pushed if i == t - 1 else log_einsum(f"bqxsz{m},bszry->bqxry{m}", inner[i, t - 1], replace)]
    if ks := [k for k in range(i + 1, t - 1) if (k, t) in gamma_prime]:
        below, popped = _stack(inner[i, k] for k in ks), _stack(gamma_prime[k, t] for k in ks)
        terms.append(log_einsum(f"bkqxuy{m},bkuyr->bqxry{m}", below, popped))
    return log_sum(_stack(terms), (1,))


def _sum_over_i(equation: str, alpha: Mapping[int, Tensor], inner: Mapping[tuple[int, int], Tensor], t: int) -> Tensor:
    """Sums of alpha[i][q, x] inner[i -> t][q, x -> ...] over the letters that are not in the result; i = -1..t-1."""
    before = range(-1, t)
    return log_einsum(equation, _stack(alpha[i] for i in before), _stack(inner[i, t] for i in before))


def _initial(like: Tensor, *shape: int) -> Tensor:
    """The log of an indicator: 1 in state 0 (start) with symbol 0 (bottom), 0 elsewhere."""
    initial = like.new_full(shape, -torch.inf)
    initial.flatten(1)[:, 0] = 0.0
    return initial


def _log_total(alpha_t: Tensor) -> Tensor:
    """The log of the sum of alpha[t] (B, Q, S), as (B, 1, 1); zero if there is no run, so that 0 / 0 becomes 0."""
    total = log_sum(alpha_t, (1, 2))[:, None, None]
    return torch.where(total == -torch.inf, 0.0, total)


def _stack(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors), 1)
