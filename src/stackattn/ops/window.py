"""The windowed nondeterministic stack: an element that is not popped in time becomes a bottom.

Runs may read and replace such an element but not pop it. Time is linear in the number of steps, and later rows depend
only on the last `window - 1` steps and the last `window` *rows*. A row (Q S (m + 2) + 1 numbers) sums over all runs up
to a time point. For each state and symbol on top, it has the weighted sum of the runs' top vectors, the sum of the
runs' weights, and an exponent e; both sums are in units of 2^e times the mass of all runs. The last number of a row is
the logarithm of that mass, relative to the row before. Without the exponents e, runs of very small weight would
underflow in float64. See docs/maths.md, section 10.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from . import checks
from .cpp import native
from .dispatch import module_of
from .eager import is_plain
from .memory import names_argument
from .registration import NO_SECOND_DERIVATIVES, Operator
from .transitions import split_transitions


def windowed_readings(steps: Tensor, values: Tensor, lengths: Tensor | None, window: int, backend: str) -> Tensor:
    """Readings (B, T, Q, S, m) of joined transitions (B, T, Q, S, Q S + Q S + Q) and values (B, T + 1, m)."""
    T, Q, S = steps.shape[1:4]
    if T == 0:
        checks.copy_lengths(lengths, T)
        return steps[..., :1] * values[:, :0, None, None].to(steps.dtype)  # a product, so that it can be differentiated
    rows = rows_after(steps, values[:, 1:], first_row(values[:, 0], Q, S), lengths, window, backend)
    return readings_of(rows, Q, S).to(steps.dtype)


def windowed_weights(steps: Tensor, lengths: Tensor | None, window: int, backend: str) -> Tensor:
    """Attention weights (B, T, T + 1, Q, S): the readings of unit vectors."""
    B, T = steps.shape[:2]
    unit_vectors = torch.eye(T + 1, dtype=steps.dtype, device=steps.device).expand(B, T + 1, T + 1)
    return windowed_readings(steps, unit_vectors, lengths, window, backend).permute(0, 1, 4, 2, 3)


def first_row(bottom: Tensor, Q: int, S: int) -> Tensor:
    """The row (B, 1, Q S (m + 2) + 1) before the first step: one run, in state 0 with the bottom element on top."""
    start = pad(torch.cat([bottom.double(), bottom.new_ones(len(bottom), 1, dtype=torch.float64)], 1), (0, 1))
    return pad(start, (0, (Q * S - 1) * start.shape[1] + 1))[:, None]


def readings_of(rows: Tensor, Q: int, S: int) -> Tensor:
    """(B, T, Q, S, m). Rows have mass 1 or 0 already; the division makes autograd differentiate the normalisation."""
    entries = rows[..., :-1].unflatten(-1, (Q, S, -1))
    numbers = torch.ldexp(entries[..., :-1], entries[..., -1:].detach())
    mass = numbers[..., -1:].sum((2, 3), keepdim=True)
    return numbers[..., :-1] / mass.where(mass > 0, 1.0)


def rows_after(
    steps: Tensor, values: Tensor, history: Tensor, lengths: Tensor | None, window: int, backend: str
) -> Tensor:
    """The rows of T new steps.

    Args:
        steps: (B, H + T, Q, S, Q S + Q S + Q)
            Joined transitions, those of the last H < window steps first. Steps before the first one have only forbidden
            transitions.
        values: (B, T, m)
            The vectors that the new steps push.
        history: (B, H + 1, Q S (m + 2) + 1), float64
            The last rows so far, with zeros before the first one.
        lengths: (B,), optional
            How many of the T steps each sequence takes; later rows are zero.
        window: as in `nondeterministic_weights`.
        backend: `"torch"`, `"cpp"` or `"triton"`.

    Returns:
        (B, T, Q S (m + 2) + 1), float64
    """
    return _op(steps, values, history, lengths, window, backend)


def extend_rows(
    steps: Tensor,
    values: Tensor,
    history: Tensor,
    band: Tensor | None,
    lengths: Tensor | None,
    window: int,
    backend: str,
) -> tuple[Tensor, Tensor | None]:
    """`rows_after` for states, and the kernel's band of the last steps, or None without the kernel.

    `band` is that of the earlier steps, from the previous call; if it is None, the kernel computes it from `steps`.
    """
    B, count, Q, S = steps.shape[:4]
    if backend != "cpp" or not is_plain(steps, history, dtypes=(torch.float32, torch.float64)):
        return rows_after(steps, values, history, lengths, window, backend), None
    lengths = checks.copy_lengths(lengths, values.shape[1])
    after = native.empty_band(B, Q, S, min(count, window - 1))
    return _ExtendRows.apply(steps, values, history, band, after, lengths, window), after  # pyright: ignore


class _ExtendRows(torch.autograd.Function):
    """`rows_after` with bands, which are computed again in the backward pass."""

    @staticmethod
    def forward(ctx, steps, values, history, band, band_after, lengths, window):
        rows = native.windowed(steps, values, history, lengths, window, band, band_after)
        ctx.lengths, ctx.window = lengths, window
        ctx.save_for_backward(steps, values, history, rows)
        return rows

    @staticmethod
    @once_differentiable
    @names_argument("log_push", 1)
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        steps, values, history, rows = ctx.saved_tensors
        grads = native.windowed_backward(grad, steps, values, history, rows, ctx.lengths, ctx.window)
        return *grads, None, None, None, None


def _check_numbers(steps: Tensor, T: int, lengths: Tensor | None) -> None:
    for name, x in zip(("log_push", "log_replace", "log_pop"), split_transitions(steps[:, -T:]), strict=True):
        checks.check_numbers(name, x, lengths, minus_infinity=True)


_op = Operator(
    "windowed_rows",
    "(Tensor steps, Tensor values, Tensor history, Tensor? lengths, SymInt window, str backend) -> Tensor",
    saves_result=True,
)
_op_backward = Operator(
    "windowed_rows_backward",
    "(Tensor grad, Tensor steps, Tensor values, Tensor history, Tensor rows, Tensor? lengths, SymInt window,"
    " str backend) -> (Tensor, Tensor, Tensor)",
)


@_op.implementation
def _(steps, values, history, lengths, window, backend):
    T = values.shape[1]
    checks.check_lengths(lengths, values)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, T)
    if backend == "cpp":
        return native.windowed(steps, values, history, lengths, window)
    _check_numbers(steps, T, lengths)
    return module_of(backend, "window").forward(steps, values, history, lengths, window)


@_op_backward.implementation
@names_argument("log_push", 1)
def _(grad, steps, values, history, rows, lengths, window, backend):
    lengths = checks.copy_lengths(lengths, values.shape[1])
    if backend == "cpp":
        return native.windowed_backward(grad, steps, values, history, rows, lengths, window)
    found = module_of(backend, "window").backward(grad, steps, values, history, rows, lengths, window)
    return tuple(x.to(like.dtype).contiguous() for x, like in zip(found, (steps, values, history), strict=True))


@_op.fake
def _(steps, values, history, lengths, window, backend):
    return history.new_empty(len(steps), values.shape[1], history.shape[2])


@_op_backward.fake
def _(grad, steps, values, history, rows, lengths, window, backend):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (steps, values, history))


@_op.gradient
def _(inputs, memory, grad, window, backend):
    *tensors, lengths = inputs
    return _op_backward(grad, *tensors, *memory, lengths, window, backend)


_op_backward.without_gradient(NO_SECOND_DERIVATIVES)
_op.batched_over_first_axis()
_op_backward.batched_over_first_axis()
