"""Checks of the arguments of layers and models. Each error names the argument, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..config import require
from ..ops.checks import FLOATS, check_lengths, check_same_batch


def check_positive(**sizes: Any) -> None:
    """Check that each size is a positive integer."""
    for name, size in sizes.items():
        valid = isinstance(size, int) and not isinstance(size, bool) and size >= 1
        require(valid, name, "a positive integer", size)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Check that `value` is one of `choices`."""
    choices = list(choices)
    require(isinstance(value, str) and value in choices, name, f"one of {', '.join(map(repr, choices))}", value)


def check_heads(d_model: int, heads: int) -> None:
    """Check that `heads` divides `d_model`."""
    check_positive(d_model=d_model, heads=heads)
    require(d_model % heads == 0, "d_model", f"a multiple of heads = {heads}", d_model)


def check_dropout(dropout: Any) -> None:
    """Check that a dropout rate is at least 0 and less than 1."""
    require(isinstance(dropout, int | float) and 0 <= dropout < 1, "dropout", "a number from 0 to less than 1", dropout)


def check_range(init_range: Any) -> None:
    """Check that `init_range` is finite and not negative."""
    valid = isinstance(init_range, int | float) and 0 <= init_range < float("inf")
    require(valid, "init_range", "a finite number of at least 0", init_range)


def check_vectors(name: str, x: Tensor, d_model: int, lengths: Tensor | None, parameter: Tensor) -> None:
    """Check that `x` is a tensor (B, T, d_model) with the dtype and device of a parameter, and that `lengths` fits."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        message = f"{name}: expected a floating-point tensor of shape (B, T, {d_model}), got {found}"
        if isinstance(x, Tensor) and not x.is_complex():
            message += "; look up the vectors of tokens with nn.Embedding, or convert numbers with .float()"
        raise TypeError(message)
    if x.dim() != 3 or x.shape[2] != d_model:
        raise ValueError(f"{name}: expected shape (B, T, {d_model}), got {tuple(x.shape)}")
    check_dtype(name, x, parameter)
    check_device(name, x, parameter)
    check_lengths(lengths, x)


def check_dtype(name: str, x: Tensor, parameter: Tensor) -> None:
    """Check that `x` has the dtype of a parameter.

    Any dtype is valid under autocast, which converts `x`, or if the parameter is quantised.
    """
    if x.dtype != parameter.dtype and parameter.dtype in FLOATS and not _is_autocast(x.device.type):
        raise TypeError(
            f"{name}: expected {parameter.dtype} like the parameters, got {x.dtype}; convert one of them with .to"
        )


def _is_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_device(name: str, x: Tensor, parameter: Tensor) -> None:
    """Check that `x` is on the device of a parameter.

    Any device is valid if the parameter is on `meta`: such a parameter is loaded when it is used.
    """
    if parameter.device.type != "meta" and x.device != parameter.device:
        raise ValueError(
            f"{name}: expected device {parameter.device} like the parameters, got {x.device}; move one of them with .to"
        )


def check_tokens(name: str, tokens: Tensor, lengths: Tensor | None, parameter: Tensor) -> None:
    """Check dtype, shape and device. The lookup validates the values: checking them here would synchronise the GPU."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        found = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        hint = "; convert it with .long()" if isinstance(tokens, Tensor) else ""
        raise TypeError(f"{name}: expected a tensor of int64 or int32, got {found}{hint}")
    if tokens.dim() != 2:
        raise ValueError(f"{name}: expected shape (B, T), got {tuple(tokens.shape)}")
    check_device(name, tokens, parameter)
    check_lengths(lengths, tokens)


def check_state(state: Any, kind: type, name: str, x: Tensor) -> None:
    """Check that `state` is a `kind` of state, and that argument `name`, which extends it, fits its batch."""
    if not isinstance(state, kind):
        raise TypeError(f"state: expected a state from initial_state or extend, got {type(state).__name__}")
    check_same_batch(name, x, state)


def check_same_size(name: str, expected: int, found: int) -> None:
    """Check that the layer or model and a state have the same number of heads or layers; `name` is the singular."""
    if found != expected:
        raise ValueError(f"state: expected a state with {_count(expected, name)}, got one with {_count(found, name)}")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def unknown_token(name: str, tokens: Tensor, size: int) -> ValueError | None:
    """Return the error for the first token that is not in a vocabulary of `size`, or None if all are."""
    bad = ((tokens < 0) | (tokens >= size)).nonzero()
    if not len(bad):
        return None
    b, t = bad[0].tolist()
    return ValueError(f"{name}: expected tokens from 0 to {size - 1}, got {int(tokens[b, t])} in sequence {b}")
