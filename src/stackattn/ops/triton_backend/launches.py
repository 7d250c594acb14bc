"""Launch configurations.

tests/triton_backend compiles the kernels for several GPUs at three sizes (Q, S) and checks their resources.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

MOST_PAIRS = 32
"""Largest Q * S that the kernels support."""

DEFAULT_MEMORY = 2048
"""MB of charts, unless STACKATTN_CHART_MEMORY sets another limit."""

MOST_SEQUENCES = 65535
"""Largest size of the second and third axes of a grid in CUDA; most kernels have the sequences on one of them."""

# The defaults differ between versions of Triton. One stage: prefetching needs more shared memory.
_OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}

# Largest Q * S -> its padded size (E), columns of a block (BC), terms of a product (BK). With 32 terms, some kernels
# spill registers on sm_90.
_TABLE = {16: {"E": 16, "BC": 32, "BK": 16}, 32: {"E": 32, "BC": 32, "BK": 16}}

_LANE_BLOCK = 512  # numbers in a block of Q x Q matrices


def check_sizes(Q: int, S: int) -> None:
    """Raise ValueError if the kernels do not support these numbers of states and symbols."""
    if Q > 16 or Q * S > MOST_PAIRS:
        raise ValueError(
            f"backend 'triton' supports up to 16 states (Q) and {MOST_PAIRS} pairs of state and symbol (Q * S), got "
            f"Q = {Q} and S = {S}; use backend='torch'"
        )


def configuration(Q: int, S: int) -> dict[str, int]:
    """Compile-time sizes and options of the kernels with matrix products, for Q states and S symbols."""
    check_sizes(Q, S)
    return {"Q": Q, "S": S, **_TABLE[16 if Q * S <= 16 else 32], **_OPTIONS}


def diagonal_configuration(Q: int, S: int) -> dict[str, int]:
    """Compile-time sizes and options of the kernels of diagonals."""
    check_sizes(Q, S)
    BQ = 1 << (Q - 1).bit_length()
    return {"Q": Q, "S": S, "BL": max(1, _LANE_BLOCK // BQ**2), "BQ": BQ, **_OPTIONS}


def selected(options: dict[str, int], *names: str) -> dict[str, int]:
    """The compile-time sizes with these names, for a kernel that does not take all of them, and all options."""
    return {name: options[name] for name in (*names, *_OPTIONS)}


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def on_device_of_tensors(
    function: Callable[Concatenate[Tensor, Arguments], Result],
) -> Callable[Concatenate[Tensor, Arguments], Result]:
    """Make the device of the first argument current during a call: Triton launches kernels on the current device."""

    @functools.wraps(function)
    def call(x: Tensor, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with torch.cuda.device_of(x):  # no effect for a tensor on the CPU
            return function(x, *args, **kwargs)

    return call
