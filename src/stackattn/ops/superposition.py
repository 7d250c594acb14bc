"""The superposition stack: push, no-op and pop probabilities -> attention weights over what was pushed."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks, reference
from .cpp import native
from .dispatch import choose
from .lengths import length_mask
from .pytorch import operators as torch_backend
from .registration import NO_SECOND_DERIVATIVES, Operator


def superposition_weights(actions: Tensor, lengths: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """Attention weights of the superposition stack: how much of each earlier value is in the top element.

    Args:
        actions: (B, T, 3)
            Weights of push, no-op and pop at each step: probabilities, such as a softmax gives, not logits.
        lengths: (B,), optional
            Steps of each sequence. What lies beyond is not read, and gives zero rows and zero gradients.
        backend: `"auto"`, `"reference"`, `"torch"` or `"cpp"`; see `stackattn.backends()`.

    Returns:
        (B, T, T)
            `weights[b, t, i]`: the share in the top element, after step t, of the value pushed at step i. Where the
            actions sum to 1, a row sums to at most 1: the rest is the emptiness below the stack. Popping an empty stack
            leaves it empty.

    Examples::

        weights = superposition_weights(logits.softmax(-1))
        readings = weights @ values  # (B, T, T) @ (B, T, m)
    """
    checks.check_actions(actions, lengths)
    backend = choose(backend, actions.device)
    if backend == "reference":
        return _reference(actions, lengths)
    return _op(actions, lengths, backend)


def _reference(actions: Tensor, lengths: Tensor | None) -> Tensor:
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    checks.check_numbers("actions", actions.detach(), lengths, minus_infinity=False)
    if lengths is None:
        return reference.superposition_weights(actions)
    mask = length_mask(lengths, actions.shape[1])[..., None]
    return reference.superposition_weights(actions.where(mask, 0.0)).where(mask, 0.0)


_op = Operator("superposition_weights", "(Tensor actions, Tensor? lengths, str backend) -> Tensor")
_op_backward = Operator(
    "superposition_weights_backward", "(Tensor grad, Tensor actions, Tensor? lengths, str backend) -> Tensor"
)


@_op.implementation
def _(actions, lengths, backend):
    checks.check_actions(actions, lengths)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.superposition(actions, lengths)
    checks.check_numbers("actions", actions, lengths, minus_infinity=False)
    return torch_backend.superposition(actions, lengths).to(actions.dtype).contiguous()


@_op_backward.implementation
def _(grad, actions, lengths, backend):
    checks.check_actions(actions, lengths)
    if grad.shape != (*actions.shape[:2], actions.shape[1]):
        raise ValueError(f"grad: expected the shape of the attention weights, got {tuple(grad.shape)}")
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.superposition_backward(grad, actions, lengths)
    return torch_backend.superposition_backward(grad, actions, lengths).to(actions.dtype).contiguous()


@_op.fake
def _(actions, lengths, backend):
    B, T = actions.shape[:2]
    return actions.new_empty(B, T, T)


@_op_backward.fake
def _(grad, actions, lengths, backend):
    return torch.empty_like(actions, memory_format=torch.contiguous_format)


@_op.gradient
def _(inputs, memory, backend, grad):
    return (_op_backward(grad, *inputs, backend),)


_op_backward.without_gradient(NO_SECOND_DERIVATIVES)


@_op.batched
def _(tensors, size, backend):
    return _op(*tensors, backend).unflatten(0, (size, -1)), 0


@_op_backward.batched
def _(tensors, size, backend):
    return _op_backward(*tensors, backend).unflatten(0, (size, -1)), 0
