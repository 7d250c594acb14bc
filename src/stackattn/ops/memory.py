"""The limit on the memory of charts, and the error if there is too little memory."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_VARIABLE = "STACKATTN_CHART_MEMORY"
_EXPECTED = "expected sequences that fit into memory"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def chart_memory(default: int) -> int:
    """The largest number of bytes for the charts of one call: `default` MB, unless the environment sets a limit."""
    text = os.environ.get(_VARIABLE, "")
    try:
        return int(1e6 * float(text)) if text else default * 10**6
    except (ValueError, OverflowError):
        raise ValueError(f"{_VARIABLE}: expected a number of MB, got {text!r}") from None


def memory_request(error: BaseException) -> str | None:
    """The memory that could not be allocated, such as "12 bytes"; None for other errors.

    PyTorch raises a RuntimeError on the CPU and an OutOfMemoryError on a GPU, the kernel a MemoryError.
    """
    found = re.search(r"allocate (\d[\d.]* \w+)", str(error))
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return found[1] if found else "memory"
    if isinstance(error, RuntimeError) and found:
        return found[1]
    if isinstance(error, RuntimeError) and re.search("(size|numel).*overflow", str(error)):
        return f"more than {2**63 - 1} bytes"
    return None


def names_argument(
    name: str, position: int = 0
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator that turns a failed allocation into an error about the argument `name`.

    The error is a MemoryError, or PyTorch's OutOfMemoryError on a GPU. If a decorated function calls another one, the
    error is about the argument of the outer function, which is the one that the user called.

    Args:
        name: public name of the argument, a tensor (B, T, ...).
        position: its position.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                named = _EXPECTED in str(error)  # by a function that this one calls
                cause = (error.__cause__ or error) if named else error
                request = memory_request(cause)
                if request is None:
                    raise
                tensor: Any = args[position] if len(args) > position else kwargs[name]
                kind = torch.OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else MemoryError
                raise kind(
                    f"{name}: {_EXPECTED}, got B = {tensor.shape[0]} and T = {tensor.shape[1]}, for which {request} "
                    "could not be allocated; use shorter or fewer sequences"
                ) from cause

        return call

    return decorate
