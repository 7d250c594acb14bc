"""Linear maps that are fast on AMD processors with AVX-512.

PyTorch's float32 matrix products call MKL. On these processors, oneDNN, which is also part of PyTorch, is about twice
as fast, and up to four times as fast for large matrices. PyTorch has no option that selects it for float32, so the
oneDNN operator is called directly. With AVX2 only, the gain is small. Other processors use PyTorch's own function.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from .eager import backward_is_differentiated, is_plain

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
    the number of threads (except for the gradient of the bias, which PyTorch computes), and differs from that of
    PyTorch's function by rounding. PyTorch's function is used for other tensors, processors and products, before
    PyTorch 2.13, and under autocast, torch.compile and torch.func.

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
        and isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and not x.is_nested
        and weight.dim() == 2
        and x.numel() * weight.shape[0] >= SMALLEST  # before the slower checks: it keeps small models fast
        and is_plain(x, weight)
        and onednn_is_faster()
        and min(weight.shape) >= _FEWEST_FEATURES
        and x.shape[-1] == weight.shape[1]
        and x.numel() >= _FEWEST_ROWS * weight.shape[1]
        and (bias is None or (is_plain(bias) and bias.shape == weight.shape[:1]))
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and PyTorch is recent enough and can call oneDNN."""
    if torch.__version__ < "2.13":  # compared as versions; in 2.6, the last bits depend on the number of threads
        return False
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        schema = str(torch.ops.mkldnn._linear_pointwise.default._schema)
    except AttributeError:  # the operator is undocumented, and may be missing
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
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()  # other strides are up to a thousand times slower, or rejected
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


def _step(rows: int) -> int:
    """The number of rows is rounded up to a multiple of this number, so that oneDNN is called with few shapes.

    oneDNN compiles code for each shape, and keeps the code of the last 1,024 shapes, about 0.7 MB each.
    """
    return max(_FEWEST_ROWS, 1 << (rows.bit_length() - 4))


def _pad(rows: Tensor, step: int) -> Tensor:
    """Append rows of zeros up to a multiple of `step`."""
    return functional.pad(rows, (0, 0, 0, -len(rows) % step))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        for_x, for_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if for_weight else None, weight if for_x else None)
        ctx.shape = x.shape
        rows = x.reshape(-1, x.shape[-1])  # (M, K)
        y = product(_pad(rows, _step(len(rows))), weight, bias)[: len(rows)]
        return y.view(*x.shape[:-1], -1).detach()  # autograd would forbid changing a view in place

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        grads = grad.reshape(-1, grad.shape[-1])  # (M, N)
        rows = None if x is None else x.reshape(-1, x.shape[-1])  # (M, K)
        gradients = _gradients
        if backward_is_differentiated() or not is_plain(grad):
            gradients = _pytorch_gradients
        grad_rows, grad_weight = gradients(grads, rows, weight)
        grad_x = None if grad_rows is None else grad_rows.view(ctx.shape)
        return grad_x, grad_weight, grads.sum(0) if ctx.needs_input_grad[2] else None


def _gradients(grads: Tensor, rows: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the rows, if the weight is given, and of the weight, if the rows are given."""
    step = _step(len(grads))
    most = len(grads) - len(grads) % step
    # Only the last rows are padded, because copying the gradients of a large vocabulary is slow.
    last = _pad(grads[most:], step // 4)
    grad_rows = grad_weight = None
    if weight is not None:
        grad_rows = product(grads[:most], weight.t())
        if most < len(grads):
            grad_rows = torch.cat([grad_rows, product(last, weight.t())[: len(grads) - most]])
    if rows is not None:
        grad_weight = product(grads[:most].t(), rows[:most].t())
        if most < len(grads):
            grad_weight += product(last.t(), _pad(rows[most:], step // 4).t())
    return grad_rows, grad_weight


def _pytorch_gradients(
    grads: Tensor, rows: Tensor | None, weight: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    return None if weight is None else grads @ weight, None if rows is None else grads.t() @ rows
