"""Stacks that are extended step by step, as immutable states.

Extending a state returns a new one and does not change the old one, so states can be branched and reordered.
Successive states share an append-only buffer: the newest state is extended in place if the buffer has room; otherwise,
the state is copied first. The gradient of a state is passed backwards as the gradient of its tensor, so that autograd
handles branches, losses on a prefix and repeated backward passes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from . import checks
from .cpp import native
from .dispatch import choose_for_state
from .extension import Buffer, Extension, extend, same_place, with_idle_steps
from .immediate import immediate_checks
from .lengths import without_padding
from .memory import names_argument
from .nondeterministic import nondeterministic_weights
from .pytorch.columns import Layout
from .tensor_state import TensorState
from .transitions import History, join_transitions, split_transitions

Self = TypeVar("Self", bound="_State")


class _State(TensorState):
    """Base class of `SuperpositionState` and `NondeterministicState`."""

    def __init__(
        self, tensor: Tensor, buffer: Buffer, length: int, layout: Layout, backend: str, history: History | None
    ):
        self._tensor = tensor  # (B, layout.size(length)), in the autograd graph
        self._buffer = buffer
        self._layout = layout
        self._backend = backend
        self._history = history  # None before the first step, and for a superposition stack
        self.length = length

    def reorder(self: Self, index: Tensor) -> Self:
        """A new batch of the sequences at the positions `index`, a vector of integers; repetitions are allowed."""
        if self._tensor.requires_grad and torch.is_grad_enabled():
            return super().reorder(index)
        index = checks.check_index(index, self)
        # Copied into a buffer with room for a few more steps: beam search extends and reorders again.
        size, data = self._tensor.shape[1], self._empty_data(len(index), self.length + 8)
        torch.index_select(self._tensor.detach(), 0, index, out=data[:, :size])
        buffer = Buffer(data, min(self.length, self._buffer.filled))
        return self._moved(data[:, :size], buffer, lambda x: x.index_select(0, index))

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function` applied to each of its tensors. Their first axis is the batch."""
        tensor = function(self._tensor)
        shared = same_place(self._tensor, tensor)  # as after detach
        # `filled` stays -1 for a state that is recomputed from its history
        buffer = self._buffer if shared else Buffer(tensor.detach(), min(self.length, self._buffer.filled))
        return self._moved(tensor, buffer, function)

    def restart(self: Self, rows: Tensor) -> Self:
        """The same state, with the initial stack for some sequences.

        The steps before the restart still count in `length`, as padding does.

        Args:
            rows: (B,), bool
                True for each sequence to reset.
        """
        kept = ~checks.check_rows(rows, self)

        def idle(steps: Tensor) -> Tensor:
            lengths = kept.long() * steps.shape[1]
            return with_idle_steps(Extension(self._layout, 0, False, self._backend, lengths, self._buffer), steps)

        tensor = self._tensor
        if self._buffer.filled >= 0:  # otherwise only the history is used
            tensor = tensor.where(kept[:, None], self._after_idle_steps())
        return self._moved(tensor, Buffer(tensor.detach(), min(self.length, self._buffer.filled)), idle)

    @abstractmethod
    def _after_idle_steps(self) -> Tensor:
        """The tensor (1, layout.size(length)) of a state whose steps have changed nothing."""

    def _moved(self: Self, tensor: Tensor, buffer: Buffer, function: Callable[[Tensor], Tensor]) -> Self:
        history = None
        if self._history is not None:
            grad = torch.is_grad_enabled()

            def as_of_now(x: Tensor) -> Tensor:
                with torch.set_grad_enabled(grad):
                    return function(x)

            history = History(self._history, None, as_of_now)
        return type(self)(tensor, buffer, self.length, self._layout, self._backend, history)

    def _room(self, T: int) -> Buffer:
        """A buffer that contains this state and has room for T steps, reserved for the caller."""
        size = self._layout.size
        if self._buffer.data.shape[1] >= size(T) and self._buffer.claim(self.length, T):
            return self._buffer
        data = self._empty_data(self.batch_size, max(T, 32, self.length * 2))
        data[:, : size(self.length)] = self._tensor.detach()
        return Buffer(data, T)

    def _empty_data(self, batch_size: int, steps: int) -> Tensor:
        if self._backend == "cpp":
            return native.empty_states(batch_size, self._layout.size(steps))
        return self._tensor.new_empty(batch_size, self._layout.size(steps))

    def _take(self: Self, rows: Tensor, lengths: Tensor | None, superposition: bool) -> tuple[Tensor, Self, Extension]:
        """The attention weights of the steps in `rows`, the new state without a history, and the extension."""
        T = self.length + rows.shape[1]
        extension = Extension(self._layout, self.length, superposition, self._backend, lengths, self._room(T))
        weights, tensor = extend(self._tensor, rows, extension)
        return weights, type(self)(tensor, extension.buffer, T, self._layout, self._backend, None), extension


