"""Stacks that an LSTM controls: one class for each kind of stack, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ..nn import NondeterministicStackAttention, StackSpec, State, SuperpositionStackAttention
from ..ops import NondeterministicReadingState, NondeterministicState
from ..ops.lstm import nondeterministic_lstm, superposition_lstm
from ..ops.transitions import split_transitions

Maps = tuple[Tensor, Tensor]  # weight (num_actions + m, hidden_size) and bias (num_actions + m,) of both maps


class LSTMStack(nn.Module, ABC):
    """Base class: maps from the LSTM's hidden state to the stack, and the stack itself.

    A state has an attribute `reading` (B, reading_size), which is part of the LSTM's next input.

    Args:
        hidden_size: size of the LSTM's hidden state.
        num_actions: number of action logits.
        stack_embedding_size: size m of the vectors on the stack.
        reading_size: size of a reading.
    """

    kind: ClassVar[str]
    """Name of the kind of stack in the layer notation."""
    has_uniform_init: ClassVar[bool] = False
    """Whether the published code initialises the maps of this kind uniformly (`stack_init="uniform"`)."""

    def __init__(self, hidden_size: int, num_actions: int, stack_embedding_size: int, reading_size: int):
        super().__init__()
        self.limit: int | None = None
        """Depth or window of the stack; None: no limit."""
        self.reading_size = reading_size
        self.to_actions = nn.Linear(hidden_size, num_actions)
        self.to_value = nn.Linear(hidden_size, stack_embedding_size)

    @abstractmethod
    def split_actions(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Convert logits (B, T, num_actions) to the arguments of the stack's operator."""

    @abstractmethod
    def initial_state(self, batch_size: int) -> Any:
        """Create the state before the first action."""

    @abstractmethod
    def step(self, hidden: Tensor, state: Any, active: Tensor | None, maps: Maps) -> Any:
        """Take one action.

        Args:
            hidden: (B, hidden_size)
            state: the state before the action.
            active: (B,), optional
                Which sequences take the action; all by default. The others keep their stacks.
            maps: the result of `maps()`.
        """

    @abstractmethod
    def unroll_lstm(self, inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, maps: Maps) -> Tensor | None:
        """Run an LSTM and the stack over whole sequences in one call of the kernel.

        Args:
            inputs: (B, T, 4 hidden_size)
                What the input and the bias add to the LSTM's gates.
            weight_reading: (4 hidden_size, reading_size)
            weight_hidden: (4 hidden_size, hidden_size)
            maps: the result of `maps()`.

        Returns:
            Hidden states (B, T, hidden_size); None if the kernel cannot compute them.
        """

    def maps(self) -> Maps:
        """Join the weights and biases of both maps, once for all steps of a sequence."""
        layers = (self.to_actions, self.to_value)
        return torch.cat([x.weight for x in layers]), torch.cat([x.bias for x in layers])

    def choose(self, hidden: Tensor, maps: Maps) -> tuple[Tensor, Tensor]:
        """(B, hidden_size) -> action logits (B, num_actions) and the pushed vector (B, m)"""
        sizes = (self.to_actions.out_features, self.to_value.out_features)
        logits, value = linear(hidden, *maps).split(sizes, dim=1)
        return logits, value.sigmoid()


@dataclass(frozen=True, repr=False)
class VectorStack(State):
    """A superposition stack, stored as vectors, top first: for small vectors, cheaper than attention weights."""

    elements: Tensor  # (B, height, m)
    reading: Tensor  # (B, m)


class SuperpositionLSTMStack(LSTMStack):
    """A superposition stack, stored as vectors; with `depth`, only the top `depth` vectors are kept."""

    kind = SuperpositionStackAttention.kind

    def __init__(self, hidden_size: int, stack_embedding_size: int, depth: int | None = None):
        super().__init__(hidden_size, 3, stack_embedding_size, stack_embedding_size)
        self.limit = depth

    def split_actions(self, logits: Tensor) -> tuple[Tensor]:
        return (logits.softmax(-1),)  # (B, T, 3): push, no-op, pop

    def initial_state(self, batch_size: int) -> VectorStack:
        empty = self.to_value.weight.new_zeros(batch_size, 1, self.reading_size)
        return VectorStack(empty, empty[:, 0])

    def step(self, hidden: Tensor, state: VectorStack, active: Tensor | None, maps: Maps) -> VectorStack:
        logits, value = self.choose(hidden, maps)
        push, noop, pop = logits.softmax(-1)[:, :, None, None].unbind(1)  # (B, 1, 1) each
        padded = pad(state.elements, (0, 0, 0, 2))  # (B, height + 2, m)
        same, below = padded[:, :-1], padded[:, 1:]
        above = torch.cat([value[:, None], state.elements], dim=1)  # (B, height + 1, m)
        elements = push * above + noop * same + pop * below
        if active is not None:
            elements = elements.where(active[:, None, None], same)
        elements = elements[:, : self.limit]
        return VectorStack(elements, elements[:, 0])

    def unroll_lstm(self, inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, maps: Maps) -> Tensor | None:
        if self.limit is not None and self.limit < inputs.shape[1]:
            return None
        return superposition_lstm(inputs, weight_reading, weight_hidden, *maps)


