"""Calls to the C++ kernel for stacks.

Tensors are passed as DLPack capsules, and the kernel checks device, dtype, shape and layout before it takes an address
(kernel/arrays.h): a wrong tensor raises an error, even under `python -O`. A capsule costs 0.25 us; passing the tensor
itself, whose `__dlpack__` is written in Python, would cost 2.3 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from .. import checks
from ..dispatch import kernel, kernel_threads

if TYPE_CHECKING:
    from ..extension import Extension

HUGE = 1 << 22  # allocations of at least this many bytes (two huge pages) come from the pool
_TRANSITIONS = ("log_push", "log_replace", "log_pop")
_ACTIONS = ("actions",)


def _readable(x: Tensor) -> Tensor:
    """`x` as the kernel reads it: contiguous, float32 or float64, and without a pending negation.

    `contiguous` and `float` keep the negation bit of a view such as that of `torch._neg_view`, and DLPack ignores it.
    """
    return (x if x.dtype == torch.float64 else x.float()).resolve_neg().contiguous()


def _call(name: str, arguments: tuple[str, ...], lengths: Tensor | None, *values: Any) -> bool:
    """Call a function of the kernel, and return whether the range of float64 sufficed for its results.

    `values` are tensors, None, or numbers. `arguments` are the user's names for the arrays that the kernel checks for
    nan and infinity.
    """
    capsules = [to_dlpack(x) if isinstance(x, Tensor) else x for x in values]
    capsules.append(None if lengths is None else to_dlpack(lengths.resolve_neg().contiguous()))
    argument, sequence, step, in_range = getattr(kernel, name)(*capsules, kernel_threads())
    if argument:
        raise checks.bad_number(arguments[argument - 1], sequence, step, minus_infinity=arguments is _TRANSITIONS)
    return in_range


def nondeterministic(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> Tensor:
    B, T, Q, S = log_push.shape[:4]
    inputs = [_readable(x) for x in (log_push, log_replace, log_pop)]
    weights = inputs[0].new_empty(B, T, T + 1, Q, S)
    _call("nondeterministic", _TRANSITIONS, lengths, *inputs, weights)
    return weights.to(log_push.dtype)


def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = [_readable(x) for x in (log_push, log_replace, log_pop)]
    results = [torch.empty_like(x) for x in inputs]
    _call("nondeterministic_backward", _TRANSITIONS, lengths, *inputs, _readable(grad), *results)
    push, replace, pop = (x.to(log_push.dtype) for x in results)
    return push, replace, pop


def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    B, T = actions.shape[:2]
    wide = _readable(actions)
    weights = wide.new_empty(B, T, T)
    _call("superposition", _ACTIONS, lengths, wide, weights)
    return weights.to(actions.dtype)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    wide = _readable(actions)
    result = torch.empty_like(wide)
    _call("superposition_backward", _ACTIONS, lengths, wide, _readable(grad), result)
    return result.to(actions.dtype)


def empty_states(batch_size: int, size: int) -> Tensor:
    """Uninitialised memory for states or charts of `size` numbers each; if it is large, from the kernel's pool."""
    if kernel is not None and 8 * batch_size * size >= HUGE:
        return from_dlpack(kernel.pooled_array(batch_size, size))
    return torch.empty(batch_size, size, dtype=torch.float64)


def extend(data: Tensor, extension: Extension, steps: Tensor) -> tuple[Tensor, bool]:
    """Append `steps` to the states in `data` (B, room), and return their attention weights and `in_range`."""
    (Q, S), (B, c) = extension.layout, steps.shape[:2]
    wide = _readable(steps)
    T = extension.before + c
    weights = wide.new_empty((B, c, T) if extension.superposition else (B, c, T + 1, Q, S))
    in_range = _state_call("extend", extension, data, wide, weights)
    return weights.to(steps.dtype), in_range


