"""Base class of the stack attention layers, and their state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..ops.checks import SequenceError, check_count, check_limit, checked_lengths
from ..ops.documents import by_documents, extend_by_documents
from ..ops.lengths import without_padding
from ..ops.memory import names_argument
from .checks import check_choice, check_positive, check_same_size, check_state, check_vectors
from .linear import Linear
from .state import State

PUSH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
    "exp": torch.exp,
}


@dataclass(frozen=True, repr=False)
class WeightedStack(State):
    """A stack whose state gives attention weights, with the values that they refer to."""

    state: Any  # state of the operator
    values: Tensor  # (B, initial values + steps so far, m)

    def restart(self, rows: Tensor) -> WeightedStack:
        """Restart each stack where `rows`, (B,), bool, is True; its later weights do not refer to earlier values."""
        return WeightedStack(self.state.restart(rows), self.values)


@dataclass(frozen=True, repr=False)
class StackState(State):
    """State of a stack attention layer between two calls to `extend`."""

    stack: Any  # state that gives readings, or a WeightedStack; batch size B * heads
    heads: int
    kind: str  # of the layer

    @property
    def batch_size(self) -> int:
        return self.stack.batch_size // self.heads

    def map(self, function: Callable[[Tensor], Tensor]) -> StackState:
        """Apply `function` to each tensor, with shape (B, ...) for one head and (B, heads, ...) for several."""
        if self.heads == 1:
            return super().map(function)
        return super().map(lambda x: function(x.unflatten(0, (x.shape[0] // self.heads, self.heads))).flatten(0, 1))

    def restart(self, rows: Tensor) -> StackState:
        """Replace the stacks of each sequence where `rows`, (B,), bool, is True with the initial ones."""
        return replace(self, stack=self.stack.restart(rows.repeat_interleave(self.heads)))

    def reorder(self, index: Tensor) -> StackState:
        """Select the sequences at positions `index` as a new batch."""
        if self.heads == 1:
            return super().reorder(index)
        return super().reorder((index[:, None] * self.heads + torch.arange(self.heads, device=index.device)).flatten())


class StackAttention(nn.Module, ABC):
    """Base class of all stack attention layers: (B, T, d_model) -> (B, T, d_model), causal.

    A layer has three linear maps without biases: `to_actions` gives the action logits, `to_values` the pushed vectors,
    and `to_output` maps the readings back to d_model. Each head is an independent stack. A subclass defines what the
    actions do: `split_actions`, `weights`, `readings`, `initial_stack` and `extend_stack`. Inside these methods, heads
    are part of the batch.

    Args:
        d_model: size of inputs and outputs.
        num_actions: number of action logits per head.
        stack_embedding_size: size m of the vectors on the stack.
        reading_size: size of a reading per head.
        limit: the argument `limit_name` of the layer; None: no limit.
        heads: number of independent stacks.
        push_activation: function applied to the pushed vectors: `"sigmoid"`, `"identity"` or `"exp"`.
    """

    kind: ClassVar[str]
    """Name of the kind of stack in the layer notation."""
    limit_name: ClassVar[str | None] = None
    """Name of the argument that limits the size of the stack's state; None: there is none."""

    def __init__(
        self,
        d_model: int,
        num_actions: int,
        stack_embedding_size: int,
        reading_size: int,
        *,
        limit: int | None = None,
        heads: int,
        push_activation: str,
    ):
        super().__init__()
        check_positive(d_model=d_model, stack_embedding_size=stack_embedding_size, heads=heads)
        check_limit(self.limit_name or "limit", limit)
        check_choice("push_activation", push_activation, PUSH_ACTIVATIONS)
        self.limit = limit
        self.heads = heads
        self.push_activation = push_activation
        self.to_actions = Linear(d_model, heads * num_actions, bias=False)
        self.to_values = Linear(d_model, heads * stack_embedding_size, bias=False)
        self.to_output = Linear(heads * reading_size, d_model, bias=False)

    @abstractmethod
    def split_actions(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Convert logits (B, T, num_actions) to the arguments of the operator."""

    @abstractmethod
    def weights(self, actions: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
        """Compute attention weights (B, T, initial values + T, ...) from actions."""

    @abstractmethod
    def readings(self, weights: Tensor, values: Tensor) -> Tensor:
        """Combine weights (B, T, i, ...) and values (B, i, m) into readings (B, T, reading_size)."""

    def read_stack(self, logits: Tensor, values: Tensor, lengths: Tensor | None) -> Tensor:
        """Compute readings (B, T, reading_size) from logits (B, T, num_actions) and values (B, i, m).

        A subclass may override it with an operator that does not compute the attention weights.
        """
        return self.readings(self.weights(self.split_actions(logits), lengths), values)

    @abstractmethod
    def initial_stack(self, batch_size: int) -> Any:
        """Create the state of the stacks of `batch_size` sequences before the first step."""

    @abstractmethod
    def extend_stack(self, stack: Any, logits: Tensor, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Take T more steps from logits (B, T, num_actions), pushing values (B, T, m).

        Returns:
            Readings (B, T, reading_size) and the new state.
        """

    def initial_values(self, batch_size: int) -> Tensor:
        """Vectors on the stack before the first step, (B * heads, number, m); none by default."""
        m = self.to_values.out_features // self.heads
        return self.to_values.weight.new_zeros(batch_size * self.heads, 0, m)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.reset_maps()

    def reset_maps(self) -> None:
        """Initialise the three linear maps from the Xavier uniform distribution."""
        for layer in (self.to_actions, self.to_values, self.to_output):
            nn.init.xavier_uniform_(layer.weight)

    @names_argument("x", 1)
    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        starts: Tensor | None = None,
        return_weights: bool = False,
    ):
        """Attend to the stack at every step.

        Args:
            x: (B, T, d_model)
            lengths: (B,), optional
                Number of steps of each sequence. Later steps are padding: they are ignored, and their output is
                meaningless.
            starts: (B, T), bool, optional
                True at the first step of each document, if rows contain several documents: each has a stack of its own.
            return_weights: also return the attention weights.

        Returns:
            The output (B, T, d_model), or a tuple of the output and the weights, whose shape is (B, heads, ...) with
            several heads.

        Raises:
            ValueError, TypeError: wrong shape, dtype or device; `starts` together with `return_weights`; or an action
                is nan (on a GPU, the output is nan instead; see `immediate_checks`).
        """
        if starts is not None:
            if return_weights:
                raise ValueError("starts: expected None with return_weights, got a tensor")
            return by_documents(self.forward, starts, self._check(x, lengths), lengths=lengths)
        x = self._check(x, lengths)
        logits, lengths = self._action_logits(x), self._repeat_lengths(lengths)
        values = self._pushed(x)
        initial = self.initial_values(x.shape[0])
        if initial.shape[1]:
            values = torch.cat([initial, values], dim=1)
        if not return_weights:
            return self.to_output(self._join_heads(self._for_heads(self.read_stack, logits, values, lengths)))
        weights = self._for_heads(self.weights, self.split_actions(logits), lengths)
        return self.to_output(self._join_heads(self.readings(weights, values))), self._per_head(weights)

    @names_argument("x", 1)
    def actions(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """Compute the actions of each step, without attending to the stack.

        Args:
            x: (B, T, d_model)
            lengths: (B,), optional
                Number of steps of each sequence, as in `forward`.

        Returns:
            The arguments of the stack's operator, with shapes (B, T, ...); with several heads (B, heads, T, ...).

        Raises:
            ValueError, TypeError: wrong shape, dtype or device.

        Examples::

            layer = SuperpositionStackAttention(d_model=32)
            (probabilities,) = layer.actions(x)                       # (B, T, 3)
        """
        actions = self.split_actions(self._action_logits(self._check(x, lengths)))
        return tuple(self._per_head(action) for action in actions)

    def initial_state(self, batch_size: int) -> StackState:
        """Create the state before the first step."""
        check_count("batch_size", batch_size, least=0)
        return StackState(self.initial_stack(batch_size), self.heads, self.kind)

    @names_argument("x", 1)
    def extend(
        self, x: Tensor, state: StackState, lengths: Tensor | None = None, *, starts: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Take T more steps: x (B, T, d_model) -> the output (B, T, d_model) and the new state.

        `starts` (B, T) marks the first step of each new document, as in `forward`; steps before the first new document
        continue the document of the state.

        Raises:
            ValueError, TypeError: as in `forward`, or the state does not fit the layer or the batch.
        """
        x = self._check(x, lengths)
        self._check_state(state, x)
        if starts is not None:
            extend = lambda state, x, lengths: self.extend(x, state, lengths)  # noqa: E731
            alone: Callable[..., Any] = self.forward
            return extend_by_documents(state, extend, alone, starts, x, lengths=lengths)
        logits, values = self._action_logits(x), self._pushed(x)
        lengths = self._repeat_lengths(lengths)
        readings, stack = self._for_heads(self.extend_stack, state.stack, logits, values, lengths)
        return self.to_output(self._join_heads(readings)), StackState(stack, self.heads, self.kind)

    def _check_state(self, state: StackState, x: Tensor) -> None:
        check_state(state, StackState, "x", x)
        if state.kind != self.kind:
            raise TypeError(f"state: expected the state of a {self.kind} layer, got that of a {state.kind} layer")
        check_same_size("head", self.heads, state.heads)
        name = self.limit_name
        found = None if name is None else getattr(state.stack, name, None)
        if found != self.limit:
            raise ValueError(f"state: expected a state with {name} {self.limit} like the layer, got {name} {found}")

    def _check(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        check_vectors("x", x, self.to_actions.in_features, lengths, self.to_actions.weight)
        return without_padding(x, checked_lengths(lengths, x.shape[1]))

    def _action_logits(self, x: Tensor) -> Tensor:
        return self._split_heads(self.to_actions(x))  # (B * heads, T, num_actions)

    def _pushed(self, x: Tensor) -> Tensor:
        return self._split_heads(PUSH_ACTIVATIONS[self.push_activation](self.to_values(x)))  # (B * heads, T, m)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, heads * size) -> (B * heads, T, size)"""
        if self.heads == 1:
            return x
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def _join_heads(self, x: Tensor) -> Tensor:
        """(B * heads, T, size) -> (B, T, heads * size)"""
        if self.heads == 1:
            return x
        return x.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)

    def _per_head(self, x: Tensor) -> Tensor:
        """(B * heads, ...) -> (B, heads, ...), or unchanged with one head."""
        return x if self.heads == 1 else x.unflatten(0, (-1, self.heads))

    def _for_heads(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of B * heads stacks; its errors name the sequence in the batch of B, and the input x."""
        if torch.compiler.is_compiling():
            return function(*arguments)
        try:
            return function(*arguments)
        except SequenceError as error:
            message = f"{error.message}; the layer computes these numbers from x"
            raise SequenceError(message, error.sequence // self.heads) from None

    def _repeat_lengths(self, lengths: Tensor | None) -> Tensor | None:
        return lengths if lengths is None or self.heads == 1 else lengths.repeat_interleave(self.heads)
