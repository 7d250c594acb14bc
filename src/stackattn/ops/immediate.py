"""When values are checked: at once on the CPU, and on request on other devices.

Reading a value of a tensor on a GPU waits until the GPU has computed it, and cannot be captured in a CUDA graph. On a
GPU, the operators therefore do not read values. Rows for which they would raise an error, or which they would compute
again in arithmetic of a larger range, become nan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_requests = 0  # not thread-local: backward passes on a GPU run in PyTorch's threads


@contextmanager
def immediate_checks() -> Iterator[None]:
    """Check values at once on every device, as on the CPU.

    On a GPU, operators usually do not wait for values. Rows with an invalid number, and rows of the nondeterministic
    stack for which the range of float64 is not sufficient, are nan, and lengths are clamped to 0..T. Inside this
    context, invalid values raise ValueError and rows beyond the range of float64 are computed exactly, at the cost of
    waiting for the GPU in every call. Include the backward pass in the context.

    Examples::

        >>> import torch
        >>> from stackattn import immediate_checks, superposition_weights
        >>> with immediate_checks():
        ...     weights = superposition_weights(torch.rand(1, 3, 3).softmax(-1))
    """
    global _requests
    _requests += 1
    try:
        yield
    finally:
        _requests -= 1


def reads_values(device: torch.device) -> bool:
    """Whether operators on this device may read values of tensors."""
    return device.type == "cpu" or _requests > 0


def is_traced() -> bool:
    """Whether torch.compile or torch.func runs the calling code, so that it cannot read values of tensors."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