def retract(
    state: Tensor,
    extension: Extension,
    steps: Tensor,
    grad_weights: Tensor | None,
    grad_state: Tensor | None,
    *,
    in_place: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the state before the extension and to its steps; `state` is the state after it.

    If `in_place`, the first gradient overwrites `grad_state`.
    """
    wide = _readable(steps)
    grad_steps = torch.empty_like(wide)
    if grad_weights is not None:
        grad_weights = _readable(grad_weights.to(wide.dtype))
    if grad_state is not None and not in_place:
        grad_state = aligned(grad_state)
    size = extension.layout.size(extension.before)
    grad_before = grad_state[:, :size] if in_place and grad_state is not None else state.new_empty(len(state), size)
    _state_call("retract", extension, aligned(state), wide, grad_weights, grad_state, grad_before, grad_steps)
    return grad_before, grad_steps.to(steps.dtype)


def aligned(x: Tensor) -> Tensor:
    """`x`, or a copy with contiguous rows that begin on 64-byte boundaries; hooks may return another layout."""
    x = x.resolve_neg()
    if x.stride(1) == 1 and x.data_ptr() % 64 == 0 and x.stride(0) % 8 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _state_call(name: str, extension: Extension, data: Tensor, *tensors: Tensor | None) -> bool:
    superposition = extension.superposition
    arguments = _ACTIONS if superposition else _TRANSITIONS
    return _call(name, arguments, extension.lengths, data, extension.before, superposition, *tensors)


def is_superposition(steps: Tensor) -> bool:
    """Whether steps are actions (B, T, 3), not transitions (B, T, Q, S, Q S + Q S + Q)."""
    return steps.dim() == 3


def readings_shape(steps: Tensor, values: Tensor) -> tuple[int, ...]:
    """(B, T, m) or (B, T, Q, S, m)"""
    return *steps.shape[: 2 if is_superposition(steps) else 4], values.shape[2]


def kept_charts(steps: Tensor, values: Tensor, limit: int) -> Tensor | None:
    """Memory for the charts of `readings`, or None if they would need more than `limit` bytes."""
    assert kernel is not None
    B, T = steps.shape[:2]
    Q, S = (1, 1) if is_superposition(steps) else steps.shape[2:4]
    size = kernel.kept_size(Q, S, T, values.shape[2])
    return empty_states(B, size) if 8 * B * size <= limit else None


def readings(steps: Tensor, values: Tensor, lengths: Tensor | None, kept: Tensor | None) -> Tensor:
    """Stack readings; the charts of the forward pass are stored in `kept`, if given, for `readings_backward`."""
    wide, vectors = _readable(steps), _readable(values.to(steps.dtype))
    result = wide.new_empty(readings_shape(steps, values))
    _readings_call("readings", lengths, wide, vectors, kept, result)
    return result.to(steps.dtype)


def readings_backward(
    grad: Tensor, steps: Tensor, values: Tensor, lengths: Tensor | None, kept: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of the steps and values; without `kept`, the charts are computed again."""
    wide, vectors = _readable(steps), _readable(values.to(steps.dtype))
    grad_steps, grad_values = torch.empty_like(wide), torch.empty_like(vectors)
    kept = None if kept is None else aligned(kept)
    grads = _readable(grad.to(steps.dtype)), grad_steps, grad_values
    _readings_call("readings_backward", lengths, wide, vectors, kept, *grads)
    return grad_steps.to(steps.dtype), grad_values.to(values.dtype)


def _readings_call(
    name: str, lengths: Tensor | None, steps: Tensor, values: Tensor, kept: Tensor | None, *tensors: Tensor
) -> None:
    superposition = is_superposition(steps)
    _call(name, _ACTIONS if superposition else _TRANSITIONS, lengths, steps, values, superposition, kept, *tensors)


def windowed(
    steps: Tensor,
    values: Tensor,
    history: Tensor,
    lengths: Tensor | None,
    window: int,
    band: Tensor | None = None,
    band_after: Tensor | None = None,
) -> Tensor:
    """Rows of the windowed stack (see `ops.window.rows_after`); `band` and `band_after` are made by `empty_band`."""
    wide = _readable(steps)
    rows = history.new_empty(len(steps), values.shape[1], history.shape[2])
    arrays = wide, _readable(values.to(wide.dtype)), _readable(history)
    _call("windowed", _TRANSITIONS, lengths, *arrays, window, band, band_after, rows)
    return rows


def windowed_backward(
    grad: Tensor, steps: Tensor, values: Tensor, history: Tensor, rows: Tensor, lengths: Tensor | None, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _readable(steps)
    arrays = wide, _readable(values.to(wide.dtype)), _readable(history)
    grads = [torch.empty_like(x) for x in arrays]
    _call("windowed_backward", _TRANSITIONS, lengths, *arrays, window, _readable(rows), _readable(grad), *grads)
    return grads[0].to(steps.dtype), grads[1].to(values.dtype), grads[2]


def empty_band(batch_size: int, Q: int, S: int, steps: int) -> Tensor:
    """Uninitialised memory for a band: the chart entries of the last `steps` steps that later steps need."""
    assert kernel is not None
    return torch.empty(batch_size, kernel.band_size(Q, S, steps), dtype=torch.float64)


_NO_LIMIT = 1 << 60


def vectors(
    actions: Tensor, values: Tensor, stack: Tensor, lengths: Tensor | None, depth: int | None, with_stack: bool
) -> Tensor:
    """Readings of a superposition stack and, if `with_stack`, its vectors after the last step; see `ops.vectors`."""
    (B, T, m), height, limit = values.shape, stack.shape[1], depth or _NO_LIMIT
    result = values.new_empty(B, T + (min(height + T, limit) if with_stack else 0), m)
    arrays = (_readable(x) for x in (actions, values, stack))
    _call("vectors", _ACTIONS, lengths, *arrays, limit, with_stack, result)
    return result


def vectors_backward(
    grad: Tensor, actions: Tensor, values: Tensor, stack: Tensor, lengths: Tensor | None, depth: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the actions, the values and the initial stack."""
    arrays = [_readable(x) for x in (actions, values, stack)]
    grads = [torch.empty_like(x) for x in arrays]
    limits = depth or _NO_LIMIT, grad.shape[1] > actions.shape[1]
    _call("vectors_backward", _ACTIONS, lengths, *arrays, *limits, _readable(grad), *grads)
    return grads[0], grads[1], grads[2]