class SuperpositionState(_State):
    """The state of a superposition stack after some steps. States are immutable: `extend` returns a new one.

    Examples::

        >>> import torch
        >>> from stackattn import SuperpositionState
        >>> values, state = torch.empty(2, 0, 5), SuperpositionState.empty(batch_size=2)
        >>> for _ in range(3):
        ...     actions, value = torch.rand(2, 1, 3).softmax(-1), torch.rand(2, 1, 5)
        ...     values = torch.cat([values, value], dim=1)
        ...     weights, state = state.extend(actions)  # (B, 1, steps so far)
        ...     reading = weights @ values  # (B, 1, m)
        >>> state.length
        3
    """

    @classmethod
    def empty(cls, batch_size: int, *, device: torch.device | str = "cpu", backend: str = "auto") -> SuperpositionState:
        """States of `batch_size` empty stacks on `device`. `backend` is `"auto"`, `"torch"` or `"cpp"`.

        Raises:
            ValueError: `batch_size` is not a non-negative integer, or the backend cannot extend a state.
            RuntimeError: the requested backend is not available.
        """
        return _empty(cls, batch_size, Layout(1, 1), device, backend)

    @names_argument("actions", 1)
    def extend(self, actions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, SuperpositionState]:
        """Extend the stack by c steps.

        Args:
            actions: (B, c, 3)
                Weights of push, no-op and pop.
            lengths: (B,), optional
                How many of the c steps each sequence takes. Later steps are ignored; their rows are zero.

        Returns:
            Attention weights (B, c, length + c), and the new state.

        Raises:
            TypeError, ValueError: as in `superposition_weights`, or the batch size or device is not that of the state.
        """
        checks.check_actions(actions, lengths)
        checks.check_same_batch("actions", actions, self)
        lengths = checks.copy_lengths(lengths, actions.shape[1])
        if self._backend != "cpp":
            checks.check_numbers("actions", actions.detach(), lengths, minus_infinity=False)
        if actions.shape[1] == 0:
            return actions.new_zeros(self.batch_size, 0, self.length), self
        weights, state, _ = self._take(actions, lengths, superposition=True)
        return weights, state

    def _after_idle_steps(self) -> Tensor:
        state = type(self).empty(1, device=self.device, backend=self._backend)
        nothing = self._tensor.new_zeros(1, self.length, 3)
        return state.extend(nothing, torch.zeros(1, dtype=torch.long, device=self.device))[1]._tensor


