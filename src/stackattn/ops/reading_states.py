"""Stacks that are extended step by step and return readings, as immutable states.

Such a state contains weighted sums of the pushed vectors, and attention weights are not computed. With a limited depth
or a window, its size and the cost of a step do not grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import checks, vectors
from .dispatch import choose_for_state
from .documents import extend_by_documents
from .memory import names_argument
from .tensor_state import TensorState
from .transitions import join_transitions
from .window import extend_rows, first_row, readings_of


class SuperpositionReadingState(TensorState):
    """The vectors on a superposition stack after some steps. States are immutable: `extend` returns a new one.

    Examples::

        >>> import torch
        >>> from stackattn import SuperpositionReadingState
        >>> state = SuperpositionReadingState.empty(batch_size=2, value_size=5, depth=64)
        >>> for _ in range(100):
        ...     readings, state = state.extend(torch.rand(2, 1, 3).softmax(-1), torch.rand(2, 1, 5))  # (B, 1, m)
        >>> state
        SuperpositionReadingState(batch_size=2, length=100, depth=64, device=cpu)
    """

    LIMIT = "depth"

    def __init__(self, stack: Tensor, length: int, depth: int | None, backend: str):
        self._tensor = stack  # (B, height, m), the top first
        self._backend = backend
        self.length = length
        self.depth = depth

    @classmethod
    def empty(
        cls,
        batch_size: int,
        value_size: int,
        *,
        depth: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        backend: str = "auto",
    ) -> SuperpositionReadingState:
        """States of `batch_size` empty stacks.

        Args:
            batch_size: number of stacks.
            value_size: size m of the vectors.
            depth: number of elements that are kept, counted from the top; None: all.
            dtype: dtype of the actions and of the readings. The stack is float64 if this is float64, and float32
                otherwise.
            device: device of the stack.
            backend: `"auto"`, `"torch"` or `"cpp"`.

        Raises:
            TypeError, ValueError: an argument has the wrong type, dtype or value.
            RuntimeError: the requested backend is not available.
        """
        checks.check_count("batch_size", batch_size, least=0)
        checks.check_count("value_size", value_size)
        checks.check_limit("depth", depth)
        if dtype not in checks.FLOATS:
            raise TypeError(f"dtype: expected one of float32, float64, bfloat16, float16, got {dtype}")
        dtype = vectors.computing_dtype(dtype)
        stack = torch.zeros(batch_size, 0, value_size, dtype=dtype, device=device)
        return cls(stack, 0, depth, choose_for_state(backend, stack.device))

    @property
    def elements(self) -> Tensor:
        """The vectors on the stack, (B, height, m), the top first; zeros below the bottom of a shorter stack."""
        return self._tensor

    @names_argument("actions", 1)
    def extend(
        self, actions: Tensor, values: Tensor, lengths: Tensor | None = None, *, starts: Tensor | None = None
    ) -> tuple[Tensor, SuperpositionReadingState]:
        """Extend the stack by c steps.

        Args:
            actions: (B, c, 3)
                Weights of push, no-op and pop.
            values: (B, c, m)
                The vectors that are pushed.
            lengths: (B,), optional
                How many of the c steps each sequence takes. Later steps are ignored; their readings are zero.
            starts: (B, c), bool, optional
                True at the first step of each new document, before which the stack is emptied.

        Returns:
            Readings (B, c, m), and the new state.

        Raises:
            TypeError, ValueError: as in `superposition_readings` and `by_documents`, or the batch size, device or m is
                not that of the state.
        """
        if starts is not None:
            extend = type(self).extend
            return extend_by_documents(self, extend, self._alone, starts, actions, values, lengths=lengths)
        checks.check_actions(actions, lengths)
        checks.check_same_batch("actions", actions, self)
        checks.check_values(values, actions, actions.shape[1])
        if values.shape[2] != self._tensor.shape[2]:
            raise ValueError(f"values: expected size {self._tensor.shape[2]} like the state, got {values.shape[2]}")
        readings, stack = vectors.read_stack(actions, values, self._tensor, lengths, self.depth, self._backend)
        return readings, type(self)(stack, self.length + actions.shape[1], self.depth, self._backend)

    def _alone(self, actions: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Readings of documents that begin with an empty stack."""
        stack = self._tensor.new_zeros(len(actions), 0, self._tensor.shape[2])
        return type(self)(stack, 0, self.depth, self._backend).extend(actions, values, lengths)[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> SuperpositionReadingState:
        """The same state with `function` applied to each of its tensors. Their first axis is the batch."""
        return type(self)(function(self._tensor), self.length, self.depth, self._backend)

    def restart(self, rows: Tensor) -> SuperpositionReadingState:
        """The same state, with an empty stack for each sequence where `rows`, (B,), bool, is True."""
        rows = checks.check_rows(rows, self)
        return self.map(lambda x: x.where(~rows[:, None, None], 0.0))


class NondeterministicReadingState(TensorState):
    """The state of a nondeterministic stack with a window. States are immutable: `extend` returns a new one.

    It keeps the transitions of the last `window - 1` steps and, for each of the last `window` time points, the weighted
    sum of the top vectors of all runs. Vectors of individual elements are not kept.

    Examples::

        >>> import torch
        >>> from stackattn import NondeterministicReadingState
        >>> state = NondeterministicReadingState.empty(torch.zeros(2, 5), num_states=2, num_symbols=3, window=8)
        >>> for _ in range(20):
        ...     log_push, log_replace = torch.randn(2, 2, 1, 2, 3, 2, 3)  # (B, 1, Q, S, Q, S) each
        ...     log_pop, value = torch.randn(2, 1, 2, 3, 2), torch.randn(2, 1, 5)
        ...     readings, state = state.extend(log_push, log_replace, log_pop, value)  # (B, 1, Q, S, m)
        >>> state
        NondeterministicReadingState(batch_size=2, length=20, window=8, device=cpu)
    """

    LIMIT = "window"

    def __init__(
        self,
        steps: Tensor,
        rows: Tensor,
        band: Tensor | None,
        first: Tensor,
        length: int,
        window: int,
        sizes: tuple,
        backend: str,
    ):
        self._steps = steps  # (B, H, Q, S, Q S + Q S + Q): joined transitions of the last H steps; see ops/window.py
        self._tensor = rows  # (B, H + 1, Q S (m + 2) + 1)
        self._band = band  # the kernel's charts of these steps, which it would otherwise compute again; or None
        self._first = first  # (B, 1, Q S (m + 2) + 1): the row before the first step
        self._sizes = sizes  # Q, S, m
        self._backend = backend
        self.length = length
        self.window = window

    @classmethod
    def empty(
        cls, bottom: Tensor, num_states: int, num_symbols: int, *, window: int, backend: str = "auto"
    ) -> NondeterministicReadingState:
        """States of stacks with only the bottom element.

        Args:
            bottom: (B, m)
                Vectors of the bottom elements.
            num_states: number of states Q.
            num_symbols: number of stack symbols S.
            window: an element that is pushed at step t can be popped up to step t + `window` - 1.
            backend: `"auto"`, `"torch"` or `"cpp"`.

        Raises:
            TypeError, ValueError: an argument has the wrong type, dtype, shape or value.
            RuntimeError: the requested backend is not available.
        """
        checks.check_tensor("bottom", bottom)
        if bottom.dim() != 2 or bottom.shape[1] == 0:
            raise ValueError(f"bottom: expected shape (B, m) with m >= 1, got {tuple(bottom.shape)}")
        for name, count in (("num_states", num_states), ("num_symbols", num_symbols), ("window", window)):
            checks.check_count(name, count)
        checks.check_limit("window", window)
        Q, S = num_states, num_symbols
        dtype = vectors.computing_dtype(bottom.dtype)
        steps = bottom.new_empty(len(bottom), 0, Q, S, Q * S + Q * S + Q, dtype=dtype)
        sizes, backend = (Q, S, bottom.shape[1]), choose_for_state(backend, bottom.device)
        first = first_row(bottom, Q, S)
        return cls(steps, first, None, first, 0, window, sizes, backend)

    @names_argument("log_push", 1)
    def extend(
        self,
        log_push: Tensor,
        log_replace: Tensor,
        log_pop: Tensor,
        values: Tensor,
        lengths: Tensor | None = None,
        *,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, NondeterministicReadingState]:
        """Extend the stack by c steps.

        Args:
            log_push, log_replace, log_pop: as in `NondeterministicState.extend`.
            values: (B, c, m)
                The vectors that are pushed.
            lengths: (B,), optional
                How many of the c steps each sequence takes. Later steps are ignored; their readings are zero.
            starts: (B, c), bool, optional
                True at the first step of each new document, before which all elements except the bottom are removed.

        Returns:
            Readings (B, c, Q, S, m), and the new state.

        Raises:
            TypeError, ValueError: as in `nondeterministic_readings` and `by_documents`, or the batch size, device, Q, S
                or m is not that of the state.
        """
        checks.check_transitions(log_push, log_replace, log_pop, lengths)
        steps = join_transitions(log_push, log_replace, log_pop)
        if starts is None:
            return self.extend_joined(steps, values, lengths)
        first = self._first.expand(-1, steps.shape[1], -1)  # the first row of each document
        extend = lambda state, steps, values, _, lengths: state.extend_joined(steps, values, lengths)  # noqa: E731
        return extend_by_documents(self, extend, self._alone, starts, steps, values, first, lengths=lengths)

    @names_argument("log_push", 1)
    def extend_joined(
        self, steps: Tensor, values: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, NondeterministicReadingState]:
        """Like `extend`, for the result of `join_transitions`."""
        Q, S, m = self._sizes
        c = steps.shape[1]
        checks.check_same_batch("log_push", steps, self)
        checks.check_same_automaton("log_push", steps, Q, S)
        checks.check_values(values, steps, c)
        if values.shape[2] != m:
            raise ValueError(f"values: expected size {m} like the state, got {values.shape[2]}")
        checks.check_lengths(lengths, steps)
        if c == 0:
            return steps.new_zeros(self.batch_size, 0, Q, S, m), self
        dtype = vectors.computing_dtype(steps.dtype)
        all_steps = torch.cat([self._steps.to(dtype), steps.to(dtype)], 1)
        rows, band = extend_rows(all_steps, values, self._tensor, self._band, lengths, self.window, self._backend)
        kept = min(self._steps.shape[1] + c, self.window - 1)
        last_steps = _last(all_steps, kept, c, lengths, -torch.inf)
        last_rows = _last(torch.cat([self._tensor, rows], 1), kept + 1, c, lengths, 0.0)
        length = self.length + c
        state = type(self)(last_steps, last_rows, band, self._first, length, self.window, self._sizes, self._backend)
        return readings_of(rows, Q, S).to(steps.dtype), state

    def map(self, function: Callable[[Tensor], Tensor]) -> NondeterministicReadingState:
        """The same state with `function` applied to each of its tensors. Their first axis is the batch."""
        steps, rows, first = function(self._steps), function(self._tensor), function(self._first)
        band = None if self._band is None or rows.device != self.device else function(self._band)
        return type(self)(steps, rows, band, first, self.length, self.window, self._sizes, self._backend)

    def restart(self, rows: Tensor) -> NondeterministicReadingState:
        """The same state, with only the bottom element on each stack where `rows`, (B,), bool, is True."""
        kept = ~checks.check_rows(rows, self)
        steps = self._steps.where(kept[:, None, None, None, None], -torch.inf)
        first = pad(self._first, (0, 0, self._tensor.shape[1] - 1, 0))  # zeros in place of earlier rows
        row = self._tensor.where(kept[:, None, None], first)
        return type(self)(steps, row, None, self._first, self.length, self.window, self._sizes, self._backend)

    def _alone(self, steps: Tensor, values: Tensor, first: Tensor, lengths: Tensor) -> Tensor:
        """Readings of documents that begin with only the bottom element on the stack."""
        first, nothing = first[:, :1], steps[:, :0]
        state = type(self)(nothing, first, None, first, 0, self.window, self._sizes, self._backend)
        return state.extend_joined(steps, values, lengths)[0]


def _last(x: Tensor, count: int, new: int, lengths: Tensor | None, missing: float) -> Tensor:
    """The last `count` entries of each sequence in x (B, steps, ...), with `missing` before the first entry.

    Of the last `new` entries of x, each sequence has only the first `lengths`.
    """
    if lengths is None:
        return x[:, x.shape[1] - count :]
    places = (x.shape[1] - new - count + lengths.long())[:, None] + torch.arange(count, device=x.device)  # (B, count)
    places = places[(...,) + (None,) * (x.dim() - 2)]
    found = x.gather(1, places.clamp(min=0).expand(*places.shape[:2], *x.shape[2:]))
    return found.where(places >= 0, missing)
