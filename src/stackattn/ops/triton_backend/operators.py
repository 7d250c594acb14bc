"""The operators and their backward passes in Triton, with the interface of pytorch/operators.py.

Everything except the charts is shared with the `torch` backend, including the criterion for the range of float64. A
batch whose charts need more memory than STACKATTN_CHART_MEMORY (in MB; default: 2048) is computed in parts, and its
charts are not kept for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import chart_memory
from ..pytorch import operators as plain
from . import charts
from .launches import DEFAULT_MEMORY, MOST_SEQUENCES, on_device_of_tensors


def kept_size(T: int, B: int, Q: int, S: int) -> int:
    """How many numbers the forward pass keeps for the backward pass."""
    return charts.Chart.size(T, B, Q, S) if _part_size(T, B, Q, S) == B else 0


def _part_size(T: int, B: int, Q: int, S: int) -> int:
    """How many sequences have their charts in memory at the same time."""
    most = chart_memory(DEFAULT_MEMORY) // (8 * charts.Chart.size(T, 1, Q, S))
    return min(B, max(1, most), MOST_SEQUENCES)


def _parts(x: Tensor, Q: int, S: int) -> list[slice]:
    B, T = x.shape[:2]
    return slices(B, _part_size(T, B, Q, S))


def slices(B: int, size: int) -> list[slice]:
    """Parts of a batch, of up to `size` sequences each."""
    return [slice(b, b + size) for b in range(0, B, size)] if 0 < size < B else [slice(None)]


@on_device_of_tensors
def nondeterministic(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention weights (B, T, T + 1, Q, S) in float64, and the memory of the charts if they are kept."""
    inputs = log_push, log_replace, log_pop
    found = [
        plain.nondeterministic(*(x[part] for x in inputs), lengths=of_part(lengths, part), charts=charts)
        for part in _parts(log_push, *log_push.shape[2:4])
    ]
    if len(found) == 1:
        return found[0]
    return torch.cat([weights for weights, _ in found]), found[0][1][:0].clone()


@on_device_of_tensors
def nondeterministic_backward(
    grad: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None, memory: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the log weights in float64."""
    inputs = grad, log_push, log_replace, log_pop
    parts = [slice(None)] if memory.numel() else _parts(log_push, *log_push.shape[2:4])
    found = [
        plain.nondeterministic_backward(
            *(x[part] for x in inputs), lengths=of_part(lengths, part), memory=memory, charts=charts
        )
        for part in parts
    ]
    push, replace, pop = (torch.cat([grads[i] for grads in found]) for i in range(3))
    return push, replace, pop


@on_device_of_tensors
def superposition(actions: Tensor, lengths: Tensor | None) -> Tensor:
    return torch.cat(
        [plain.superposition(actions[part], of_part(lengths, part), charts=charts) for part in _parts(actions, 1, 1)]
    )


@on_device_of_tensors
def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None) -> Tensor:
    return torch.cat(
        [
            plain.superposition_backward(grad[part], actions[part], of_part(lengths, part), charts=charts)
            for part in _parts(actions, 1, 1)
        ]
    )


def of_part(lengths: Tensor | None, part: slice) -> Tensor | None:
    return None if lengths is None else lengths[part]
