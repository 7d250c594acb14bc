"""The available implementations of the operators, and the choice of one of them."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sys
from types import ModuleType

import torch

from .caller import warn_caller
from .triton_backend import availability

INTERFACE = 8
"""Version of the kernel's functions that this package calls, as in cpp/kernel/module.cpp."""


class OutdatedKernel(ImportError):
    """The kernel's interface is not the one that the package expects: an editable install has not been rebuilt."""


def _load_kernel() -> tuple[ModuleType | None, ImportError | None]:
    """The kernel, or why it cannot be used."""
    try:  # `from .cpp import _kernel` would not distinguish a missing module from a broken one
        module = importlib.import_module(".cpp._kernel", __package__)
    except ImportError as error:
        return None, error
    found = getattr(module, "interface", None)
    if found != INTERFACE:
        return None, OutdatedKernel(f"expected interface {INTERFACE}, found {found or 'none'}")
    return module, None


kernel, _KERNEL_ERROR = _load_kernel()

_is_forked = False


def _after_fork() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def kernel_threads() -> int:
    """Number of threads of a kernel call: PyTorch's, but 1 in a forked process, where OpenMP would hang."""
    return 1 if _is_forked else torch.get_num_threads()


_GPU_BACKEND = "STACKATTN_GPU_BACKEND"  # environment variable: what `auto` uses on a GPU, `torch` by default
NAMES = ("auto", "reference", "torch", "cpp", "triton")


def backends() -> dict[str, str]:
    """The backends and their status.

    Returns:
        For each backend, `"available"`, or the reason why it is not available and what to do.

    Examples::

        >>> import stackattn
        >>> stackattn.backends()["torch"]
        'available'
    """
    return {
        "reference": "available",
        "torch": "available",
        "cpp": _kernel_status(),
        "triton": availability.status(),
    }


def _kernel_status() -> str:
    if kernel is not None:
        return "available"
    if isinstance(_KERNEL_ERROR, OutdatedKernel):
        return (
            f"the C++ kernel was built from another version of stackattn ({_KERNEL_ERROR}). Build it again: in the "
            f"source folder, run `{sys.executable} -m pip install --no-deps -e .`, or reinstall the package."
        )
    if not isinstance(_KERNEL_ERROR, ModuleNotFoundError):
        return f"the C++ kernel was built but does not load: {_KERNEL_ERROR}. Reinstall stackattn from source."
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    install = f"reinstall stackattn from source (`{sys.executable} -m pip install --force-reinstall --no-deps ...`)"
    if compiler is None:
        return (
            "the C++ kernel was not built: no C++ compiler was found. "
            f"Install one (on Debian or Ubuntu: `apt install g++`), then {install}."
        )
    return (
        "the C++ kernel was not built when stackattn was installed: it did not compile, or there was no compiler. "
        f"A compiler is available now ({compiler}): {install} with `-v` to see the output of CMake and the compiler."
    )


def choose(backend: str, device: torch.device, Q: int | None = None, S: int = 1, *, windowed: bool = False) -> str:
    """Resolve `"auto"` for tensors on `device`; raise if the requested backend cannot run there.

    For an operator with Q states and S symbols (1 and 1 for the superposition stack), `"triton"` is compared with
    `"torch"` at its first use on a device; if they disagree, the result is `"torch"`. Without Q, `"triton"` raises
    ValueError.
    """
    if backend not in NAMES:
        raise ValueError(f"backend: expected one of {', '.join(map(repr, NAMES))}, got {backend!r}")
    if backend == "auto" and device.type != "cpu" and Q is not None:
        backend = os.environ.get(_GPU_BACKEND, "torch")
        if backend not in ("torch", "triton"):
            raise ValueError(f"{_GPU_BACKEND}: expected 'torch' or 'triton', got {backend!r}")
    if backend == "auto":
        if device.type != "cpu":
            return "torch"
        if kernel is not None:
            return "cpp"
        _warn_once()
        return "torch"
    if backend == "cpp":
        if kernel is None:
            raise RuntimeError(f"backend 'cpp' is not available: {_kernel_status()}")
        if device.type != "cpu":
            raise ValueError(
                f"backend 'cpp' runs only on the CPU, but the tensors are on {device}; use 'torch' or 'auto'"
            )
    if backend == "triton":
        if Q is None:
            raise ValueError(
                "backend 'triton' does not support limited depths, states, stratified stacks or softmax attention; use "
                "'torch' or 'auto'"
            )
        availability.require(device)
        return "triton" if availability.works(device, Q, S, windowed) else "torch"
    return backend


def module_of(backend: str, name: str = "operators") -> ModuleType:
    """The module `operators` or `window` of `"torch"` or `"triton"`."""
    package = ".pytorch" if backend == "torch" else ".triton_backend"
    return importlib.import_module(f"{package}.{name}", __package__)


def choose_for_state(backend: str, device: torch.device) -> str:
    """Like `choose`, for a state. Raises ValueError for `"reference"`, which cannot extend a state."""
    backend = choose(backend, device)
    if backend == "reference":
        raise ValueError("backend: expected 'auto', 'torch' or 'cpp' for a state, got 'reference'")
    return backend


@functools.cache
def _warn_once() -> None:
    warn_caller(f"stackattn uses its slower `torch` backend: {_kernel_status()}")
