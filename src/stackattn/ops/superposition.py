"""The superposition stack: push, no-op and pop probabilities -> attention weights over what was pushed."""

from __future__ import annotations

import torch
from torch import Tensor

from . import chart, checks, native, reference
from .backends import choose


def superposition_weights(actions: Tensor, lengths: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """Attention weights of the superposition stack: how much of each earlier value is in the top element.

    Args:
        actions: (B, T, 3)
            Weights of push, no-op and pop at each step, usually a softmax.
        lengths: (B,), optional
            Steps of each sequence. What lies beyond is not read, and gives zero rows and zero gradients.
        backend: `"auto"`, `"reference"`, `"torch"` or `"cpp"`; see `stackattn.backends()`.

    Returns:
        (B, T, T)
            `weights[b, t, i]`: the share in the top element, after step t, of the value pushed at step i. Where the actions
            sum to 1, a row sums to at most 1: the rest is the emptiness below the stack. Popping an empty stack leaves it empty.

    Examples::

        weights = superposition_weights(logits.softmax(-1))
        readings = weights @ values  # (B, T, T) @ (B, T, m)
    """
    checks.check_actions(actions, lengths)
    backend = choose(backend, actions.device)
    if backend == "reference":
        return _reference(actions, lengths)
    if lengths is not None:
        lengths = lengths.long()
    return _weights(actions, lengths, backend)


def _check_numbers(actions: Tensor, lengths: Tensor | None) -> None:
    checks.check_length_values(lengths, actions.shape[1])
    checks.check_numbers("actions", actions, lengths, minus_infinity=False)


def _reference(actions: Tensor, lengths: Tensor | None) -> Tensor:
    _check_numbers(actions.detach(), lengths)
    if lengths is None:
        return reference.superposition_weights(actions)
    inside = chart.inside(lengths, actions.shape[1])[..., None]
    return reference.superposition_weights(actions.where(inside, 0.0)).where(inside, 0.0)


@torch.library.custom_op("stackattn::superposition_weights", mutates_args=())
def _weights(actions: Tensor, lengths: Tensor | None, backend: str) -> Tensor:
    if backend == "cpp":
        checks.check_length_values(lengths, actions.shape[1])
        return native.superposition(actions, lengths)
    _check_numbers(actions, lengths)
    return chart.superposition(actions, lengths).to(actions.dtype).contiguous()


@torch.library.custom_op("stackattn::superposition_weights_backward", mutates_args=())
def _backward(grad: Tensor, actions: Tensor, lengths: Tensor | None, backend: str) -> Tensor:
    if backend == "cpp":
        return native.superposition_backward(grad, actions, lengths)
    return chart.superposition_backward(grad, actions, lengths).to(actions.dtype).contiguous()


@_weights.register_fake
def _(actions, lengths, backend):
    B, T = actions.shape[:2]
    return actions.new_empty(B, T, T)


@_backward.register_fake
def _(grad, actions, lengths, backend):
    return torch.empty_like(actions, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.backend = inputs
    ctx.save_for_backward(*tensors)


def _autograd(ctx, grad):
    return _backward(grad, *ctx.saved_tensors, ctx.backend), None, None


_weights.register_autograd(_autograd, setup_context=_setup_context)


@_weights.register_vmap
def _(info, in_dims, actions, lengths, backend):
    tensors = native.fold(info, in_dims, actions, lengths)
    return _weights(*tensors, backend).unflatten(0, (info.batch_size, -1)), 0


@_backward.register_vmap
def _(info, in_dims, grad, actions, lengths, backend):
    tensors = native.fold(info, in_dims, grad, actions, lengths)
    return _backward(*tensors, backend).unflatten(0, (info.batch_size, -1)), 0
