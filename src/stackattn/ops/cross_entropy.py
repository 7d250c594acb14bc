"""Cross-entropy of logits and target classes that is fast on the CPU.

PyTorch writes the log-probabilities of all classes, fills two more tensors of that size with gradients (mostly zeros),
and, with label smoothing, reads and writes all of them once more. Of these tensors, the kernel writes only one: the
gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .cpp import network
from .eager import backward_is_differentiated, differentiable_gradients, is_plain


def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
    """`torch.nn.functional.cross_entropy` of each target, with the classes in the last dimension.

    Float32 and float64 tensors on the CPU go through the kernel; other tensors, torch.compile and torch.func use
    PyTorch's function. The result of the kernel does not depend on the number of threads, and logits of ignored targets
    are not read: their gradients are zero even if a logit is nan.

    Args:
        logits: (..., C)
        targets: (...), int64
            Classes from 0 to C - 1, or `ignore_index`.
        ignore_index: value of targets that are ignored.
        label_smoothing: share of each target that is spread over all classes, from 0 to 1.

    Returns:
        (...): loss of each target in nats; zero where the target is ignored.

    Raises:
        ValueError: the shapes do not match, or `label_smoothing` is out of range.
        IndexError: a target is not a class.

    Examples::

        losses = cross_entropy(torch.randn(2, 3, 5), torch.tensor([[0, 4, 1], [2, 3, -100]]))  # (2, 3)
    """
    if logits.dim() < 1 or logits.shape[:-1] != targets.shape:
        expected = f"shape {tuple(logits.shape[:-1])} for logits {tuple(logits.shape)}"
        raise ValueError(f"targets: expected {expected}, got {tuple(targets.shape)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing!r}")
    rows = logits.reshape(targets.numel(), logits.shape[-1]), targets.flatten()
    if is_plain(logits, dtypes=(torch.float32, torch.float64)) and is_plain(targets, dtypes=(torch.int64,)):
        losses = _CrossEntropy.apply(*rows, ignore_index, label_smoothing)
    else:
        losses = _with_pytorch(*rows, ignore_index, label_smoothing)
    return losses.view_as(targets)  # pyright: ignore[reportAttributeAccessIssue]


def _with_pytorch(logits: Tensor, targets: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    return functional.cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, ignore_index, label_smoothing):
        losses, kept = network.cross_entropy(logits, targets, ignore_index, label_smoothing)
        ctx.save_for_backward(logits, targets, kept)
        ctx.options = ignore_index, label_smoothing
        return losses

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, targets, kept = ctx.saved_tensors
        if not backward_is_differentiated():
            return network.cross_entropy_backward(grad, logits, targets, kept, *ctx.options), None, None, None
        found = differentiable_gradients(lambda x: _with_pytorch(x, targets, *ctx.options), (logits,), grad)
        return *found, None, None, None
