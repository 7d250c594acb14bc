"""Linear maps that are fast on AMD processors with AVX-512.

PyTorch's float32 matrix products call MKL. On these processors, oneDNN, which is also part of PyTorch, is about twice
as fast, and up to four times as fast for large matrices. PyTorch has no option that selects it for float32, so its
operator is called directly. With AVX2 only, the gain is small. Other processors use PyTorch's own function.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from .eager import differentiable_gradients, is_plain

SMALLEST = 2**22
"""Multiply-adds of the smallest product for which oneDNN is used."""

_FEWEST_ROWS = 64
# With fewer features or longer sums, the last bits of a product depend on the number of threads.
_FEWEST_FEATURES, _LONGEST_SUM = 16, 8192
_SCHEMA = (
    "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, computed by oneDNN if that is faster.

    oneDNN is faster for large products of float32 tensors on AMD processors with AVX-512. Its result does not depend on
    the number of threads, and differs from that of PyTorch's function by rounding. PyTorch's function is used for other
    tensors, processors and products, and under autocast, torch.compile and torch.func.

    Args:
        x: (..., K)
        weight: (N, K)
        bias: (N,), optional

    Returns:
        (..., N): x times the transposed weight, plus the bias.

    Examples::

        y = linear(torch.randn(2, 3, 4), torch.randn(5, 4))  # (2, 3, 5)
    """
    if _is_faster(x, weight, bias):
        return _Linear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return functional.linear(x, weight, bias)


def _is_faster(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x.numel() * weight.shape[0] >= SMALLEST  # checked first: it keeps small models fast
        and is_plain(x, weight)
        and onednn_is_faster()
        and weight.dim() == 2
        and min(weight.shape) >= _FEWEST_FEATURES
        and x.shape[-1] == weight.shape[1]
        and x.numel() >= _FEWEST_ROWS * weight.shape[1]
        and (bias is None or (is_plain(bias) and bias.shape == weight.shape[:1]))
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


@cache
def onednn_is_faster() -> bool:
    """Whether the processor is an AMD one with AVX-512, and PyTorch has the operator that calls oneDNN."""
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        schema = str(torch.ops.mkldnn._linear_pointwise.default._schema)
    except AttributeError:  # not part of PyTorch's documented operators
        return False
    return schema == _SCHEMA and _is_amd()


def _is_amd() -> bool:
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        description = platform.processor()
    return "AuthenticAMD" in description


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of a (M, K) and the transpose of b (N, K), plus the bias (N,), computed by oneDNN."""
    first, *others = zip(a.split(_LONGEST_SUM, dim=1), b.split(_LONGEST_SUM, dim=1), strict=True)
    result = _onednn(*first, None if bias is None else bias.contiguous())  # oneDNN ignores the stride of the bias
    for left, right in others:
        result += _onednn(left, right, None)
    return result


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


def _step(rows: int) -> int:
    """Return a step such that oneDNN is called only with multiples of it as the number of rows.

    Batches of any size then have few different shapes. oneDNN compiles code for each shape, and keeps that of the last
    1,024 shapes, at about 0.7 MB each.
    """
    return max(_FEWEST_ROWS, 1 << (rows.bit_length() - 4))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        rows = x.reshape(-1, x.shape[-1])  # (M, K)
        padding = -len(rows) % _step(len(rows))
        y = product(functional.pad(rows, (0, 0, 0, padding)), weight, bias)[: len(rows)]
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (x, weight) if bias is None else (x, weight, bias)
            found = differentiable_gradients(functional.linear(*inputs), inputs, grad)
            return *found, *([None] if bias is None else [])
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])  # (M, K), (M, N)
        # The last rows are left to PyTorch: padding would copy the gradients, which may be as wide as a vocabulary.
        most = len(rows) - len(rows) % _step(len(rows))
        grad_x = grad_weight = None
        if for_x:
            grad_x = torch.cat([product(grads[:most], weight.t()), grads[most:] @ weight]).view_as(x)
        if for_weight:
            grad_weight = product(grads[:most].t(), rows[:most].t()).addmm_(grads[most:].t(), rows[most:])
        return grad_x, grad_weight, grads.sum(0) if for_bias else None
