"""The transition weights of a chart's steps, and the conversion of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ..lengths import without_padding
from .chart import Steps
from .extended import Extended


def neutral(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Set the steps beyond the lengths to zero; the caller may have left any values there."""
    return [without_padding(x, lengths) for x in (log_push, log_replace, log_pop)]


def scaled_steps(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, extended: bool) -> Steps:
    """Weights of each step, divided by their largest outgoing row sum to avoid overflow. The divisor cancels later."""
    # (n, B, QS, QS), (n, B, QS, QS), (n, B, QS, Q)
    logs = [x.double().transpose(0, 1).flatten(2, 3).flatten(3) for x in (log_push, log_replace, log_pop)]
    shift = torch.cat(logs, dim=-1).logsumexp(-1).amax(-1)[..., None, None]  # (n, B, 1, 1)
    shift = shift.where(shift > -torch.inf, 0.0)
    return Steps(*(Extended.exp(x - shift) if extended else (x - shift).exp() for x in logs))


def log_gradients(weights: Steps, gradients: Steps, Q: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the log weights: each weight times its gradient."""
    products = (w * g for w, g in zip(weights, gradients, strict=True))
    push, replace, pop = (x.to_tensor() if isinstance(x, Extended) else x for x in products)
    n, B, QS, _ = push.shape
    S = QS // Q
    push, replace = (x.reshape(n, B, Q, S, Q, S).transpose(0, 1) for x in (push, replace))
    return push, replace, pop.reshape(n, B, Q, S, Q).transpose(0, 1)


def action_steps(actions: Tensor, lengths: Tensor | None) -> Steps:
    actions = without_padding(actions, lengths).double()
    return Steps(*(x[..., None] for x in actions.transpose(0, 1).split(1, dim=-1)))  # (T, B, 1, 1) each


def no_operation(actions: Tensor) -> Tensor:
    """(3,): the action that changes nothing. Computed on the device, because a list would have to be copied to it."""
    return (torch.arange(3, device=actions.device) == 1).to(actions.dtype)


def action_gradients(gradients: Steps) -> Tensor:
    """Gradients with respect to the actions, (B, T, 3)."""
    return torch.cat([x.reshape(*x.shape[:2], 1) for x in gradients], dim=-1).transpose(0, 1)