@dataclass(frozen=True, repr=False)
class AutomatonStack(State):
    """A nondeterministic stack, whose state gives weights over all values pushed so far or, with a window, readings."""

    stack: NondeterministicState | NondeterministicReadingState
    values: Tensor | None  # (B, 1 + steps so far, m), the bottom vector first; None with a window
    reading: Tensor  # (B, Q * S * m)


class NondeterministicLSTMStack(LSTMStack):
    """The stack of a nondeterministic automaton; elements can be popped for `window` - 1 steps after their push."""

    kind = NondeterministicStackAttention.kind
    has_uniform_init = True

    def __init__(
        self,
        hidden_size: int,
        num_states: int,
        num_symbols: int,
        stack_embedding_size: int,
        window: int | None = None,
    ):
        Q, S, m = num_states, num_symbols, stack_embedding_size
        super().__init__(hidden_size, Q * S * (2 * Q * S + Q), m, Q * S * m)
        self.num_states, self.num_symbols = Q, S
        self.limit = window
        self.bottom = nn.Parameter(torch.empty(m))

    def split_actions(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # log weights (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
        return split_transitions(self._joined(logits))

    def initial_state(self, batch_size: int) -> AutomatonStack:
        values = self.bottom.sigmoid().expand(batch_size, 1, -1)
        reading = pad(values[:, 0], (0, self.reading_size - values.shape[2]))  # start state, bottom symbol
        sizes = self.num_states, self.num_symbols
        if self.limit is not None:
            stack = NondeterministicReadingState.empty(values[:, 0], *sizes, window=self.limit)
            return AutomatonStack(stack, None, reading)
        return AutomatonStack(NondeterministicState.empty(batch_size, *sizes, device=values.device), values, reading)

    def step(self, hidden: Tensor, state: AutomatonStack, active: Tensor | None, maps: Maps) -> AutomatonStack:
        logits, value = self.choose(hidden, maps)
        lengths = None if active is None else active.long()
        actions = self._joined(logits[:, None])
        if isinstance(state.stack, NondeterministicReadingState):
            readings, stack = state.stack.extend_joined(actions, value[:, None], lengths)  # (B, 1, Q, S, m)
            values, reading = None, readings.flatten(1)  # (B, Q * S * m)
        else:
            weights, stack = state.stack.extend_joined(actions, lengths)  # (B, 1, i, Q, S)
            values = torch.cat([state.values, value[:, None]], dim=1)  # pyright: ignore[reportArgumentType, reportCallIssue]
            reading = (weights.flatten(3)[:, 0].mT @ values).flatten(1)
        if active is not None:
            reading = reading.where(active[:, None], state.reading)
        return AutomatonStack(stack, values, reading)

    def unroll_lstm(self, inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, maps: Maps) -> Tensor | None:
        if self.limit is not None and self.limit < inputs.shape[1]:
            return None
        bottom = self.bottom.sigmoid()
        return nondeterministic_lstm(inputs, weight_reading, weight_hidden, *maps, bottom, self.num_states)

    def _joined(self, logits: Tensor) -> Tensor:
        """Log weights of push, replace and pop in one tensor, (B, T, Q, S, Q S + Q S + Q)."""
        Q, S = self.num_states, self.num_symbols
        return logits.unflatten(-1, (Q, S, 2 * Q * S + Q))


LSTM_STACKS: dict[str, type[LSTMStack]] = {
    layer.kind: layer for layer in (SuperpositionLSTMStack, NondeterministicLSTMStack)
}
"""The class for each kind of stack. Its arguments are `hidden_size`, the sizes of this kind of stack, and its limit."""


def build_lstm_stack(spec: StackSpec, hidden_size: int) -> LSTMStack:
    """Create the stack of a specification. Raises ValueError for a kind without an LSTM stack."""
    if spec.kind not in LSTM_STACKS:
        raise ValueError(f"stack: expected one of {', '.join(LSTM_STACKS)}, got {spec.kind!r}")
    return LSTM_STACKS[spec.kind](hidden_size, **spec.arguments)  # pyright: ignore
