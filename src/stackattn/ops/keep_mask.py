"""The random numbers of dropout: a seed for each call, and the mask of kept numbers that the seed determines.

The kernel computes the same function (kernel/keep_mask.h): each row of the mask has a key from SplitMix64, and each
column a 32-bit hash under that key. The backward pass therefore computes the mask again instead of storing it, and
the mask does not depend on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = (1 << 32) - 1


def draw_seed() -> Tensor:
    """The seed of a call, () int64, from PyTorch's default generator, so that resumed training draws the same masks."""
    return torch.randint(1 << 62, ())


def keep_mask(seed: int, rows: int, columns: int, p: float) -> Tensor:
    """(rows, columns) bool: False with probability p."""
    x = seed + torch.arange(1, rows + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shifted(x, 31)
    first, second = (x & _LOW)[:, None], _shifted(x, 32)[:, None]  # (rows, 1)
    x = (torch.arange(columns) * 0x9E3779B1 + first) & _LOW
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D + second) & _LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _LOW
    x = x ^ (x >> 16)
    return x >= min(round(p * 2**32), _LOW)


def _signed(x: int) -> int:
    """The int64 with the same bits."""
    return x - (1 << 64) if x >= 1 << 63 else x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits as a logical shift, with zeros in place of copies of the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
