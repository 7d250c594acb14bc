"""The C++ kernel behind tensors: addresses and sizes in, numbers out."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..dispatch import _kernel  # pyright: ignore[reportAttributeAccessIssue]


def _wide(x: Tensor) -> Tensor:
    """Contiguous, and in one of the two dtypes that the kernel reads."""
    return (x if x.dtype == torch.float64 else x.float()).contiguous()


HUGE = 1 << 22  # bytes: two huge pages
_TRANSITIONS = ("log_push", "log_replace", "log_pop")


def _call(
    name: str, sizes: tuple[int, int, int, int], lengths: Tensor | None, arguments: tuple[str, ...], *tensors: Tensor
):
    assert all(x.is_contiguous() and x.dtype == tensors[0].dtype for x in tensors)
    _kernel_call(name, sizes, lengths, arguments, tensors[0].dtype, *(x.data_ptr() for x in tensors))


def _kernel_call(
    name: str,
    sizes: tuple[int, ...],
    lengths: Tensor | None,
    arguments: tuple[str, ...],
    dtype: torch.dtype,
    *rest: int,
) -> bool:
    """Calls the kernel and raises what it found wrong with the `arguments`; whether it vouches for the results."""
    assert _kernel is not None
    if lengths is not None:
        lengths = lengths.contiguous()
    try:
        argument, sequence, step, in_range = getattr(_kernel, name)(
            sizes,
            0 if lengths is None else lengths.data_ptr(),
            torch.get_num_threads(),
            dtype == torch.float64,
            *rest,
        )
    except MemoryError:
        _, T, Q, S = sizes
        raise MemoryError(f"not enough memory for the charts of {T} steps, {Q} states and {S} symbols") from None
    if argument:
        raise checks.bad_number(arguments[argument - 1], sequence, step, minus_infinity=arguments == _TRANSITIONS)
    return in_range


def nondeterministic(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> Tensor:
    B, T, Q, S = log_push.shape[:4]
    inputs = [_wide(x) for x in (log_push, log_replace, log_pop)]
    weights = inputs[0].new_empty(B, T, T + 1, Q, S)
    _call("nondeterministic", (B, T, Q, S), lengths, _TRANSITIONS, *inputs, weights)
    return weights.to(log_push.dtype)


def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, Q, S = log_push.shape[:4]
    inputs = [_wide(x) for x in (log_push, log_replace, log_pop)]
    results = [torch.empty_like(x) for x in inputs]
    _call("nondeterministic_backward", (B, T, Q, S), lengths, _TRANSITIONS, *inputs, _wide(grad), *results)
    push, replace, pop = (x.to(log_push.dtype) for x in results)
    return push, replace, pop


def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    B, T = actions.shape[:2]
    wide = _wide(actions)
    weights = wide.new_empty(B, T, T)
    _call("superposition", (B, T, 1, 1), lengths, ("actions",), wide, weights)
    return weights.to(actions.dtype)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    B, T = actions.shape[:2]
    wide = _wide(actions)
    result = torch.empty_like(wide)
    _call("superposition_backward", (B, T, 1, 1), lengths, ("actions",), wide, _wide(grad), result)
    return result.to(actions.dtype)


def empty_states(batch_size: int, size: int) -> Tensor:
    """Memory for states of `size` numbers: large ones are read whole at every step, and faster from huge pages."""
    assert _kernel is not None
    data = torch.empty(batch_size, size, dtype=torch.float64)
    if data.nbytes >= HUGE:
        _kernel.prefer_huge_pages(data.data_ptr(), data.nbytes)
    return data


def extend(data: Tensor, call, rows: Tensor) -> tuple[Tensor, bool]:
    """Append the steps in `rows` to the states in `data` (B, room); returns their attention weights."""
    (Q, S), (B, c) = call.layout, rows.shape[:2]
    wide = _wide(rows)
    T = call.before + c
    weights = wide.new_empty((B, c, T) if call.superposition else (B, c, T + 1, Q, S))
    in_range = _state_call("extend", (B, c, Q, S), data, call, wide.dtype, wide.data_ptr(), weights.data_ptr())
    return weights.to(rows.dtype), in_range


def _as_gradient(x: Tensor) -> Tensor:
    """Rows of contiguous numbers on 64-byte boundaries, as PyTorch allocates: a foreign tensor may not be so."""
    if x.stride(1) == 1 and x.data_ptr() % 64 == 0 and x.stride(0) % 8 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def retract(
    state: Tensor, call, rows: Tensor, grad_weights: Tensor | None, grad_state: Tensor | None, *, in_place: bool
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the state before the call's steps, and to their rows; `state` is the one after them.
    `in_place`, the first of them takes the place of `grad_state`."""
    (Q, S), (B, c) = call.layout, rows.shape[:2]
    wide = _wide(rows)
    grad_rows = torch.empty_like(wide)
    if grad_weights is not None:
        grad_weights = grad_weights.to(wide.dtype).contiguous()
    if grad_state is not None and not in_place:
        grad_state = _as_gradient(grad_state)
    size = call.layout.size(call.before)
    grad_before = grad_state[:, :size] if in_place and grad_state is not None else state.new_empty(B, size)
    _state_call(
        "retract",
        (B, c, Q, S),
        state,
        call,
        wide.dtype,
        wide.data_ptr(),
        0 if grad_weights is None else grad_weights.data_ptr(),
        0 if grad_state is None else grad_state.data_ptr(),
        0 if grad_state is None else grad_state.stride(0),
        grad_before.data_ptr(),
        grad_before.stride(0),
        grad_rows.data_ptr(),
    )
    return grad_before, grad_rows.to(rows.dtype)


def _state_call(name: str, sizes: tuple[int, ...], data: Tensor, call, dtype: torch.dtype, *rest: int) -> bool:
    arguments = ("actions",) if call.superposition else _TRANSITIONS
    assert data.data_ptr() % 64 == 0
    state = data.data_ptr(), data.stride(0), call.before, call.superposition
    return _kernel_call(name, sizes, call.lengths, arguments, dtype, *state, *rest)
