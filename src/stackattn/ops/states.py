"""Stacks that grow step by step: states that are values.

Extending a state returns a new one and leaves the old one as it was, so states can be branched and reordered. Behind
successive states is one append-only buffer: a state that is the newest one is extended in place behind everybody's
back, any other one copies first. The gradient of a state travels backwards as the gradient of its tensor, so that
autograd takes care of branches, of losses on a prefix and of repeated backward passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import checks, columns, native
from .backends import choose
from .chart import Steps, inside
from .columns import Layout
from .nondeterministic import nondeterministic_weights
from .steps import action_steps, log_gradients, scaled_steps


class _Buffer:
    """Storage for the steps of one line of states, with room for more."""

    def __init__(self, data: Tensor, filled: int):
        self.data = data  # (B, room) float64
        self.filled = filled  # steps written so far, or being written
        self._lock = threading.Lock()

    def claim(self, length: int, T: int) -> bool:
        """Whether a state of `length` steps may write the steps up to T behind it: only the first one that asks may."""
        with self._lock:
            if self.filled != length:
                return False
            self.filled = T
            return True


class _Call(NamedTuple):
    """What an extension is about, beside its tensors."""

    layout: Layout
    before: int  # steps in the state that is extended
    superposition: bool
    backend: str
    lengths: Tensor | None


class _Extend(torch.autograd.Function):
    """(tensor of a state, inputs of c more steps) -> attention weights of these steps, tensor of the new state."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, call: _Call, buffer: _Buffer, *inputs: Tensor):
        ctx.set_materialize_grads(False)
        T = call.before + inputs[0].shape[1]
        if call.backend == "cpp":
            weights, vouched = native.extend(buffer.data, call, *inputs)
        else:
            steps = _steps(call, inputs)
            new, weights, vouched = columns.extend(
                state, call.layout, call.before, steps, call.lengths, call.superposition
            )
            size = call.layout.size(call.before)
            buffer.data[:, size : new.shape[1]] = new[:, size:]
            weights = (weights[..., 0, 0] if call.superposition else weights).to(inputs[0].dtype)
        # An alias, not a view of the buffer: autograd would follow a view back to it.
        new_state = torch.empty(0, dtype=torch.float64, device=state.device)
        new_state.set_(buffer.data.untyped_storage(), 0, (state.shape[0], call.layout.size(T)), buffer.data.stride())  # pyright: ignore
        ctx.call = call
        ctx.save_for_backward(new_state, *inputs)
        vouched_for = torch.tensor(vouched, device="cpu")
        ctx.mark_non_differentiable(vouched_for)
        return weights, new_state, vouched_for

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weights: Tensor | None, grad_state: Tensor | None, _: Any):  # pyright: ignore
        state, *inputs = ctx.saved_tensors
        call = ctx.call
        if inputs[0].shape[1] == 0:  # nothing was added
            return grad_state, None, None, *(torch.zeros_like(x) for x in inputs)
        if call.backend == "cpp":
            grad_before, grads = native.retract(state, call, inputs, grad_weights, grad_state)
        else:
            steps = _steps(call, inputs)
            if call.superposition and grad_weights is not None:
                grad_weights = grad_weights[..., None, None]
            grad_before, found = columns.retract(
                state, call.layout, call.before, steps, call.lengths, call.superposition, grad_weights, grad_state
            )
            grads = _input_gradients(call, steps, found)
            grads = [x.to(inputs[0].dtype) for x in grads]
        return grad_before, None, None, *grads


def _steps(call: _Call, inputs: tuple[Tensor, ...] | list[Tensor]) -> Steps:
    inputs = tuple(_still_where_ended(call, inputs))
    return action_steps(inputs[0], None) if call.superposition else scaled_steps(*inputs, extended=False)


