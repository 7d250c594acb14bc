"""Valid steps of sequences of different lengths in one batch."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, T: int) -> Tensor:
    """(B, T): True for the first `lengths[b]` steps of sequence b."""
    return torch.arange(T, device=lengths.device) < lengths.long()[:, None]


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Replace padding in x (B, T, ...) with zeros: nan in the padding would survive multiplication by zero."""
    if lengths is None:
        return x
    return x.where(length_mask(lengths, x.shape[1])[(...,) + (None,) * (x.dim() - 2)], 0)


def values_without_padding(values: Tensor, lengths: Tensor | None, T: int) -> Tensor:
    """Like `without_padding`, for the values of T steps, possibly preceded by that of the bottom element."""
    return without_padding(values, None if lengths is None else lengths.long() + (values.shape[1] - T))
