"""Contents of a stack: for each step, the probability that each pushed element is still on the stack.

All functions return (B, T, T): entry [b, t, i] is the probability that the element pushed at step i is on the stack
after step t, where the probability of a run up to t is proportional to its weight. For a stratified stack, which has no
runs, it is the remaining strength of the element. The sum of a row is the expected height of the stack (stratified:
its total strength). The results are exact and take at most O(T^3) time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import StratifiedState, SuperpositionReadingState
from ..ops.pytorch.log_chart import LogChart, log_sum


def superposition_contents(actions: Tensor, depth: int | None) -> Tensor:
    """Contents of a superposition stack of the given depth, from its actions (B, T, 3).

    If step i pushes the unit vector i, entry i of each position of the stack is the probability that the element there
    was pushed at step i. `depth` is None if the stack has no limit.
    """
    B, T = actions.shape[:2]
    contents = actions.new_zeros(B, T, T)
    state = SuperpositionReadingState.empty(B, max(T, 1), depth=depth, dtype=actions.dtype, device=actions.device)
    for t, unit in enumerate(torch.eye(T, dtype=actions.dtype, device=actions.device)):
        _, state = state.extend(actions[:, t : t + 1], unit.expand(B, 1, T))
        contents[:, t] = state.elements.sum(1)
    return contents


def stratified_contents(push: Tensor, pop: Tensor) -> Tensor:
    """Contents of a stratified stack, from its push and pop strengths (B, T): the remaining strengths."""
    B, T = push.shape
    contents = push.new_zeros(B, T, T)
    state = StratifiedState.empty(B, device=push.device)
    for t in range(T):
        _, state = state.extend(push[:, t : t + 1], pop[:, t : t + 1])
        contents[:, t, : t + 1] = state.strengths
    return contents


def nondeterministic_contents(push: Tensor, replace: Tensor, chart: LogChart) -> Tensor:
    """Contents of a nondeterministic stack, from its push and replace log weights (B, T, Q, S, Q, S) and its chart.

    Transitions depend on the state and the symbol on top, so the recurrence is computed for each pair of them.
    `given[:, t, r, y]` holds the contents of the stack over the runs that are in state r with y on top at time t. The
    last transition of such a run is a push, a replace, or the pop of an element that was pushed just after an earlier
    time k; this pop leaves the stack as it was at k. All factors are shares of runs, so none is larger than 1.
    """
    B, T, Q, S = push.shape[:4]
    alpha = chart.alpha  # (B, T + 1, Q, S): log of the total weight of all runs
    given = push.new_zeros(B, T + 1, Q, S, T)
    contents = push.new_zeros(B, T, T)
    for t in range(1, T + 1):
        before, after = alpha[:, t - 1, :, :, None, None], alpha[:, t, None, None]
        pushed = _share(before + push[:, t - 1], after)  # (B, Q, S, Q, S)
        stayed = pushed + _share(before + replace[:, t - 1], after)
        row = torch.einsum("bqxry,bqxi->bryi", stayed, given[:, t - 1])
        row[..., t - 1] += pushed.sum((1, 2))
        if t >= 2:
            # (B, k, Q, S, Q): from state u with y on top, back to the same y in state r
            start = alpha[:, : t - 1, :, :, None] + chart.P[:, : t - 1, t]
            returned = _share(start, alpha[:, t].transpose(1, 2)[:, None, None])
            row += torch.einsum("bkuyr,bkuyi->bryi", returned, given[:, : t - 1])
        given[:, t] = row
        total = log_sum(alpha[:, t], (1, 2))
        contents[:, t - 1] = torch.einsum("bry,bryi->bi", _share(alpha[:, t], total[:, None, None]), row)
    return contents


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole); 0 where both are -inf."""
    return (part - whole.masked_fill(whole == -torch.inf, 0.0)).exp()