def _still_where_ended(call: _Call, inputs: tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    """Beyond the lengths, the step that changes nothing."""
    if call.lengths is None:
        return list(inputs)
    counts = inside(call.lengths, inputs[0].shape[1])
    masks = [counts[(...,) + (None,) * (x.dim() - 2)] for x in inputs]
    if call.superposition:
        return [inputs[0].where(masks[0], inputs[0].new_tensor([0.0, 1.0, 0.0]))]
    Q, S = call.layout
    still = torch.eye(Q * S, device=inputs[0].device, dtype=inputs[0].dtype).log().reshape(Q, S, Q, S)
    instead = (-torch.inf, still, -torch.inf)
    return [x.where(mask, value) for x, mask, value in zip(inputs, masks, instead, strict=True)]


def _input_gradients(call: _Call, steps: Steps, found: Steps) -> list[Tensor]:
    if call.superposition:
        grads = [torch.cat([x.reshape(*x.shape[:2], 1) for x in found], dim=-1).transpose(0, 1)]
    else:
        grads = list(log_gradients(steps, found, call.layout.Q))
    if call.lengths is not None:
        counts = inside(call.lengths, steps.push.shape[0])
        grads = [x.where(counts[(...,) + (None,) * (x.dim() - 2)], 0.0) for x in grads]
    return grads


Self = TypeVar("Self", bound="_State")


class _State:
    """What both stacks' states share."""

    def __init__(
        self, tensor: Tensor, buffer: _Buffer, length: int, layout: Layout, backend: str, history: tuple | None
    ):
        self._tensor = tensor  # (B, layout.size(length)), in the graph
        self._buffer = buffer
        self._layout = layout
        self._backend = backend
        # Inputs of all steps so far, for the nondeterministic stack: what exact arithmetic would start from again.
        self._history = history
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
        return self.map(lambda x: x.index_select(0, index.long()))

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
        ours, theirs = ((x.data_ptr(), x.shape, x.stride()) for x in (self._tensor, tensor))
        shared = ours == theirs  # the same numbers in the same places, as after detach
        # a state that is computed from its history stays so: its buffer is filled up to -1
        buffer = self._buffer if shared else _Buffer(tensor.detach(), min(self.length, self._buffer.filled))
        history = None if self._history is None else tuple(tuple(map(function, step)) for step in self._history)
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
        data = self._tensor.new_empty(self.batch_size, size(max(T, 32, self.length * 2)))
        data[:, : size(self.length)] = self._tensor.detach()
        return _Buffer(data, T)


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
        return _empty(cls, batch_size, Layout(1, 1), device, backend, None)

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
        checks.check_length_values(lengths, actions.shape[1])
        if self._backend != "cpp":
            checks.check_numbers("actions", actions.detach(), lengths, minus_infinity=False)
        if actions.shape[1] == 0:
            return actions.new_zeros(self.batch_size, 0, self.length), self
        T = self.length + actions.shape[1]
        call = _Call(
            self._layout, self.length, True, self._backend, None if lengths is None else lengths.long().clone()
        )
        buffer = self._room(T)
        weights, tensor, _ = _Extend.apply(self._tensor, call, buffer, actions)  # pyright: ignore
        return weights, SuperpositionState(tensor, buffer, T, self._layout, self._backend, None)


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
        return _empty(cls, batch_size, Layout(num_states, num_symbols), device, backend, ())

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
        inputs = (log_push, log_replace, log_pop)
        checks.check_transitions(*inputs, lengths)
        self._check_batch("log_push", log_push)
        if log_push.shape[2:4] != self._layout:
            Q, S = self._layout
            got = tuple(log_push.shape[2:4])
            raise ValueError(f"log_push: expected {Q} states and {S} symbols like the state, got {got}")
        checks.check_length_values(lengths, log_push.shape[1])
        if self._backend != "cpp":
            self._check_numbers(inputs, lengths)
        if log_push.shape[1] == 0:
            return log_push.new_zeros(self.batch_size, 0, self.length + 1, *self._layout), self
        T = self.length + log_push.shape[1]
        call = _Call(
            self._layout, self.length, False, self._backend, None if lengths is None else lengths.long().clone()
        )
        assert self._history is not None
        # Copies: the caller may use its tensors again for the next step.
        history = (*self._history, tuple(x.clone() for x in _still_where_ended(call, inputs)))
        if self._buffer.filled >= 0:
            buffer = self._room(T)
            weights, tensor, vouched = _Extend.apply(self._tensor, call, buffer, *inputs)  # pyright: ignore
            if vouched:
                return weights, NondeterministicState(tensor, buffer, T, self._layout, self._backend, history)
        # Plain doubles cannot vouch for the weights of this state: from here on every row is computed from the start.
        if self._backend == "cpp":  # the kernel would count the steps from the start, too
            self._check_numbers(inputs, lengths)
        steps = (torch.cat(x, dim=1) for x in zip(*history, strict=True))
        weights = nondeterministic_weights(*steps, backend=self._backend)
        weights = weights[:, self.length :]
        if lengths is not None:
            weights = weights.where(inside(lengths, log_push.shape[1])[..., None, None, None], 0.0)
        nothing = _Buffer(self._tensor.detach(), -1)
        return weights, NondeterministicState(self._tensor, nothing, T, self._layout, self._backend, history)

    @staticmethod
    def _check_numbers(inputs: tuple[Tensor, ...], lengths: Tensor | None) -> None:
        for name, x in zip(("log_push", "log_replace", "log_pop"), inputs, strict=True):
            checks.check_numbers(name, x.detach(), lengths, minus_infinity=True)


def _empty(cls, batch_size: int, layout: Layout, device: torch.device | str, backend: str, history: tuple | None):
    if not isinstance(batch_size, int) or batch_size < 0:
        raise ValueError(f"batch_size: expected a whole number, got {batch_size!r}")
    backend = choose(backend, torch.device(device))
    if backend == "reference":
        raise ValueError("backend: states run on 'torch' or 'cpp', got 'reference'")
    tensor = torch.empty(batch_size, 0, dtype=torch.float64, device=device)
    return cls(tensor, _Buffer(tensor, 0), 0, layout, backend, history)
