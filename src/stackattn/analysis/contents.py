"""What lies on a stack, not only on top of it: for each step, how likely it is that each pushed token is still there.

Both functions give (B, T, T): entry [t, i] is the probability that what step i pushed is on the stack after step t,
over all runs up to t in proportion to their weights. The sum of a row is the expected height of the stack. All of it is
exact, in time O(T^3) and without a single sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.pytorch.log_chart import log_chart, log_sum


def superposition_contents(weights: Tensor) -> Tensor:
    """From the weights (B, T, T) of a superposition stack.

    When the element of step j is on top, everything below it lies as it lay before step j. As the actions of a step do
    not depend on what is on the stack, that is distributed as it was after step j - 1.
    """
    B, T = weights.shape[:2]
    contents = weights.new_zeros(B, T + 1, T)  # row t + 1 is after step t; row 0 is the empty stack
    for t in range(T):
        contents[:, t + 1] = weights[:, t] + (weights[:, t, None, : t + 1] @ contents[:, : t + 1])[:, 0]
    return contents[:, 1:]


def nondeterministic_contents(log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> Tensor:
    """From the log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q) of a nondeterministic stack.

    The automaton's moves now depend on its state and the symbol on top, so the recurrence is kept apart for each of
    them. `given[t][r, y]` is the contents of the stack for the runs that are in state r with y on top at time t. The
    last thing such a run did was a push, a replace, or a return from a push at an earlier time k, after which the stack
    is exactly what it was at k. All factors are shares of runs, so none is larger than 1.
    """
    push, replace, pop = (x.detach().to("cpu", torch.float64) for x in (log_push, log_replace, log_pop))
    B, T, Q, S = push.shape[:4]
    chart = log_chart(push, replace, pop, log_sum)
    alpha = chart.alpha  # (B, T + 1, Q, S), logs of the weight of all runs
    given = push.new_zeros(B, T + 1, Q, S, T)
    contents = push.new_zeros(B, T, T)
    for t in range(1, T + 1):
        before, after = alpha[:, t - 1, :, :, None, None], alpha[:, t, None, None]
        pushed = _share(before + push[:, t - 1], after)  # (B, Q, S, Q, S)
        stayed = pushed + _share(before + replace[:, t - 1], after)
        row = torch.einsum("bqxry,bqxi->bryi", stayed, given[:, t - 1])
        row[..., t - 1] += pushed.sum((1, 2))
        if t >= 2:
            start = (
                alpha[:, : t - 1, :, :, None] + chart.P[:, : t - 1, t]
            )  # (B, k, Q, S, Q): from (u, y) back to y in r
            returned = _share(start, alpha[:, t].transpose(1, 2)[:, None, None])
            row += torch.einsum("bkuyr,bkuyi->bryi", returned, given[:, : t - 1])
        given[:, t] = row
        total = log_sum(alpha[:, t], (1, 2))
        contents[:, t - 1] = torch.einsum("bry,bryi->bi", _share(alpha[:, t], total[:, None, None]), row)
    return contents


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole), and 0 of nothing."""
    return (part - whole.masked_fill(whole == -torch.inf, 0.0)).exp()
