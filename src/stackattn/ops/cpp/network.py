"""Calls to the C++ kernel for softmax attention, dropout, cross-entropy and LSTMs.

All tensors are on the CPU. Inputs and results are float32, except that logits, their losses and their gradients may be
float64, charts are float64, and targets and lengths are int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from ..dispatch import kernel, kernel_threads
from .native import aligned, empty_states

_UINT64 = (1 << 64) - 1


def _call(name: str, *values: Any) -> Any:
    """Call a function of the kernel, which checks the dtype, shape and layout of all arrays.

    DLPack ignores the pending negation of a view such as that of `torch._neg_view`. Outputs never have one.
    """
    capsules = [to_dlpack(x.resolve_neg()) if isinstance(x, Tensor) else x for x in values]
    return getattr(kernel, name)(*capsules, kernel_threads())


def attention(packed: Tensor, heads: int, lengths: Tensor | None, p: float, seed: int) -> tuple[Tensor, Tensor]:
    """packed (B, T, 3 * heads * size) -> outputs (B, T, heads * size) and log_sums (B, heads, T)"""
    B, T, width = packed.shape
    outputs, log_sums = packed.new_empty(B, T, width // 3), packed.new_empty(B, heads, T)
    _call("attention", packed.contiguous(), heads, p, seed & _UINT64, outputs, log_sums, lengths)
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
    inputs = packed.contiguous(), heads, p, seed & _UINT64, outputs.contiguous(), log_sums.contiguous()
    _call("attention_backward", *inputs, grad.contiguous(), result, lengths)
    return result


def dropout(x: Tensor, residual: Tensor | None, relu: bool, p: float, seed: int) -> Tensor:
    """residual + dropout(x), or dropout(relu(x))"""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    y = torch.empty_like(x)
    _call("dropout", x, residual, relu, p, seed & _UINT64, y)
    return y


def dropout_backward(grad: Tensor, y: Tensor | None, p: float, seed: int) -> Tensor:
    """The gradient of x; `y` is the result of `dropout` if `relu` was true, otherwise None."""
    grad = grad.contiguous()
    result = torch.empty_like(grad)
    _call("dropout_backward", y, grad, p, seed & _UINT64, result)
    return result


def cross_entropy(logits: Tensor, targets: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """logits (N, C), float32 or float64, and targets (N,) -> losses (N,) and what the backward pass needs (N, 2)"""
    losses, kept = logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)
    _call("cross_entropy", logits.contiguous(), targets.contiguous(), ignored, smoothing, losses, kept)
    return losses, kept


def cross_entropy_backward(
    grad: Tensor, logits: Tensor, targets: Tensor, kept: Tensor, ignored: int, smoothing: float
) -> Tensor:
    """The gradient of the logits; `kept` is that of `cross_entropy` with the same arguments."""
    result = torch.empty_like(logits, memory_format=torch.contiguous_format)
    inputs = logits.contiguous(), targets.contiguous(), ignored, smoothing, kept, grad.contiguous()
    _call("cross_entropy_backward", *inputs, result)
    return result


def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """a.T @ b for (R, M) and (R, N), with the same bits for any number of threads; N is a multiple of 8."""
    result = a.new_empty(a.shape[1], b.shape[1])
    _call("sum_of_products", a.contiguous(), b.contiguous(), result)
    return result


class LSTMSizes(NamedTuple):
    """Sizes of an LSTM with a stack. All except `value_size` are padded to multiples of 8."""

    hidden: int
    reading: int
    actions: int
    value: int
    value_size: int

    def arrays(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Memory for x, gates, cells and actions, which the forward pass writes (kernel/network.h).

        Args:
            inputs: (T, B, 4 hidden)
        """
        T, B = inputs.shape[:2]
        return (
            inputs.new_zeros(T + 1, B, self.reading + self.hidden),
            inputs.new_empty(T, B, 4 * self.hidden),
            inputs.new_zeros(T + 1, B, self.hidden),
            inputs.new_zeros(T, B, self.actions + self.value),
        )


def superposition_lstm(sizes: LSTMSizes, inputs: Tensor, weight: Tensor, map: Tensor, bias: Tensor) -> list[Tensor]:
    """An LSTM with a superposition stack: its arrays and its stacks."""
    assert kernel is not None
    arrays = sizes.arrays(inputs)
    stacks = inputs.new_empty(inputs.shape[1], kernel.lstm_stack_size(inputs.shape[0], sizes.value))
    _call("superposition_lstm", *arrays, *sizes[3:], stacks, inputs, weight, map, bias)
    return [*arrays, stacks]


def superposition_lstm_backward(
    sizes: LSTMSizes, made: Sequence[Tensor], weight: Tensor, map: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of gates and actions before their activation functions; weight and map are transposed."""
    *arrays, stacks = (x.contiguous() for x in made)
    gates, actions = torch.empty_like(arrays[1]), torch.zeros_like(arrays[3])
    _call("superposition_lstm_backward", *arrays, *sizes[3:], stacks, weight, map, grad, gates, actions)
    return gates, actions


def nondeterministic_lstm(
    sizes: LSTMSizes,
    automaton: tuple[int, int],
    inputs: Tensor,
    weight: Tensor,
    map: Tensor,
    bias: Tensor,
    bottom: Tensor,
    keep: bool,
) -> list[Tensor] | None:
    """An LSTM with the nondeterministic stack of an `automaton` (Q, S): its arrays and, if `keep`, its charts.

    None if a log weight is nan or +inf, or if the range of float64 does not suffice.
    """
    assert kernel is not None
    arrays, charts = sizes.arrays(inputs), None
    if keep:
        charts = empty_states(inputs.shape[1], kernel.lstm_chart_size(*automaton, inputs.shape[0], sizes.value_size))
    matrices = inputs, weight, map, bias, bottom
    complete = _call("nondeterministic_lstm", *arrays, *sizes[3:], charts, *automaton, *matrices)
    return [*arrays, *([] if charts is None else [charts])] if complete else None


def nondeterministic_lstm_backward(
    sizes: LSTMSizes, automaton: tuple[int, int], made: Sequence[Tensor], weight: Tensor, map: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of gates and actions, as in `superposition_lstm_backward`, and of the bottom vectors (B, m)."""
    *arrays, charts = made
    arrays = [x.contiguous() for x in arrays]
    gates, actions = torch.empty_like(arrays[1]), torch.zeros_like(arrays[3])
    bottom = grad.new_empty(grad.shape[1], sizes.value_size)
    results = gates, actions, bottom
    inputs = aligned(charts), *automaton, weight, map, grad
    _call("nondeterministic_lstm_backward", *arrays, *sizes[3:], *inputs, *results)
    return results
