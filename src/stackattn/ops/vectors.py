"""Readings of the superposition stack without its attention weights, from any initial stack and to any depth.

The stack is a tensor of vectors (B, height, m), top first. One step costs O(height m) operations, so T steps cost
O(T^2 m), or O(T depth m) if only the top `depth` elements are kept. See docs/maths.md, section 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks
from .cpp import native
from .eager import backward_is_differentiated, differentiable_gradients, is_plain
from .memory import names_argument
from .pytorch import vectors as torch_backend
from .registration import NO_SECOND_DERIVATIVES, Operator


def read_stack(
    actions: Tensor, values: Tensor, stack: Tensor, lengths: Tensor | None, depth: int | None, backend: str
) -> tuple[Tensor, Tensor]:
    """Take T steps from a stack.

    Args:
        actions: (B, T, 3)
        values: (B, T, m)
        stack: (B, height, m)
            float32 or float64, which is the dtype of the computation.
        lengths: (B,), optional
        depth: number of elements that are kept, or None for all.
        backend: `"torch"` or `"cpp"`.

    Returns:
        Readings (B, T, m) in the dtype of the actions, and the stack after the last step (B, new height, m).
    """
    result = _read(actions.to(stack.dtype), values.to(stack.dtype), stack, lengths, depth, True, backend)
    readings, stack = result.split((actions.shape[1], result.shape[1] - actions.shape[1]), dim=1)
    return readings.to(actions.dtype), stack


def readings(actions: Tensor, values: Tensor, lengths: Tensor | None, depth: int | None, backend: str) -> Tensor:
    """Readings (B, T, m) from an empty stack, in the dtype of the actions."""
    dtype = computing_dtype(actions.dtype)
    empty = values.new_zeros(values.shape[0], 0, values.shape[2], dtype=dtype)
    return _read(actions.to(dtype), values.to(dtype), empty, lengths, depth, False, backend).to(actions.dtype)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return dtype if dtype == torch.float64 else torch.float32


def _read(
    actions: Tensor,
    values: Tensor,
    stack: Tensor,
    lengths: Tensor | None,
    depth: int | None,
    with_stack: bool,
    backend: str,
) -> Tensor:
    """(B, T + height, m): readings, then the stack after the last step; without the stack, height is 0."""
    tensors = (actions, values, stack)
    if backend == "cpp" and is_plain(*tensors, dtypes=(torch.float32, torch.float64)):
        lengths = checks.copy_lengths(lengths, actions.shape[1])
        return _Read.apply(*tensors, lengths, depth, with_stack)  # pyright: ignore[reportReturnType]
    return _op(*tensors, lengths, depth, with_stack, backend)


class _Read(torch.autograd.Function):
    """The kernel for eager code: half the overhead of a registered operator."""

    @staticmethod
    def forward(ctx, actions, values, stack, lengths, depth, with_stack):
        ctx.lengths, ctx.depth, ctx.with_stack = lengths, depth, with_stack
        ctx.save_for_backward(actions, values, stack)
        return native.vectors(actions, values, stack, lengths, depth, with_stack)

    @staticmethod
    @names_argument("actions", 1)
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        actions, values, stack = tensors = ctx.saved_tensors
        if not backward_is_differentiated():
            found = native.vectors_backward(grad, actions, values, stack, ctx.lengths, ctx.depth)
            return *found, None, None, None

        def read(actions: Tensor, values: Tensor, stack: Tensor) -> Tensor:
            return torch_backend.forward(actions, values, stack, ctx.lengths, ctx.depth, ctx.with_stack)

        return *differentiable_gradients(read, tensors, grad), None, None, None


_op = Operator(
    "superposition_readings",
    "(Tensor actions, Tensor values, Tensor stack, Tensor? lengths, int? depth, bool with_stack, str backend)"
    " -> Tensor",
)
_op_backward = Operator(
    "superposition_readings_backward",
    "(Tensor grad, Tensor actions, Tensor values, Tensor stack, Tensor? lengths, int? depth, str backend)"
    " -> (Tensor, Tensor, Tensor)",
)


@_op.implementation
def _(actions, values, stack, lengths, depth, with_stack, backend):
    checks.check_lengths(lengths, actions)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.vectors(actions, values, stack, lengths, depth, with_stack)
    checks.check_numbers("actions", actions, lengths, minus_infinity=False)
    return torch_backend.forward(actions, values, stack, lengths, depth, with_stack)


@_op_backward.implementation
@names_argument("actions", 1)
def _(grad, actions, values, stack, lengths, depth, backend):
    lengths = checks.copy_lengths(lengths, actions.shape[1])
    if backend == "cpp":
        return native.vectors_backward(grad, actions, values, stack, lengths, depth)
    grads = torch_backend.backward(grad, actions, values, stack, lengths, depth)
    return tuple(x.contiguous() for x in grads)


@_op.fake
def _(actions, values, stack, lengths, depth, with_stack, backend):
    (B, T, m), height = values.shape, stack.shape[1]
    if with_stack:
        rows = height + T if depth is None else min(height + T, depth)
    return values.new_empty(B, T + (rows if with_stack else 0), m)


@_op_backward.fake
def _(grad, actions, values, stack, lengths, depth, backend):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (actions, values, stack))


@_op.gradient
def _(inputs, memory, grad, depth, with_stack, backend):
    return _op_backward(grad, *inputs, depth, backend)


_op_backward.without_gradient(NO_SECOND_DERIVATIVES)
_op.batched_over_first_axis()
_op_backward.batched_over_first_axis()
