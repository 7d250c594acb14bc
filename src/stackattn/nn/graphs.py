"""CUDA graphs: a layer or model whose kernels are launched together."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from ..ops.immediate import reads_values

Module = TypeVar("Module", bound=nn.Module)


def capture(module: Module, *inputs: Tensor) -> Module:
    """Capture the forward and backward passes of a module in CUDA graphs.

    A stack attention layer launches several small kernels per time step. On a GPU, unless sequences are long, launching
    them takes longer than running them. A graph launches all of them at once. The module is changed in place;
    afterwards it accepts only inputs of the same shapes, dtypes and `requires_grad`, in the same mode (training or
    evaluation).

    Args:
        module: a layer or model on a GPU, in the mode in which it will be called.
        inputs: tensors on the same GPU, with the shapes and dtypes of later calls. Their values are not used.

    Returns:
        The module.

    Raises:
        ValueError: the module and the inputs are not on one GPU, there are no inputs, or `immediate_checks` is active
            (it waits for the GPU, which is not possible during capture).

    Examples::

        layer = NondeterministicStackAttention(d_model=32).cuda()
        capture(layer, torch.zeros(10, 60, 32, device="cuda", requires_grad=True))
        y = layer(x)                                                  # x: (10, 60, 32) on the GPU
    """
    devices = {x.device for x in (*module.parameters(), *module.buffers(), *inputs)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        found = ", ".join(sorted(map(str, devices))) or "no tensors"
        raise ValueError(f"module: expected a module and inputs on one CUDA device, got {found}")
    if not inputs:
        raise ValueError("inputs: expected the tensors that the module is called with, got none")
    if reads_values(next(iter(devices))):
        raise ValueError("capture: cannot be called inside immediate_checks(), which waits for the GPU")
    return torch.cuda.make_graphed_callables(module, inputs)  # pyright: ignore[reportReturnType]
