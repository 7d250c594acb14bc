"""Stacks that grow step by step: states that are values.

Extending a state returns a new one and leaves the old one as it was, so states can be branched and reordered. Behind
successive states is one append-only buffer: a state that is the newest one is extended in place behind everybody's
back, any other one copies first. The gradient of a state travels backwards as the gradient of its tensor, so that
autograd takes care of branches, of losses on a prefix and of repeated backward passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import checks
from .cpp import native
from .dispatch import choose
from .lengths import length_mask
from .nondeterministic import nondeterministic_weights
from .pytorch import columns
from .pytorch.chart import Steps
from .pytorch.columns import Layout
from .pytorch.steps import action_gradients, action_steps, log_gradients, scaled_steps
from .transitions import History, join_transitions, split_transitions


class _Buffer:
    """Storage for the steps of one line of states, with room for more."""

    def __init__(self, data: Tensor, filled: int):
        self.data = data  # (B, room) float64
        self.filled = filled  # steps written so far, or being written
        # The gradient that a backward pass handed on last: where it comes back alone, it is written over.
        self.gradient: Tensor | None = None
        self._lock = threading.Lock()

    def claim(self, length: int, T: int) -> bool:
        """Whether a state of `length` steps may write the steps up to T behind it: only the first one that asks may."""
        with self._lock:
            if self.filled != length:
                return False
            self.filled = T
            return True


@dataclass
class Extension:
    """What an extension is about, beside its tensors."""

    layout: Layout
    before: int  # steps in the state that is extended
    superposition: bool
    backend: str
    lengths: Tensor | None
    buffer: _Buffer
    in_range: bool = True  # whether plain doubles can vouch for the weights


class _Extend(torch.autograd.Function):
    """(tensor of a state, rows of c more steps) -> attention weights of these steps, tensor of the new state."""

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
            alone = ours is not None and grad_state is not None and _same_place(ours, grad_state)
            grad_before, grad_rows = native.retract(state, extension, rows, grad_weights, grad_state, in_place=alone)
            # Nobody but autograd has it, and autograd adds to no tensor that somebody else holds.
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
    # An alias, not a view of the buffer: autograd would follow a view back to it.
    new_state = torch.empty(0, dtype=torch.float64, device=state.device)
    size = extension.layout.size(extension.before + rows.shape[1])
    new_state.set_(data.untyped_storage(), 0, (state.shape[0], size), data.stride())  # pyright: ignore
    return weights, new_state


def _same_place(one: Tensor, other: Tensor) -> bool:
    """Whether the tensors have the same numbers at the same addresses; a negated view has not."""
    places = ((x.data_ptr(), x.shape, x.stride(), x.is_neg()) for x in (one, other))
    return next(places) == next(places)


def _steps(extension: Extension, rows: Tensor) -> Steps:
    rows = _still_where_ended(extension, rows)
    return (
        action_steps(rows, None) if extension.superposition else scaled_steps(*split_transitions(rows), extended=False)
    )


def _still_where_ended(extension: Extension, rows: Tensor) -> Tensor:
    """Beyond the lengths, the step that changes nothing."""
    if extension.lengths is None:
        return rows
    counts = length_mask(extension.lengths, rows.shape[1])
    if extension.superposition:
        return rows.where(counts[..., None], rows.new_tensor([0.0, 1.0, 0.0]))
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


Self = TypeVar("Self", bound="_State")


class _State:
    """What both stacks' states share."""

    def __init__(
        self, tensor: Tensor, buffer: _Buffer, length: int, layout: Layout, backend: str, history: History | None
    ):
        self._tensor = tensor  # (B, layout.size(length)), in the graph
        self._buffer = buffer
        self._layout = layout
        self._backend = backend
        self._history = history  # of the nondeterministic stack, if it has taken any steps
        self.length = length

    @property
    def batch_size(self) -> int:
        return self._tensor.shape[0]

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, length={self.length}, device={self.device})"

    def reorder(self: Self, index: Tensor) -> Self:
        """The states of the sequences `index` (any integers below the batch size, repeated or not), as a new batch."""
        if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"index: expected a vector of integers, got {index!r}")
        if index.device != self.device:
            raise ValueError(f"index: expected device {self.device} like the state, got {index.device}")
        if ((index < 0) | (index >= self.batch_size)).any():
            raise ValueError(f"index: expected integers from 0 to {self.batch_size - 1}, got {index.tolist()}")
        index = index.long()
        if self._tensor.requires_grad and torch.is_grad_enabled():
            return self.map(lambda x: x.index_select(0, index))
        # Straight into a buffer with room: whoever reorders goes on, and may soon reorder again.
        size, data = self._tensor.shape[1], self._empty_data(len(index), self.length + 8)
        torch.index_select(self._tensor.detach(), 0, index, out=data[:, :size])
        buffer = _Buffer(data, min(self.length, self._buffer.filled))
        return self._moved(data[:, :size], buffer, lambda x: x.index_select(0, index))

    def detach(self: Self) -> Self:
        """The same state without its past in the autograd graph."""
        return self.map(torch.Tensor.detach)

    def to(self: Self, device: torch.device | str) -> Self:
        """The same state on another device."""
        moved = self.map(lambda x: x.to(device))
        moved._backend = choose("auto", moved.device) if moved.device != self.device else self._backend
        return moved

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function` applied to each of its tensors, whose first axis is the batch."""
        tensor = function(self._tensor)
        shared = _same_place(self._tensor, tensor)  # as after detach
        # a state that is computed from its history stays so: its buffer is filled up to -1
        buffer = self._buffer if shared else _Buffer(tensor.detach(), min(self.length, self._buffer.filled))
        return self._moved(tensor, buffer, function)

    def _moved(self: Self, tensor: Tensor, buffer: _Buffer, function: Callable[[Tensor], Tensor]) -> Self:
        history = None
        if self._history is not None:
            grad = torch.is_grad_enabled()

            def as_of_now(x: Tensor) -> Tensor:
                with torch.set_grad_enabled(grad):
                    return function(x)

            history = History(self._history, None, as_of_now)
        return type(self)(tensor, buffer, self.length, self._layout, self._backend, history)

    def _check_batch(self, name: str, x: Tensor) -> None:
        if x.shape[0] != self.batch_size:
            raise ValueError(f"{name}: expected {self.batch_size} sequences like the state, got {x.shape[0]}")
        if x.device != self.device:
            raise ValueError(f"{name}: expected device {self.device} like the state, got {x.device}")

    def _room(self, T: int) -> _Buffer:
        """A buffer that holds this state and may be written behind it, with room for T steps in all."""
        size = self._layout.size
        if self._buffer.data.shape[1] >= size(T) and self._buffer.claim(self.length, T):
            return self._buffer
        data = self._empty_data(self.batch_size, max(T, 32, self.length * 2))
        data[:, : size(self.length)] = self._tensor.detach()
        return _Buffer(data, T)

    def _empty_data(self, batch_size: int, steps: int) -> Tensor:
        if self._backend == "cpp":
            return native.empty_states(batch_size, self._layout.size(steps))
        return self._tensor.new_empty(batch_size, self._layout.size(steps))

    def _take(self: Self, rows: Tensor, lengths: Tensor | None, superposition: bool) -> tuple[Tensor, Self, Extension]:
        """The weights of the steps in `rows`, and the new state without a history."""
        T = self.length + rows.shape[1]
        extension = Extension(self._layout, self.length, superposition, self._backend, lengths, self._room(T))
        tracked = torch.is_grad_enabled() and (rows.requires_grad or self._tensor.requires_grad)
        weights, tensor = (_Extend.apply if tracked else _extend)(self._tensor, rows, extension)  # pyright: ignore
        return weights, type(self)(tensor, extension.buffer, T, self._layout, self._backend, None), extension


class SuperpositionState(_State):
    """A superposition stack after some steps.

    Examples::

        state = SuperpositionState.empty(batch_size)
        for actions, value in ...:                       # (B, 1, 3), (B, 1, m)
            values = torch.cat([values, value], dim=1)
            weights, state = state.extend(actions)       # (B, 1, steps so far)
            reading = weights @ values
    """

    @classmethod
    def empty(cls, batch_size: int, *, device: torch.device | str = "cpu", backend: str = "auto") -> SuperpositionState:
        return _empty(cls, batch_size, Layout(1, 1), device, backend)

    def extend(self, actions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, SuperpositionState]:
        """Take c more steps.

        Args:
            actions: (B, c, 3)
                Weights of push, no-op and pop.
            lengths: (B,), optional
                How many of the c steps each sequence takes. The rest changes nothing and gives zero rows.

        Returns:
            Attention weights (B, c, length + c), and the new state.
        """
        checks.check_actions(actions, lengths)
        self._check_batch("actions", actions)
        lengths = checks.copy_lengths(lengths, actions.shape[1])
        if self._backend != "cpp":
            checks.check_numbers("actions", actions.detach(), lengths, minus_infinity=False)
        if actions.shape[1] == 0:
            return actions.new_zeros(self.batch_size, 0, self.length), self
        weights, state, _ = self._take(actions, lengths, superposition=True)
        return weights, state


class NondeterministicState(_State):
    """A nondeterministic stack after some steps.

    Examples::

        state = NondeterministicState.empty(batch_size, num_states=3, num_symbols=3)
        for log_push, log_replace, log_pop, value in ...:             # one step each: (B, 1, ...)
            values = torch.cat([values, value], dim=1)                # the bottom vector comes first
            weights, state = state.extend(log_push, log_replace, log_pop)
            reading = torch.einsum("btiqs,bim->btqsm", weights, values)
    """

    @classmethod
    def empty(
        cls,
        batch_size: int,
        num_states: int,
        num_symbols: int,
        *,
        device: torch.device | str = "cpu",
        backend: str = "auto",
    ) -> NondeterministicState:
        for name, x in (("num_states", num_states), ("num_symbols", num_symbols)):
            if not isinstance(x, int) or x < 1:
                raise ValueError(f"{name}: expected a positive integer, got {x!r}")
        return _empty(cls, batch_size, Layout(num_states, num_symbols), device, backend)

    def extend(
        self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, NondeterministicState]:
        """Take c more steps.

        Args:
            log_push: (B, c, Q, S, Q, S)
            log_replace: (B, c, Q, S, Q, S)
            log_pop: (B, c, Q, S, Q)
                Log weights of the transitions, as in `nondeterministic_weights`.
            lengths: (B,), optional
                How many of the c steps each sequence takes. The rest changes nothing and gives zero rows.

        Returns:
            Attention weights (B, c, length + c + 1, Q, S), and the new state.
        """
        checks.check_transitions(log_push, log_replace, log_pop, lengths)
        return self.extend_joined(join_transitions(log_push, log_replace, log_pop), lengths)

    def extend_joined(self, rows: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, NondeterministicState]:
        """Like `extend`, from the result of `join_transitions`. The state keeps the tensor: do not modify it."""
        Q, S = self._layout
        self._check_batch("log_push", rows)
        if rows.shape[2:] != (Q, S, 2 * Q * S + Q):
            got = tuple(rows.shape[2:4])
            raise ValueError(f"log_push: expected {Q} states and {S} symbols like the state, got {got}")
        lengths = checks.copy_lengths(lengths, rows.shape[1])
        if self._backend != "cpp":
            self._check_numbers(rows, lengths)
        if rows.shape[1] == 0:
            return rows.new_zeros(self.batch_size, 0, self.length + 1, Q, S), self
        if self._buffer.filled >= 0:
            weights, state, extension = self._take(rows, lengths, superposition=False)
            if extension.in_range:
                state._history = History(self._history, _still_where_ended(extension, rows), None)
                return weights, state
        return self._extend_exactly(rows, lengths)

    def _extend_exactly(self, rows: Tensor, lengths: Tensor | None) -> tuple[Tensor, NondeterministicState]:
        """Where plain doubles cannot vouch for the weights: from here on every row is computed from the start."""
        if self._backend == "cpp":  # the kernel would count the steps from the start, too
            self._check_numbers(rows, lengths)
        nothing = _Buffer(self._tensor.detach(), -1)
        extension = Extension(self._layout, self.length, False, self._backend, lengths, nothing)
        history = History(self._history, _still_where_ended(extension, rows), None)
        steps = history.steps()
        weights = nondeterministic_weights(*split_transitions(steps), backend=self._backend)[:, self.length :]
        if lengths is not None:
            weights = weights.where(length_mask(lengths, rows.shape[1])[..., None, None, None], 0.0)
        T, history = self.length + rows.shape[1], History(None, steps, None)
        return weights, NondeterministicState(self._tensor, nothing, T, self._layout, self._backend, history)

    @staticmethod
    def _check_numbers(rows: Tensor, lengths: Tensor | None) -> None:
        for name, x in zip(("log_push", "log_replace", "log_pop"), split_transitions(rows.detach()), strict=True):
            checks.check_numbers(name, x, lengths, minus_infinity=True)


def _empty(cls, batch_size: int, layout: Layout, device: torch.device | str, backend: str):
    if not isinstance(batch_size, int) or batch_size < 0:
        raise ValueError(f"batch_size: expected a whole number, got {batch_size!r}")
    backend = choose(backend, torch.device(device))
    if backend == "reference":
        raise ValueError("backend: states run on 'torch' or 'cpp', got 'reference'")
    tensor = torch.empty(batch_size, 0, dtype=torch.float64, device=device)
    return cls(tensor, _Buffer(tensor, 0), 0, layout, backend, None)
