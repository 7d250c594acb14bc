"""Readings of the nondeterministic stack, computed without its attention weights.

A tensor of attention weights of the nondeterministic stack has T (T + 1) Q S numbers for each sequence. A layer that
does not return its weights needs only the readings, T Q S m numbers; the kernel carries the values through its chart
and never computes the weights. Results are the same up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks
from .cpp import native
from .dispatch import choose
from .eager import backward_is_differentiated, differentiable_gradients, is_plain
from .lengths import values_without_padding
from .memory import chart_memory, names_argument
from .nondeterministic import nondeterministic_weights
from .registration import operator_with_backward
from .transitions import join_transitions, split_transitions
from .window import windowed_readings

_DEFAULT_MEMORY = 256  # MB


@names_argument("log_push")
def nondeterministic_readings(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    values: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Readings of the nondeterministic stack: the expected top vector, jointly with state and top symbol.

    The `cpp` backend keeps the charts of a call for the backward pass if they need at most 256 MB (the environment
    variable STACKATTN_CHART_MEMORY sets another limit, in MB); otherwise it computes them again.

    Args:
        log_push: (B, T, Q, S, Q, S), as in `nondeterministic_weights`.
        log_replace: (B, T, Q, S, Q, S)
        log_pop: (B, T, Q, S, Q)
        values: (B, T + 1, m)
            The bottom vector, then the vector that each step pushes.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their readings and gradients are zero.
        window: as in `nondeterministic_weights`. Time and memory are then proportional to T.
        backend: `"auto"`, `"reference"`, `"torch"`, `"cpp"` or `"triton"`; see `stackattn.backends()`.

    Returns:
        (B, T, Q, S, m)
            `weights[b, t, :, r, y] @ values[b]` with the weights of `nondeterministic_weights`.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, or is out of range, or a log
            weight within the lengths is nan or +inf.
        RuntimeError: the requested backend is not available.

    Examples::

        values = torch.cat([bottom, pushed], dim=1)  # (B, 1, m) and (B, T, m)
        readings = nondeterministic_readings(log_push, log_replace, log_pop, values)
    """
    checks.check_transitions(log_push, log_replace, log_pop, lengths)
    checks.check_values(values, log_push, log_push.shape[1] + 1)
    checks.check_limit("window", window)
    backend = choose(backend, log_push.device, *log_push.shape[2:4], windowed=window is not None)
    if window is not None and backend != "reference":
        steps = join_transitions(log_push, log_replace, log_pop)
        return windowed_readings(steps, values, lengths, window, backend)
    if backend == "cpp" and _kernel_is_faster(values):
        return _readings(join_transitions(log_push, log_replace, log_pop), values, lengths)
    dtype = log_push.dtype
    if dtype.itemsize < 4:  # weights and their gradients are intermediate results here: round only the readings
        log_push, log_replace, log_pop = log_push.float(), log_replace.float(), log_pop.float()
    weights = nondeterministic_weights(log_push, log_replace, log_pop, lengths, window=window, backend=backend)
    values = values_without_padding(values, lengths, log_push.shape[1]).to(weights.dtype)
    B, T, _, Q, S = weights.shape
    rows = weights.flatten(3).mT.flatten(1, 2)  # (B, T * Q * S, T + 1)
    return (rows @ values).reshape(B, T, Q, S, values.shape[2]).to(dtype)


@names_argument("log_push")
def joined_readings(transitions: Tensor, values: Tensor, lengths: Tensor | None, window: int | None = None) -> Tensor:
    """`nondeterministic_readings` of transitions in one tensor, (B, T, Q, S, Q S + Q S + Q)."""
    if window is not None:
        checks.check_lengths(lengths, transitions)
        backend = choose("auto", transitions.device, *transitions.shape[2:4], windowed=True)
        return windowed_readings(transitions, values, lengths, window, backend)
    if choose("auto", transitions.device) == "cpp" and _kernel_is_faster(values):
        checks.check_lengths(lengths, transitions)
        return _readings(transitions, values, lengths)
    return nondeterministic_readings(*split_transitions(transitions), values, lengths)


def _kernel_is_faster(values: Tensor) -> bool:
    """Whether the kernel's readings are faster than weights times values.

    The kernel computes in float64, PyTorch's product in the dtype of the weights, which is faster for long vectors.
    """
    return values.shape[2] <= max(values.shape[1], 16)


def _readings(steps: Tensor, values: Tensor, lengths: Tensor | None) -> Tensor:
    """The readings of transitions (B, T, Q, S, Q S + Q S + Q), computed by the kernel."""
    if is_plain(steps, values, dtypes=(torch.float32, torch.float64)):
        lengths = checks.copy_lengths(lengths, steps.shape[1])
        keep = torch.is_grad_enabled() and (steps.requires_grad or values.requires_grad)
        return _Readings.apply(steps, values, lengths, keep)  # pyright: ignore[reportReturnType]
    return _op(steps, values, lengths)


class _Readings(torch.autograd.Function):
    """The kernel for eager code: half the overhead of a registered operator, and charts that are kept."""

    @staticmethod
    def forward(ctx, steps, values, lengths, keep):
        kept = native.kept_charts(steps, values, chart_memory(_DEFAULT_MEMORY)) if keep else None
        ctx.lengths = lengths
        ctx.save_for_backward(steps, values, kept)
        return native.readings(steps, values, lengths, kept)

    @staticmethod
    @names_argument("log_push", 1)
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        steps, values, kept = ctx.saved_tensors
        if not backward_is_differentiated():
            return *native.readings_backward(grad, steps, values, ctx.lengths, kept), None, None

        def readings(steps: Tensor, values: Tensor) -> Tensor:
            return nondeterministic_readings(*split_transitions(steps), values, ctx.lengths, backend="reference")

        return *differentiable_gradients(readings, (steps, values), grad), None, None


# For torch.compile and torch.func. Charts are not kept.
_op, _op_backward = operator_with_backward("readings", "Tensor steps, Tensor values, Tensor? lengths")


@_op.implementation
def _(steps, values, lengths):
    checks.check_lengths(lengths, steps)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, steps.shape[1])
    return native.readings(steps, values, lengths, None)


@_op_backward.implementation
@names_argument("log_push", 1)
def _(grad, steps, values, lengths):
    lengths = checks.copy_lengths(lengths, steps.shape[1])
    return native.readings_backward(grad, steps, values, lengths, None)


@_op.fake
def _(steps, values, lengths):
    return steps.new_empty(native.readings_shape(steps, values))


_op.batched_over_first_axis()
_op_backward.batched_over_first_axis()
