"""When the kernel can be called without PyTorch's dispatcher, and the second derivatives of such calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import dispatch
from .immediate import is_traced


def is_plain(*tensors: Tensor, dtypes: Collection[torch.dtype] = (torch.float32,)) -> bool:
    """True for ordinary tensors of these dtypes on the CPU if the kernel is available.

    False inside torch.compile, torch.func, forward-mode differentiation and tracing, and for tensor subclasses other
    than Parameter.
    """
    return (
        dispatch.kernel is not None
        and not is_traced()
        and not is_forward_mode()
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)
        and all(x.dtype in dtypes and x.device.type == "cpu" and x.layout == torch.strided for x in tensors)
    )


def is_forward_mode() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def backward_is_differentiated() -> bool:
    """Whether the results of a backward pass are themselves differentiated, which the kernel does not support."""
    return torch.is_grad_enabled() or is_forward_mode()


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor
) -> list[Tensor | None]:
    """Gradients for a backward pass that is itself differentiated, from the same function in plain PyTorch.

    None for inputs that do not require a gradient.
    """
    with torch.enable_grad():
        # Aliases: one input may have been computed from another, and hooks of the inputs must not run here.
        aliases = [x.view_as(x) for x in inputs]
        result = function(*aliases)
    wanted = [x for x in aliases if x.requires_grad]
    found = iter(torch.autograd.grad(result, wanted, grad, create_graph=torch.is_grad_enabled()))
    return [next(found) if x.requires_grad else None for x in aliases]
