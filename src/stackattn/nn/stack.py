"""Stack attention layers: (B, T, d_model) -> (B, T, d_model), causal, no positions needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..ops import NondeterministicState, SuperpositionState, nondeterministic_weights, superposition_weights
from ..ops.transitions import split_transitions
from .checks import check_positive, check_vectors
from .state import State, without_padding

PUSH_ACTIVATIONS = {"sigmoid": torch.sigmoid, "identity": lambda x: x, "exp": torch.exp}


@dataclass(frozen=True, repr=False)
class StackState(State):
    stack: SuperpositionState | NondeterministicState  # of batch size B * heads
    values: Tensor  # (B * heads, steps so far, m), for the nondeterministic stack after the bottom vector
    heads: int

    def map(self, function: Callable[[Tensor], Tensor]) -> StackState:
        """`function` sees the sequences as the first axis, and their heads as the second one."""
        if self.heads == 1:
            return super().map(function)
        return super().map(lambda x: function(x.unflatten(0, (x.shape[0] // self.heads, self.heads))).flatten(0, 1))

    def reorder(self, index: Tensor) -> StackState:
        if self.heads == 1:
            return super().reorder(index)
        return super().reorder((index[:, None] * self.heads + torch.arange(self.heads, device=index.device)).flatten())


Kind = TypeVar("Kind", SuperpositionState, NondeterministicState)


def _stack_of(state: StackState, kind: type[Kind]) -> Kind:
    if not isinstance(state, StackState) or not isinstance(state.stack, kind):
        got = type(state).__name__
        raise TypeError(f"state: expected one that this layer's initial_state or extend gave, got {got}")
    return state.stack


class _StackAttention(nn.Module):
    """What both layers share: three maps without biases, heads, and the choice of what is pushed."""

    def __init__(self, d_model: int, num_actions: int, m: int, reading_size: int, heads: int, push_activation: str):
        super().__init__()
        check_positive(d_model=d_model, stack_embedding_size=m, heads=heads)
        if push_activation not in PUSH_ACTIVATIONS:
            names = ", ".join(map(repr, PUSH_ACTIVATIONS))
            raise ValueError(f"push_activation: expected one of {names}, got {push_activation!r}")
        self.heads = heads
        self.push_activation = push_activation
        self.to_actions = nn.Linear(d_model, heads * num_actions, bias=False)
        self.to_values = nn.Linear(d_model, heads * m, bias=False)
        self.to_output = nn.Linear(heads * reading_size, d_model, bias=False)

    def reset_parameters(self) -> None:
        """Xavier uniform; the bottom vector uniform in (-0.1, 0.1)."""
        for layer in (self.to_actions, self.to_values, self.to_output):
            nn.init.xavier_uniform_(layer.weight)

    def _enter(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        check_vectors("x", x, self.to_actions.in_features, lengths)
        return without_padding(x, lengths)

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, heads * size) -> (B * heads, T, size): a head is a stack of its own."""
        if self.heads == 1:
            return x
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def _join(self, readings: Tensor) -> Tensor:
        """(B * heads, T, size) -> (B, T, heads * size)"""
        if self.heads == 1:
            return readings
        return readings.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)

    def _values(self, x: Tensor) -> Tensor:
        return self._split(PUSH_ACTIVATIONS[self.push_activation](self.to_values(x)))  # (B * heads, T, m)

    def _lengths(self, lengths: Tensor | None) -> Tensor | None:
        return lengths if lengths is None or self.heads == 1 else lengths.repeat_interleave(self.heads)

    def _per_head(self, x: Tensor) -> Tensor:
        """What a caller sees of weights and actions: with several heads, (B, heads, ...)."""
        return x if self.heads == 1 else x.unflatten(0, (-1, self.heads))

    def _result(self, y: Tensor, weights: Tensor, actions, return_weights: bool, return_actions: bool):
        extras = [self._per_head(weights)] if return_weights else []
        if return_actions:
            extras.append(actions)
        return (y, *extras) if extras else y


