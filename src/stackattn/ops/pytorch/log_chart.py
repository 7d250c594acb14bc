"""The chart of the nondeterministic stack in log space, over any semiring whose product is addition of logs.

With `log_sum` its entries are sums over runs, for sampling; with `torch.amax` they are maxima, for Viterbi decoding.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Reduce = Callable[[Tensor, tuple[int, ...]], Tensor]


def log_sum(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """log(sum(exp(x))) over `dim`. A sum of zeros (all -inf) is -inf with gradient zero, not nan."""
    top = x.detach().amax(dim, keepdim=True)
    # The largest term is 1, so e^-700 is negligible, and exp is 30 times slower when it underflows. The clamp also
    # stops the gradient. If all terms are -inf, adding `top` makes the result -inf.
    terms = (x - top.masked_fill(top == -torch.inf, 0.0)).clamp_(min=-700.0).exp_()
    return terms.sum(dim).log() + top.squeeze(dim)


def log_einsum(equation: str, a: Tensor, b: Tensor, reduce: Reduce = log_sum) -> Tensor:
    """einsum of two tensors of logs, e.g. `log_einsum("ij,jk->ik", a, b)`. At least one letter must be summed over."""
    inputs, output = equation.split("->")
    letters_a, letters_b = inputs.split(",")
    layout = output + "".join(sorted(set(letters_a + letters_b) - set(output)))

    def align(x: Tensor, letters: str) -> Tensor:
        x = x.permute([letters.index(c) for c in layout if c in letters])
        return x[tuple(slice(None) if c in letters else None for c in layout)]

    return reduce(align(a, letters_a) + align(b, letters_b), tuple(range(len(output), len(layout))))


class LogChart(NamedTuple):
    """Logs; -inf for undefined entries. Time points are 0..T; step t leads from t-1 to t."""

    D: Tensor  # (B, T+1, T+1, Q, S, Q): D[:, j, t, p, w, r], from (p, w on top) at j until w is popped at step t into r
    P: Tensor  # (B, T+1, T+1, Q, S, Q): P[:, k, t, u, y, r], the same, from a push at step k+1 back to the y below it
    F: Tensor  # (B, T+1, T+1, Q, S): F[:, i+1, t, r, y], runs up to t with the element of step i (-1: bottom) on top
    alpha: Tensor  # (B, T+1, Q, S): alpha[:, t, r, y], all runs up to t


def log_chart(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, reduce: Reduce, window: int | None = None
) -> LogChart:
    """The chart of log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S) and (B,T,Q,S,Q); not differentiable.

    `reduce` is the semiring's sum: `log_sum` or `torch.amax`. With a window, P is -inf beyond it.
    """
    B, n, Q, S = log_push.shape[:4]
    push, replace, pop = log_push.detach(), log_replace.detach(), log_pop.detach()
    # In memory, (j, p) are the innermost axes, which is three times faster, because the long sums run over them.
    D = push.new_full((B, S, n + 1, Q, n + 1, Q), -torch.inf).permute(0, 4, 2, 5, 1, 3)
    P = push.new_full((B, n + 1, n + 1, Q, S, Q), -torch.inf)
    F = push.new_full((B, n + 1, n + 1, Q, S), -torch.inf)
    alpha = push.new_full((B, n + 1, Q, S), -torch.inf)

    # Step t has the weights push[:, t - 1]. D and P are filled by rows, j from last to first, for all t at once.
    for j in range(n - 1, -1, -1):
        D[:, j, j + 1] = pop[:, j]
        if j + 2 > n:
            continue
        later = D[:, j + 1, j + 2 :]  # (B, t, Q, S, Q)
        P[:, j, j + 2 :] = log_einsum("buypw,btpwr->btuyr", push[:, j], later, reduce)
        if window is not None:
            P[:, j, j + window + 1 :] = -torch.inf
        row = log_einsum("bpwsz,btszr->btpwr", replace[:, j], later, reduce)
        if j + 3 <= n:
            inner = P[:, j, j + 2 : n]  # (B, k, Q, S, Q)
            after = D[:, j + 2 : n, j + 3 :]  # (B, k, t, Q, S, Q)
            popped = log_einsum("bkpwo,bktowr->btpwr", inner, after, reduce)
            row[:, 1:] = reduce(torch.stack([row[:, 1:], popped]), (0,))
        D[:, j, j + 2 :] = row

    F[:, 0, 0, 0, 0] = alpha[:, 0, 0, 0] = 0.0
    for t in range(1, n + 1):
        F[:, t, t] = log_einsum("bqx,bqxry->bry", alpha[:, t - 1], push[:, t - 1], reduce)
        column = log_einsum("bisz,bszry->biry", F[:, :t, t - 1], replace[:, t - 1], reduce)
        if t >= 2:
            popped = log_einsum("bikuy,bkuyr->biry", F[:, :t, : t - 1], P[:, : t - 1, t], reduce)
            column = reduce(torch.stack([column, popped]), (0,))
        F[:, :t, t] = column
        alpha[:, t] = reduce(F[:, : t + 1, t], (1,))
    return LogChart(D, P, F, alpha)
