"""What layers and models ask of their arguments. Every message names the argument, what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..ops.checks import check_lengths


def check_positive(**sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name}: expected a positive integer, got {size!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Check that `value` is one of `choices`."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def check_heads(d_model: int, heads: int) -> None:
    check_positive(d_model=d_model, heads=heads)
    if d_model % heads:
        raise ValueError(f"d_model: expected a multiple of heads = {heads}, got {d_model}")


def check_dropout(dropout: Any) -> None:
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout: expected a number from 0 to below 1, got {dropout!r}")


def check_range(init_range: Any) -> None:
    if not isinstance(init_range, int | float) or not 0 <= init_range < float("inf"):
        raise ValueError(f"init_range: expected a number from 0, got {init_range!r}")


def check_vectors(name: str, x: Tensor, d_model: int, lengths: Tensor | None) -> None:
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != d_model:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name}: expected shape (B, T, {d_model}), got {got}")
    check_lengths(lengths, x)


def check_tokens(name: str, tokens: Tensor, lengths: Tensor | None) -> None:
    """All but the numbers: those are looked at by who looks them up, since on a GPU that would be to wait for it."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        got = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"{name}: expected a tensor of int64 or int32, got {got}")
    if tokens.dim() != 2:
        raise ValueError(f"{name}: expected shape (B, T), got {tuple(tokens.shape)}")
    check_lengths(lengths, tokens)


def unknown_token(name: str, tokens: Tensor, size: int) -> ValueError | None:
    """The error about the first token that is not one of `size`; None if there is none."""
    bad = ((tokens < 0) | (tokens >= size)).nonzero()
    if not len(bad):
        return None
    b, t = bad[0].tolist()
    return ValueError(f"{name}: expected numbers from 0 to {size - 1}, got {int(tokens[b, t])} in sequence {b}")
