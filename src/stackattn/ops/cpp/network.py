"""Softmax attention, dropout and LSTM of the C++ kernel, for float32 tensors on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from ..dispatch import kernel

_UINT64 = (1 << 64) - 1


def _call(name: str, *values: Any) -> None:
    """Call a function of the kernel, which checks dtype, shape and layout of all arrays."""
    capsules = [to_dlpack(x) if isinstance(x, Tensor) else x for x in values]
    getattr(kernel, name)(*capsules, torch.get_num_threads())


def _readable(x: Tensor) -> Tensor:
    return x.resolve_neg().contiguous()


def attention(packed: Tensor, heads: int, lengths: Tensor | None, p: float, seed: int) -> tuple[Tensor, Tensor]:
    """packed (B, T, 3 * heads * size) -> outputs (B, T, heads * size) and log_sums (B, heads, T)"""
    B, T, width = packed.shape
    outputs, log_sums = packed.new_empty(B, T, width // 3), packed.new_empty(B, heads, T)
    _call("attention", _readable(packed), heads, p, seed & _UINT64, outputs, log_sums, lengths)
    return outputs, log_sums


def attention_backward(
    grad: Tensor,
    packed: Tensor,
    outputs: Tensor,
    log_sums: Tensor,
    heads: int,
    lengths: Tensor | None,
    p: float,
    seed: int,
) -> Tensor:
    """The gradient of `packed`; outputs and log_sums are those of `attention` with the same arguments."""
    result = torch.empty_like(packed, memory_format=torch.contiguous_format)
    inputs = _readable(packed), heads, p, seed & _UINT64, _readable(outputs), _readable(log_sums)
    _call("attention_backward", *inputs, _readable(grad), result, lengths)
    return result


def dropout(x: Tensor, residual: Tensor | None, relu: bool, p: float, seed: int) -> Tensor:
    """residual + dropout(x), or dropout(relu(x))"""
    x, residual = _readable(x), None if residual is None else _readable(residual)
    y = torch.empty_like(x)
    _call("dropout", x, residual, relu, p, seed & _UINT64, y)
    return y


def dropout_backward(grad: Tensor, y: Tensor | None, p: float, seed: int) -> Tensor:
    """The gradient of x; `y` is the result if there was a ReLU, else None."""
    grad = _readable(grad)
    result = torch.empty_like(grad)
    _call("dropout_backward", y, grad, p, seed & _UINT64, result)
    return result


def lstm(inputs: Tensor, weight: Tensor, map: Tensor, bias: Tensor, value_size: int, value: int) -> tuple[Tensor, ...]:
    """An LSTM with a superposition stack: its arrays x, gates, cells, actions and stacks (kernel/network.h)."""
    assert kernel is not None
    T, B = inputs.shape[:2]
    h = inputs.shape[2] // 4
    arrays = (
        inputs.new_zeros(T + 1, B, value + h),
        inputs.new_empty(T, B, 4 * h),
        inputs.new_zeros(T + 1, B, h),
        inputs.new_zeros(T, B, 8 + value),
        inputs.new_empty(B, kernel.lstm_stack_size(T, value)),
    )
    _call("lstm", *arrays, value_size, inputs, weight, map, bias)
    return arrays


def lstm_backward(
    arrays: tuple[Tensor, ...], value_size: int, weight: Tensor, map: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of gates (T, B, 4 h) and actions (T, B, 8 + m) before their activation functions."""
    gates, actions = torch.empty_like(arrays[1]), torch.zeros_like(arrays[3])
    _call("lstm_backward", *(_readable(x) for x in arrays), value_size, weight, map, grad, gates, actions)
    return gates, actions
