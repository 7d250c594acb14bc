"""Which implementations of the operators can run here, and which one to take."""

from __future__ import annotations

import functools
import importlib
import shutil
import sys
import warnings
from types import ModuleType

import torch

kernel: ModuleType | None = None
_KERNEL_ERROR: ImportError | None = None
try:  # not `from . import`, which does not tell a missing module from a broken one
    kernel = importlib.import_module(".cpp._kernel", __package__)
except ImportError as error:
    _KERNEL_ERROR = error

NAMES = ("auto", "reference", "torch", "cpp")


def backends() -> dict[str, str]:
    """Each backend with `"available"`, or with the reason why it is not there and what to do about it."""
    return {"reference": "available", "torch": "available", "cpp": _kernel_status()}


def _kernel_status() -> str:
    if kernel is not None:
        return "available"
    if not isinstance(_KERNEL_ERROR, ModuleNotFoundError):
        return f"the C++ kernel was built but does not load: {_KERNEL_ERROR}. Reinstall stackattn from source."
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    install = f"reinstall stackattn from source (`{sys.executable} -m pip install --force-reinstall --no-deps ...`)"
    if compiler is None:
        return (
            "the C++ kernel was not built: no C++ compiler. "
            f"Install one (on Debian or Ubuntu: `apt install g++`), then {install}."
        )
    return (
        "the C++ kernel was not built when stackattn was installed: it did not compile, or there was no compiler then. "
        f"Now there is one ({compiler}): {install} with `-v`, which shows what CMake and the compiler say."
    )


def choose(backend: str, device: torch.device) -> str:
    """The backend that `backend` means for tensors on `device`; raises if a named one cannot run there."""
    if backend not in NAMES:
        raise ValueError(f"backend: expected one of {', '.join(map(repr, NAMES))}, got {backend!r}")
    if backend == "auto":
        if device.type != "cpu":
            return "torch"
        if kernel is not None:
            return "cpp"
        _warn_once()
        return "torch"
    if backend == "cpp":
        if kernel is None:
            raise RuntimeError(f"backend 'cpp' cannot run: {_kernel_status()}")
        if device.type != "cpu":
            raise ValueError(f"backend 'cpp' runs on the CPU, but the tensors are on {device}; use 'torch' or 'auto'")
    return backend


@functools.cache
def _warn_once() -> None:
    warnings.warn(f"stackattn runs on its slower `torch` backend: {_kernel_status()}", RuntimeWarning, stacklevel=4)
