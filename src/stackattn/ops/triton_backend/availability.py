"""Whether the Triton backend can be used: installed, recent enough, and correct on this device."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from ..caller import warn_caller
from .launches import check_sizes

Result = TypeVar("Result")

OLDEST = (3, 7)
"""The first version of Triton whose float64 matrix products work both on GPUs and in its interpreter."""


def interpreted() -> bool:
    """Whether Triton's interpreter is requested, which runs the kernels on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def status() -> str:
    """`"available"`, or why the backend is not available and what to do.

    Triton is imported only if there is a GPU or if its interpreter is requested.
    """
    if not torch.cuda.is_available() and not interpreted():
        return "PyTorch finds no GPU. On the CPU, use 'cpp'."
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed. GPU builds of PyTorch include it; otherwise: `pip install 'stackattn[gpu]'`."
    try:
        import triton  # pyright: ignore[reportMissingImports]
    except Exception as error:  # an installation for another platform or PyTorch can raise any error
        return f"Triton cannot be imported ({type(error).__name__}: {error}). Reinstall PyTorch, or use 'torch'."

    found = tuple(int(x) for x in re.findall(r"\d+", triton.__version__)[:2])
    if found < OLDEST:
        return (
            f"expected Triton {OLDEST[0]}.{OLDEST[1]} or newer, found {triton.__version__}. Each version of PyTorch "
            "needs its own version of Triton: install a newer PyTorch, or use 'torch'."
        )
    return "available"


def require(device: torch.device) -> None:
    """Raise if the backend cannot run on `device`."""
    if status() != "available":
        raise RuntimeError(f"backend 'triton' is not available: {status()}")
    if device.type == "cpu" and not interpreted():
        raise ValueError("backend 'triton' runs only on GPUs, but the tensors are on cpu; use 'cpp', 'torch' or 'auto'")


def works(device: torch.device, Q: int, S: int, windowed: bool = False) -> bool:
    """Whether the kernels agree with the `torch` backend on a tiny problem; checked once for each device, Q and S.

    The stack with a window has kernels of its own, which are checked when a window is first used.

    A wrong result, or an error of the compiler or the driver, causes one warning. The caller then uses the `torch`
    backend.
    """
    check_sizes(Q, S)
    return _agrees(device, Q, S, windowed)


# The effect of torch.compiler.assume_constant_result, which would import the compiler: torch.compile calls the function
# instead of tracing it.
works._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@functools.cache
def _agrees(device: torch.device, Q: int, S: int, windowed: bool) -> bool:
    try:
        problem = _in_new_thread(_difference, device, Q, S, windowed)
    except Exception as error:  # Triton, its compilers and drivers raise errors of many classes
        problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if problem is not None:
        warn_caller(
            f"stackattn uses its `torch` backend instead of 'triton' for Q = {Q} and S = {S}"
            f"{' with a window' if windowed else ''} on {device}: {problem}. Please report this (docs/gpu.md)."
        )
    return problem is None


def _in_new_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function where no default device, vmap, tracing or autocast is active, all of which are thread-local."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args).result()


def _difference(device: torch.device, Q: int, S: int, windowed: bool) -> str | None:
    """Compare results and gradients of two sequences, of 5 and 3 steps; return what differs, or None."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

    lengths = torch.tensor([5, 3]).to(device)
    results = (_windowed_results if windowed else _results)(numbers, lengths, Q, S)
    for found, expected in zip(*results, strict=True):
        error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-3))
        if not error < 1e-10:
            return f"a tiny problem has a relative error of {error:.1e}"
    return None


Results = list[list[torch.Tensor]]  # of the kernels and of the `torch` backend


def _results(numbers: Callable[..., torch.Tensor], lengths: torch.Tensor, Q: int, S: int) -> Results:
    from ..pytorch import operators as plain
    from . import operators

    inputs = numbers(2, 5, Q, S, Q, S), numbers(2, 5, Q, S, Q, S), numbers(2, 5, Q, S, Q)
    grad = numbers(2, 5, 6, Q, S)
    actions, grad_rows = numbers(2, 5, 3).softmax(-1), numbers(2, 5, 5)
    results = []
    for module in (operators, plain):
        weights, memory = module.nondeterministic(*inputs, lengths)
        found = [weights, *module.nondeterministic_backward(grad, *inputs, lengths, memory)]
        if Q == S == 1:
            found.append(module.superposition(actions, lengths))
            found.append(module.superposition_backward(grad_rows, actions, lengths))
        results.append(found)
    return results


def _windowed_results(numbers: Callable[..., torch.Tensor], lengths: torch.Tensor, Q: int, S: int) -> Results:
    from ..pytorch import window as plain
    from ..window import first_row
    from . import window

    inputs = numbers(2, 5, Q, S, 2 * Q * S + Q), numbers(2, 5, 2), first_row(numbers(2, 2), Q, S)
    grad = numbers(2, 5, 4 * Q * S + 1)
    results = []
    for module in (window, plain):
        rows = module.forward(*inputs, lengths, 3)
        results.append([rows, *module.backward(grad, *inputs, rows, lengths, 3)])
    return results
