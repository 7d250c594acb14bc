"""The C++ kernel behind tensors: addresses and sizes in, numbers out."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks
from .backends import _kernel


def _wide(x: Tensor) -> Tensor:
    """Contiguous, and in one of the two dtypes that the kernel reads."""
    return (x if x.dtype == torch.float64 else x.float()).contiguous()


def _call(name: str, sizes: tuple[int, int, int, int], lengths: Tensor | None, *tensors: Tensor) -> tuple[int, int, int]:
    if lengths is not None:
        lengths = lengths.contiguous()
    assert _kernel is not None
    assert all(x.is_contiguous() and x.dtype == tensors[0].dtype for x in tensors)
    return getattr(_kernel, name)(
        sizes,
        0 if lengths is None else lengths.data_ptr(),
        torch.get_num_threads(),
        tensors[0].dtype == torch.float64,
        *(x.data_ptr() for x in tensors),
    )


def nondeterministic(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> Tensor:
    B, T, Q, S = log_push.shape[:4]
    inputs = [_wide(x) for x in (log_push, log_replace, log_pop)]
    weights = inputs[0].new_empty(B, T, T + 1, Q, S)
    argument, sequence, step = _call("nondeterministic", (B, T, Q, S), lengths, *inputs, weights)
    if argument:
        raise checks.bad_number(("log_push", "log_replace", "log_pop")[argument - 1], sequence, step, minus_infinity=True)
    return weights.to(log_push.dtype)


def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, Q, S = log_push.shape[:4]
    inputs = [_wide(x) for x in (log_push, log_replace, log_pop)]
    results = [torch.empty_like(x) for x in inputs]
    _call("nondeterministic_backward", (B, T, Q, S), lengths, *inputs, _wide(grad), *results)
    push, replace, pop = (x.to(log_push.dtype) for x in results)
    return push, replace, pop


def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    B, T = actions.shape[:2]
    wide = _wide(actions)
    weights = wide.new_empty(B, T, T)
    argument, sequence, step = _call("superposition", (B, T, 1, 1), lengths, wide, weights)
    if argument:
        raise checks.bad_number("actions", sequence, step, minus_infinity=False)
    return weights.to(actions.dtype)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    B, T = actions.shape[:2]
    wide = _wide(actions)
    result = torch.empty_like(wide)
    _call("superposition_backward", (B, T, 1, 1), lengths, wide, _wide(grad), result)
    return result.to(actions.dtype)


def fold(info, in_dims, *tensors: Tensor | None) -> list[Tensor | None]:
    """torch.func.vmap: the extra axis becomes part of the batch axis."""
    folded = []
    for x, dim in zip(tensors, in_dims, strict=False):
        if x is not None:
            x = x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)
            x = x.flatten(0, 1)
        folded.append(x)
    return folded