class NondeterministicState(_State):
    """The state of a nondeterministic stack after some steps. States are immutable: `extend` returns a new one.

    Examples::

        >>> import torch
        >>> from stackattn import NondeterministicState
        >>> bottom = torch.zeros(2, 1, 5)
        >>> values, state = bottom, NondeterministicState.empty(batch_size=2, num_states=2, num_symbols=3)
        >>> for _ in range(3):
        ...     log_push, log_replace = torch.randn(2, 2, 1, 2, 3, 2, 3)  # (B, 1, Q, S, Q, S) each
        ...     log_pop, value = torch.randn(2, 1, 2, 3, 2), torch.randn(2, 1, 5)
        ...     values = torch.cat([values, value], dim=1)  # (B, 1 + steps so far, m)
        ...     weights, state = state.extend(log_push, log_replace, log_pop)
        ...     reading = torch.einsum("btiqs,bim->btqsm", weights, values)  # (B, 1, Q, S, m)
        >>> state
        NondeterministicState(batch_size=2, length=3, device=cpu)
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
        """States of stacks with only the bottom element.

        Args:
            batch_size: number of stacks.
            num_states: number of states Q.
            num_symbols: number of stack symbols S.
            device: device of the stacks.
            backend: `"auto"`, `"torch"` or `"cpp"`.

        Raises:
            ValueError: a number is not a positive integer (`batch_size` may be 0), or the backend cannot extend
                a state.
            RuntimeError: the requested backend is not available.
        """
        checks.check_count("num_states", num_states)
        checks.check_count("num_symbols", num_symbols)
        return _empty(cls, batch_size, Layout(num_states, num_symbols), device, backend)

    @names_argument("log_push", 1)
    def extend(
        self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, NondeterministicState]:
        """Extend the stack by c steps.

        Args:
            log_push: (B, c, Q, S, Q, S)
            log_replace: (B, c, Q, S, Q, S)
            log_pop: (B, c, Q, S, Q)
                Log weights of the transitions, as in `nondeterministic_weights`.
            lengths: (B,), optional
                How many of the c steps each sequence takes. Later steps are ignored; their rows are zero.

        Returns:
            Attention weights (B, c, length + c + 1, Q, S), and the new state.

        Raises:
            TypeError, ValueError: as in `nondeterministic_weights`, or the batch size, device, Q or S is not that of
                the state.
        """
        checks.check_transitions(log_push, log_replace, log_pop, lengths)
        return self.extend_joined(join_transitions(log_push, log_replace, log_pop), lengths)

    @names_argument("log_push", 1)
    def extend_joined(self, rows: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, NondeterministicState]:
        """Like `extend`, for the result of `join_transitions`. The state keeps this tensor: do not modify it."""
        Q, S = self._layout
        checks.check_same_batch("log_push", rows, self)
        checks.check_same_automaton("log_push", rows, Q, S)
        lengths = checks.copy_lengths(lengths, rows.shape[1])
        if self._backend != "cpp":
            self._check_numbers(rows, lengths)
        if rows.shape[1] == 0:
            return rows.new_zeros(self.batch_size, 0, self.length + 1, Q, S), self
        if rows.dtype.itemsize < 4:  # `_extend_exactly` adds up gradients of several calls; round only their sum
            weights, state = self.extend_joined(rows.float(), lengths)
            return weights.to(rows.dtype), state
        if self._buffer.filled >= 0:
            weights, state, extension = self._take(rows, lengths, superposition=False)
            if extension.in_range:
                state._history = History(self._history, with_idle_steps(extension, rows), None)
                return weights, state
        return self._extend_exactly(rows, lengths)

    def _after_idle_steps(self) -> Tensor:
        Q, S = self._layout
        state = type(self).empty(1, Q, S, device=self.device, backend=self._backend)
        nothing = self._tensor.new_zeros(1, self.length, Q, S, 2 * Q * S + Q)
        return state.extend_joined(nothing, torch.zeros(1, dtype=torch.long, device=self.device))[1]._tensor

    def _extend_exactly(self, rows: Tensor, lengths: Tensor | None) -> tuple[Tensor, NondeterministicState]:
        """Extend a state for which the range of float64 is not sufficient.

        The weights of these steps, and of all later ones, are computed from the first step.
        """
        if self._backend == "cpp":  # the kernel would report step numbers counted from the first step
            self._check_numbers(rows, lengths)
        nothing = Buffer(self._tensor.detach(), -1)
        extension = Extension(self._layout, self.length, False, self._backend, lengths, nothing)
        history = History(self._history, with_idle_steps(extension, rows), None)
        steps = history.steps()
        with immediate_checks():  # no additional wait: the values have already been read
            weights = nondeterministic_weights(*split_transitions(steps), backend=self._backend)[:, self.length :]
        T, history = self.length + rows.shape[1], History(None, steps, None)
        state = NondeterministicState(self._tensor, nothing, T, self._layout, self._backend, history)
        return without_padding(weights, lengths), state

    @staticmethod
    def _check_numbers(rows: Tensor, lengths: Tensor | None) -> None:
        for name, x in zip(("log_push", "log_replace", "log_pop"), split_transitions(rows.detach()), strict=True):
            checks.check_numbers(name, x, lengths, minus_infinity=True)


def _empty(cls, batch_size: int, layout: Layout, device: torch.device | str, backend: str):
    checks.check_count("batch_size", batch_size, least=0)
    backend = choose_for_state(backend, torch.device(device))
    tensor = torch.empty(batch_size, 0, dtype=torch.float64, device=device)
    return cls(tensor, Buffer(tensor, 0), 0, layout, backend, None)
