"""Extension of a state by more steps: the shared buffer, the operator on tensors, and its gradient."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .cpp import native
from .lengths import length_mask
from .pytorch import columns
from .pytorch.chart import Steps
from .pytorch.columns import Layout
from .pytorch.steps import action_gradients, action_steps, log_gradients, no_operation, scaled_steps
from .transitions import join_transitions, split_transitions


class Buffer:
    """Append-only memory that successive states share, with room for more steps."""

    def __init__(self, data: Tensor, filled: int):
        self.data = data  # (B, room) float64
        # Number of steps that are written or being written; -1: the state is recomputed from its history.
        self.filled = filled
        # The gradient that the last backward pass returned. If the next one receives it unchanged, it is overwritten.
        self.gradient: Tensor | None = None
        self._lock = threading.Lock()

    def claim(self, length: int, T: int) -> bool:
        """Reserve the steps from `length` to T for a state of `length` steps; only the first caller succeeds."""
        with self._lock:
            if self.filled != length:
                return False
            self.filled = T
            return True


@dataclass
class Extension:
    """The arguments of an extension, except the state and the new steps; and `in_range`, which the extension sets."""

    layout: Layout
    before: int  # number of steps of the state that is extended
    superposition: bool
    backend: str
    lengths: Tensor | None
    buffer: Buffer
    in_range: bool = True  # whether the range of float64 suffices


class _Extend(torch.autograd.Function):
    """(state, c more steps) -> attention weights of these steps, new state; states are tensors (B, size)."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, rows: Tensor, extension: Extension):
        ctx.set_materialize_grads(False)
        weights, new_state = _extend(state, rows, extension)
        ctx.extension = extension
        ctx.save_for_backward(new_state, rows)
        return weights, new_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weights: Tensor | None, grad_state: Tensor | None):  # pyright: ignore
        state, rows = ctx.saved_tensors
        extension = ctx.extension
        if extension.backend == "cpp":
            ours = extension.buffer.gradient
            alone = ours is not None and grad_state is not None and same_place(ours, grad_state)
            grad_before, grad_rows = native.retract(state, extension, rows, grad_weights, grad_state, in_place=alone)
            # Overwriting `grad_before` later is safe: only autograd has another reference to it, and autograd does not
            # add in place to a tensor that is referenced elsewhere.
            extension.buffer.gradient = grad_before if ctx.needs_input_grad[0] else None
            return grad_before, grad_rows, None
        steps = _steps(extension, rows)
        if extension.superposition and grad_weights is not None:
            grad_weights = grad_weights[..., None, None]
        grad_before, found = columns.retract(
            state,
            extension.layout,
            extension.before,
            steps,
            extension.lengths,
            extension.superposition,
            grad_weights,
            grad_state,
        )
        return grad_before, _row_gradients(extension, steps, found).to(rows.dtype), None


def _extend(state: Tensor, rows: Tensor, extension: Extension) -> tuple[Tensor, Tensor]:
    """Write the new steps into the buffer, and return the attention weights and the new state."""
    data = extension.buffer.data
    if extension.backend == "cpp":
        weights, extension.in_range = native.extend(data, extension, rows)
    else:
        steps = _steps(extension, rows)
        new, weights, extension.in_range = columns.extend(
            state, extension.layout, extension.before, steps, extension.lengths, extension.superposition
        )
        size = extension.layout.size(extension.before)
        data[:, size : new.shape[1]] = new[:, size:]
        weights = (weights[..., 0, 0] if extension.superposition else weights).to(rows.dtype)
    # An alias, not a view: autograd would track a view back to the buffer.
    new_state = torch.empty(0, dtype=torch.float64, device=state.device)
    size = extension.layout.size(extension.before + rows.shape[1])
    new_state.set_(data.untyped_storage(), 0, (state.shape[0], size), data.stride())  # pyright: ignore
    return weights, new_state


def same_place(one: Tensor, other: Tensor) -> bool:
    """Whether the tensors have the same values at the same addresses. A negated view has other values."""
    places = ((x.data_ptr(), x.shape, x.stride(), x.is_neg()) for x in (one, other))
    return next(places) == next(places)


def _steps(extension: Extension, rows: Tensor) -> Steps:
    rows = with_idle_steps(extension, rows)
    return (
        action_steps(rows, None) if extension.superposition else scaled_steps(*split_transitions(rows), extended=False)
    )


def with_idle_steps(extension: Extension, rows: Tensor) -> Tensor:
    """`rows`, with the steps beyond the lengths replaced by steps that change nothing."""
    if extension.lengths is None:
        return rows
    counts = length_mask(extension.lengths, rows.shape[1])
    if extension.superposition:
        return rows.where(counts[..., None], no_operation(rows))
    Q, S = extension.layout
    still = torch.full((Q, S, 2 * Q * S + Q), -torch.inf, device=rows.device, dtype=rows.dtype)
    still[..., Q * S : 2 * Q * S].view(Q * S, Q * S).fill_diagonal_(0.0)
    return rows.where(counts[..., None, None, None], still)


def _row_gradients(extension: Extension, steps: Steps, found: Steps) -> Tensor:
    grad = (
        action_gradients(found)
        if extension.superposition
        else join_transitions(*log_gradients(steps, found, extension.layout.Q))
    )
    if extension.lengths is not None:
        counts = length_mask(extension.lengths, steps.push.shape[0])
        grad = grad.where(counts[(...,) + (None,) * (grad.dim() - 2)], 0.0)
    return grad


def extend(state: Tensor, rows: Tensor, extension: Extension) -> tuple[Tensor, Tensor]:
    """Attention weights of the steps in `rows`, and the tensor of the new state; differentiable."""
    tracked = torch.is_grad_enabled() and (rows.requires_grad or state.requires_grad)
    return (_Extend.apply if tracked else _extend)(state, rows, extension)  # pyright: ignore