class SuperpositionStackAttention(_StackAttention):
    """Attention over a superposition stack (Joulin and Mikolov): each step interpolates a push, a no-op and a pop.

    Args:
        d_model: size of inputs and outputs.
        stack_embedding_size: size m of the vectors on the stack; `d_model` unless given.
        heads: how many independent stacks.
        push_activation: what is applied to the pushed vectors, `"sigmoid"`, `"identity"` or `"exp"`.

    Examples::

        layer = SuperpositionStackAttention(d_model=32)
        y = layer(x)                                                  # (B, T, 32) -> (B, T, 32)
        y, weights, actions = layer(x, return_weights=True, return_actions=True)   # (B, T, T), (B, T, 3)
    """

    def __init__(
        self, d_model: int, stack_embedding_size: int | None = None, *, heads: int = 1, push_activation: str = "sigmoid"
    ):
        m = d_model if stack_embedding_size is None else stack_embedding_size
        super().__init__(d_model, 3, m, m, heads, push_activation)
        self.reset_parameters()

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, *, return_weights: bool = False, return_actions: bool = False
    ):
        """x (B, T, d_model); what lies beyond `lengths` (B,) is not read."""
        x = self._enter(x, lengths)
        actions = self._split(self.to_actions(x)).softmax(-1)  # (B * heads, T, 3)
        weights = superposition_weights(actions, self._lengths(lengths))  # (B * heads, T, T)
        y = self.to_output(self._join(weights @ self._values(x)))
        return self._result(y, weights, self._per_head(actions), return_weights, return_actions)

    def initial_state(self, batch_size: int) -> StackState:
        weight = self.to_values.weight
        empty = SuperpositionState.empty(batch_size * self.heads, device=weight.device)
        values = weight.new_zeros(batch_size * self.heads, 0, weight.shape[0] // self.heads)
        return StackState(empty, values, self.heads)

    def extend(self, x: Tensor, state: StackState, lengths: Tensor | None = None) -> tuple[Tensor, StackState]:
        x = self._enter(x, lengths)
        actions = self._split(self.to_actions(x)).softmax(-1)
        weights, stack = _stack_of(state, SuperpositionState).extend(
            actions, self._lengths(lengths)
        )  # (B * heads, c, steps so far)
        values = torch.cat([state.values, self._values(x)], dim=1)
        return self.to_output(self._join(weights @ values)), StackState(stack, values, self.heads)


class NondeterministicStackAttention(_StackAttention):
    """Attention over the stack of a nondeterministic pushdown automaton, summed over all of its runs.

    Args:
        d_model: size of inputs and outputs.
        num_states: states of the automaton.
        num_symbols: stack symbols; the first one is the bottom symbol.
        stack_embedding_size: size m of the vectors on the stack.
        heads: how many independent stacks.
        push_activation: what is applied to the pushed vectors, `"sigmoid"`, `"identity"` or `"exp"`.

    Examples::

        layer = NondeterministicStackAttention(d_model=28, num_states=3, num_symbols=3, stack_embedding_size=5)
        y = layer(x)                                                  # (B, T, 28) -> (B, T, 28)
        y, weights = layer(x, return_weights=True)                    # (B, T, T + 1, 3, 3)
    """

    def __init__(
        self,
        d_model: int,
        num_states: int = 3,
        num_symbols: int = 3,
        stack_embedding_size: int = 5,
        *,
        heads: int = 1,
        push_activation: str = "sigmoid",
    ):
        check_positive(num_states=num_states, num_symbols=num_symbols)
        Q, S, m = num_states, num_symbols, stack_embedding_size
        super().__init__(d_model, Q * S * (2 * Q * S + Q), m, Q * S * m, heads, push_activation)
        self.num_states, self.num_symbols = Q, S
        self.bottom = nn.Parameter(torch.empty(heads * m))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.uniform_(self.bottom, -0.1, 0.1)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, *, return_weights: bool = False, return_actions: bool = False
    ):
        """x (B, T, d_model); what lies beyond `lengths` (B,) is not read."""
        x = self._enter(x, lengths)
        transitions = split_transitions(self._rows(x))
        weights = nondeterministic_weights(*transitions, self._lengths(lengths))  # (B * heads, T, T + 1, Q, S)
        values = torch.cat([self._bottom(x.shape[0]), self._values(x)], dim=1)
        y = self.to_output(self._readings(weights, values))
        actions = tuple(self._per_head(x) for x in transitions)
        return self._result(y, weights, actions, return_weights, return_actions)

    def initial_state(self, batch_size: int) -> StackState:
        empty = NondeterministicState.empty(
            batch_size * self.heads, self.num_states, self.num_symbols, device=self.bottom.device
        )
        return StackState(empty, self._bottom(batch_size), self.heads)

    def extend(self, x: Tensor, state: StackState, lengths: Tensor | None = None) -> tuple[Tensor, StackState]:
        x = self._enter(x, lengths)
        weights, stack = _stack_of(state, NondeterministicState).extend_joined(self._rows(x), self._lengths(lengths))
        values = torch.cat([state.values, self._values(x)], dim=1)
        return self.to_output(self._readings(weights, values)), StackState(stack, values, self.heads)

    def _rows(self, x: Tensor) -> Tensor:
        """Log weights of push, replace and pop, (B * heads, T, Q, S, Q S + Q S + Q)."""
        Q, S = self.num_states, self.num_symbols
        return self._split(self.to_actions(x)).unflatten(-1, (Q, S, 2 * Q * S + Q))

    def _bottom(self, batch_size: int) -> Tensor:
        """(B * heads, 1, m)"""
        return self.bottom.sigmoid().reshape(self.heads, 1, -1).repeat(batch_size, 1, 1)

    def _readings(self, weights: Tensor, values: Tensor) -> Tensor:
        """(B * heads, T, i, Q, S) and (B * heads, i, m) -> (B, T, heads * Q * S * m)"""
        rows = weights.flatten(3).mT.flatten(1, 2)  # (B * heads, T * Q * S, i)
        reading_size = self.to_output.in_features // self.heads  # Q * S * m
        return self._join((rows @ values).reshape(*weights.shape[:2], reading_size))
