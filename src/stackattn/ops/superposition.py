"""The superposition stack: from push, no-op and pop probabilities to attention weights and readings."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks, reference, vectors
from .cpp import native
from .dispatch import choose, module_of
from .lengths import values_without_padding, without_padding
from .memory import names_argument
from .registration import operator_with_backward


@names_argument("actions")
def superposition_weights(
    actions: Tensor, lengths: Tensor | None = None, *, depth: int | None = None, backend: str = "auto"
) -> Tensor:
    """Attention weights of the superposition stack: the share of each earlier value in the top element.

    Args:
        actions: (B, T, 3)
            Weights of push, no-op and pop at each step: probabilities, for example from a softmax, not logits.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their rows and gradients are zero.
        depth: number of elements that are kept after each step, counted from the top. By default, all are kept.
        backend: `"auto"`, `"reference"`, `"torch"`, `"cpp"` or `"triton"`; see `stackattn.backends()`.

    Returns:
        (B, T, T)
            `weights[b, t, i]`: the share of the value pushed at step i in the top element after step t. If the actions
            sum to 1, a row sums to at most 1; the rest is the share of the empty stack, which has the zero vector on
            top. Popping an empty stack leaves it empty.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, is out of range, or contains nan
            or infinity within the lengths.
        RuntimeError: the requested backend is not available.

    Examples::

        >>> import torch
        >>> from stackattn import superposition_weights
        >>> actions = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])  # push, push, pop
        >>> superposition_weights(actions)[0, 2]  # the first value is on top again
        tensor([1., 0., 0.])
        >>> values = torch.randn(1, 3, 4)
        >>> readings = superposition_weights(actions) @ values  # (B, T, m)
    """
    checks.check_actions(actions, lengths)
    checks.check_limit("depth", depth)
    backend = choose(backend, actions.device, *((1, 1) if depth is None else ()))
    if backend == "reference":
        return _reference(actions, lengths, depth)
    B, T = actions.shape[:2]
    if depth is not None and T > 0:  # the share of each value in the reading
        one_hot = torch.eye(T, dtype=actions.dtype, device=actions.device)
        return vectors.readings(actions, one_hot.expand(B, T, T), lengths, depth, backend)
    return _op(actions, lengths, backend)


@names_argument("actions")
def superposition_readings(
    actions: Tensor,
    values: Tensor,
    lengths: Tensor | None = None,
    *,
    depth: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Readings of the superposition stack: the top element, a mixture of the pushed vectors.

    Args:
        actions: (B, T, 3), as in `superposition_weights`.
        values: (B, T, m)
            The vectors that are pushed.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their readings and gradients are zero.
        depth: number of elements that are kept after each step, counted from the top. By default, all are kept. With a
            depth, the time is linear in T.
        backend: `"auto"`, `"reference"`, `"torch"`, `"cpp"` or `"triton"`; see `stackattn.backends()`.

    Returns:
        (B, T, m)
            `superposition_weights(actions, lengths, depth=depth) @ values`

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, or is out of range, or an action
            within the lengths is nan or infinite.
        RuntimeError: the requested backend is not available.

    Examples::

        readings = superposition_readings(logits.softmax(-1), values)
    """
    checks.check_actions(actions, lengths)
    checks.check_values(values, actions, actions.shape[1])
    checks.check_limit("depth", depth)
    backend = choose(backend, actions.device, *((1, 1) if depth is None else ()))
    # The product of weights and values is faster for long vectors on short sequences, and without the kernel.
    T, m = values.shape[1:]
    short = m >= 512 and m > 4 * T
    if backend != "reference" and (depth is not None or (backend == "cpp" and not short)):
        return vectors.readings(actions, values, lengths, depth, backend)
    weights = superposition_weights(actions, lengths, depth=depth, backend=backend)
    return weights @ values_without_padding(values, lengths, actions.shape[1]).to(weights.dtype)


def _reference(actions: Tensor, lengths: Tensor | None, depth: int | None) -> Tensor:
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    checks.check_numbers("actions", actions.detach(), lengths, minus_infinity=False)
    weights = reference.superposition_weights(without_padding(actions, lengths), depth)
    return without_padding(weights, lengths)


_op, _op_backward = operator_with_backward("superposition_weights", "Tensor actions, Tensor? lengths", "str backend")


@_op.implementation
def _(actions, lengths, backend):
    checks.check_actions(actions, lengths)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.superposition(actions, lengths)
    checks.check_numbers("actions", actions, lengths, minus_infinity=False)
    return module_of(backend).superposition(actions, lengths).to(actions.dtype).contiguous()


@_op_backward.implementation
@names_argument("actions", 1)
def _(grad, actions, lengths, backend):
    checks.check_actions(actions, lengths)
    if grad.shape != (expected := (*actions.shape[:2], actions.shape[1])):
        raise ValueError(f"grad: expected shape {expected} like the attention weights, got {tuple(grad.shape)}")
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.superposition_backward(grad, actions, lengths)
    return module_of(backend).superposition_backward(grad, actions, lengths).to(actions.dtype).contiguous()


@_op.fake
def _(actions, lengths, backend):
    B, T = actions.shape[:2]
    return actions.new_empty(B, T, T)


_op.batched_over_first_axis()
_op_backward.batched_over_first_axis()
