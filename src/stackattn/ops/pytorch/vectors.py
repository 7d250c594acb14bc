"""Readings of the superposition stack without its attention weights, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..lengths import length_mask, without_padding
from .steps import no_operation


def forward(
    actions: Tensor, values: Tensor, stack: Tensor, lengths: Tensor | None, depth: int | None, with_stack: bool
) -> Tensor:
    """Readings (B, T, m), followed by the last stack if `with_stack`: see `ops.vectors`."""
    stacks = _stacks(*_idle(actions, values, lengths), stack, depth)
    readings = [x[:, :1] for x in stacks[1:]]
    result = torch.cat([values[:, :0], *readings], dim=1)
    result = without_padding(result, lengths)
    return torch.cat([result, stacks[-1]], dim=1) if with_stack else result


def backward(
    grad: Tensor, actions: Tensor, values: Tensor, stack: Tensor, lengths: Tensor | None, depth: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of actions, values and the initial stack."""
    T = actions.shape[1]
    actions, values = _idle(actions, values, lengths)
    stacks = _stacks(actions, values, stack, depth)
    grad_actions, grad_values = torch.empty_like(actions), torch.empty_like(values)
    grad_readings, grad_after = without_padding(grad[:, :T], lengths), grad[:, T:]
    for t in reversed(range(T)):
        before = stacks[t]
        h = before.shape[1]
        g = pad(grad_after, (0, 0, 0, h + 1 - grad_after.shape[1]))  # (B, h + 1, m); zero for elements beyond `depth`
        g[:, 0] += grad_readings[:, t]
        above, same, below = _neighbours(before, values[:, t : t + 1])
        grad_actions[:, t] = torch.stack([(g * x).sum((1, 2)) for x in (above, same, below)], dim=1)
        push, noop, pop = actions[:, t, :, None, None].unbind(1)  # (B, 1, 1) each
        grad_values[:, t] = push[:, 0] * g[:, 0]
        grad_after = push * g[:, 1:] + noop * g[:, :h] + pop * pad(g, (0, 0, 1, 0))[:, :h]
    return without_padding(grad_actions, lengths), without_padding(grad_values, lengths), grad_after


def _idle(actions: Tensor, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Make the steps beyond the lengths change nothing, whatever the padding contains."""
    if lengths is None:
        return actions, values
    mask = length_mask(lengths, actions.shape[1])[..., None]
    return actions.where(mask, no_operation(actions)), values.where(mask, 0.0)


def _stacks(actions: Tensor, values: Tensor, stack: Tensor, depth: int | None) -> list[Tensor]:
    """The stack (B, height, m) before the first step and after each step."""
    stacks = [stack]
    for t in range(actions.shape[1]):
        push, noop, pop = actions[:, t, :, None, None].unbind(1)
        above, same, below = _neighbours(stacks[-1], values[:, t : t + 1])
        stacks.append((push * above + noop * same + pop * below)[:, :depth])
    return stacks


def _neighbours(stack: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a push, a no-op and a pop put at each of the height + 1 places: (B, height + 1, m) each."""
    padded = pad(stack, (0, 0, 0, 2))
    return torch.cat([value, stack], dim=1), padded[:, :-1], padded[:, 1:]
