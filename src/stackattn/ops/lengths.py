"""The mask of valid steps for sequences of different lengths in one batch."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, T: int) -> Tensor:
    """(B, T): True for the first `lengths[b]` steps of sequence b."""
    return torch.arange(T, device=lengths.device) < lengths.long()[:, None]
