"""Valid steps of sequences of different lengths in one batch."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, T: int) -> Tensor:
    """(B, T): True for the first `lengths[b]` steps of sequence b."""
    return torch.arange(T, device=lengths.device) < lengths.long()[:, None]


def without_padding(values: Tensor, lengths: Tensor | None, T: int) -> Tensor:
    """Zeros for the values of steps beyond the lengths: nan there must not be multiplied by a weight of 0."""
    if lengths is None:
        return values
    return values.where(length_mask(lengths + (values.shape[1] - T), values.shape[1])[..., None], 0.0)
