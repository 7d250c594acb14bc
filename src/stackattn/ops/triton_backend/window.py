"""The windowed nondeterministic stack in Triton, with the interface of pytorch/window.py.

A batch is computed in parts that fit into memory. The criterion for the range of float64 and the handling of padding
are those of the `torch` backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import chart_memory
from ..pytorch import window as plain
from ..pytorch.band import shortest_segment
from . import band
from .launches import DEFAULT_MEMORY, MOST_SEQUENCES, on_device_of_tensors
from .operators import of_part, slices


def _parts(steps: Tensor, window: int) -> list[slice]:
    """Parts of the batch that are small enough for a grid, and whose bands of a short segment fit into memory."""
    B, T, Q, S = steps.shape[:4]
    window = min(window, T)
    charts_of_one = band.step_size(Q, S, window) * min(T, shortest_segment(window) + window)
    affordable = chart_memory(DEFAULT_MEMORY) // max(1, charts_of_one)
    most = MOST_SEQUENCES // max(1, window)  # a launch of the backward pass has `window` rows of each sequence
    return slices(B, min(B, max(1, min(affordable, most))))


@on_device_of_tensors
def forward(steps: Tensor, values: Tensor, history: Tensor, lengths: Tensor | None, window: int) -> Tensor:
    """Rows (B, T, Q S (m + 2) + 1)."""
    return torch.cat(
        [
            plain.forward(steps[part], values[part], history[part], of_part(lengths, part), window, charts=band)
            for part in _parts(steps, window)
        ]
    )


@on_device_of_tensors
def backward(
    grad: Tensor, steps: Tensor, values: Tensor, history: Tensor, rows: Tensor, lengths: Tensor | None, window: int
) -> tuple[Tensor, ...]:
    """Gradients of steps, values and history."""
    inputs = grad, steps, values, history, rows
    found = [
        plain.backward(*(x[part] for x in inputs), lengths=of_part(lengths, part), window=window, charts=band)
        for part in _parts(steps, window)
    ]
    return tuple(torch.cat(grads) for grads in zip(*found, strict=True))
