"""Dropout that is fast on the CPU: alone, with a residual addition, or after a ReLU.

On the CPU, PyTorch draws the random numbers of dropout one at a time, which takes a quarter of the time of a training
step of a small transformer. The kernel computes them from a seed with vector instructions, and computes them again in
the backward pass instead of storing a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .cpp import network
from .eager import backward_is_differentiated, is_plain
from .keep_mask import draw_seed, keep_mask

_ROW = 4096  # numbers that share a row of the mask, as in kernel/dropout.cpp


def dropout(x: Tensor, p: float, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
    """`functional.dropout(x, p)`, optionally added to `residual`, or applied to `relu(x)`.

    Float32 tensors on the CPU go through the kernel; other tensors, torch.compile and torch.func use PyTorch's dropout.
    Both draw from PyTorch's default generator, so `torch.manual_seed` makes the result repeatable, but they draw
    different numbers. The result of the kernel does not depend on the number of threads.

    Args:
        x: any shape.
        p: probability of a zero, from 0 to less than 1; the other numbers are multiplied by 1 / (1 - p).
        residual: a tensor of the shape of `x`, optional; if given, return `residual + dropout(x)`.
        relu: return `dropout(relu(x))`; not together with `residual`.

    Returns:
        A tensor of the shape of `x`.

    Raises:
        ValueError: `p` is out of range, or both `residual` and `relu` are given.

    Examples::

        y = dropout(torch.randn(2, 3), 0.1)
        z = dropout(torch.randn(2, 3), 0.1, residual=y)
    """
    if not 0 <= p < 1:
        raise ValueError(f"p: expected a number from 0 to less than 1, got {p!r}")
    if relu and residual is not None:
        raise ValueError(
            "residual: expected None together with relu=True, got a tensor; apply the ReLU to x before the call"
        )
    if p and is_plain(x) and (residual is None or (is_plain(residual) and residual.shape == x.shape)):
        return _Dropout.apply(x, residual, relu, p, int(draw_seed()))  # pyright: ignore[reportReturnType]
    y = functional.dropout(x.relu() if relu else x, p)
    return y if residual is None else residual + y


def multipliers(shape: torch.Size, p: float, seed: int) -> Tensor:
    """The factors that the kernel applies to a tensor of this shape: 0 or 1 / (1 - p)."""
    count = shape.numel()
    mask = keep_mask(seed, -(-count // _ROW), _ROW, p).flatten()[:count]
    return mask.reshape(shape) / (1 - p)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, relu, p, seed):
        y = network.dropout(x, residual, relu, p, seed)
        ctx.relu, ctx.p, ctx.seed, ctx.residual = relu, p, seed, residual is not None
        if relu:
            ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        residual = grad if ctx.residual else None
        if not ctx.needs_input_grad[0]:
            return None, residual, None, None, None
        y = ctx.saved_tensors[0] if ctx.relu else None
        if not backward_is_differentiated():
            return network.dropout_backward(grad, y, ctx.p, ctx.seed), residual, None, None, None
        factors = multipliers(grad.shape, ctx.p, ctx.seed) if y is None else (y > 0) / (1 - ctx.p)
        return grad * factors, residual, None, None, None
