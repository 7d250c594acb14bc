"""Attention over the stack of a nondeterministic pushdown automaton."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import NondeterministicReadingState, NondeterministicState, nondeterministic_weights
from ..ops.readings import joined_readings
from ..ops.transitions import split_transitions
from .checks import check_positive
from .stack import StackAttention, WeightedStack


class NondeterministicStackAttention(StackAttention):
    """Attention over the stack of a nondeterministic pushdown automaton, summed over all of its runs.

    Args:
        d_model: size of inputs and outputs.
        num_states: number of states Q of the automaton.
        num_symbols: number of stack symbols S; the first one is the bottom symbol.
        stack_embedding_size: size m of the vectors on the stack.
        window: an element that is pushed at step t can be popped up to and including step t + `window` - 1 (default: no
            limit). With a window, the time of a full pass is linear in the number of steps, and that of a single step
            is constant.
        heads: number of independent stacks.
        push_activation: function applied to the pushed vectors: `"sigmoid"`, `"identity"` or `"exp"`.

    Raises:
        ValueError: a size, `heads` or `window` is not a positive integer, or the activation is unknown.

    Examples::

        layer = NondeterministicStackAttention(d_model=28, num_states=3, num_symbols=3, stack_embedding_size=5)
        y = layer(x)                                                  # (B, T, 28) -> (B, T, 28)
        y, weights = layer(x, return_weights=True)                    # (B, T, T + 1, 3, 3)
    """

    kind = "nondeterministic"
    limit_name = "window"

    def __init__(
        self,
        d_model: int,
        num_states: int = 3,
        num_symbols: int = 3,
        stack_embedding_size: int = 5,
        *,
        window: int | None = None,
        heads: int = 1,
        push_activation: str = "sigmoid",
    ):
        check_positive(num_states=num_states, num_symbols=num_symbols, stack_embedding_size=stack_embedding_size)
        Q, S, m = num_states, num_symbols, stack_embedding_size
        options = {"limit": window, "heads": heads, "push_activation": push_activation}
        super().__init__(d_model, Q * S * (2 * Q * S + Q), m, Q * S * m, **options)
        self.num_states, self.num_symbols = Q, S
        self.bottom = nn.Parameter(torch.empty(heads * m))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the three maps from the Xavier uniform distribution, and `bottom` uniformly from (-0.1, 0.1)."""
        super().reset_parameters()
        nn.init.uniform_(self.bottom, -0.1, 0.1)

    def split_actions(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # log weights (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
        return split_transitions(self._joined(logits))

    def weights(self, actions: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
        return nondeterministic_weights(*actions, lengths=lengths, window=self.limit)  # (B, T, T + 1, Q, S)

    def readings(self, weights: Tensor, values: Tensor) -> Tensor:
        rows = weights.flatten(3).mT.flatten(1, 2)  # (B, T * Q * S, i)
        reading_size = self.to_output.in_features // self.heads  # Q * S * m
        return (rows @ values).reshape(*weights.shape[:2], reading_size)

    def read_stack(self, logits: Tensor, values: Tensor, lengths: Tensor | None) -> Tensor:
        return joined_readings(self._joined(logits), values, lengths, self.limit).flatten(2)

    def initial_stack(self, batch_size: int) -> WeightedStack | NondeterministicReadingState:
        sizes, bottom = (self.num_states, self.num_symbols), self.initial_values(batch_size)
        if self.limit is not None:
            return NondeterministicReadingState.empty(bottom[:, 0], *sizes, window=self.limit)
        return WeightedStack(NondeterministicState.empty(len(bottom), *sizes, device=bottom.device), bottom)

    def initial_values(self, batch_size: int) -> Tensor:
        """The bottom vector, (B * heads, 1, m)."""
        return self.bottom.sigmoid().reshape(self.heads, 1, -1).repeat(batch_size, 1, 1)

    def extend_stack(
        self,
        stack: WeightedStack | NondeterministicReadingState,
        logits: Tensor,
        values: Tensor,
        lengths: Tensor | None,
    ) -> tuple[Tensor, WeightedStack | NondeterministicReadingState]:
        if isinstance(stack, NondeterministicReadingState):
            readings, stack = stack.extend_joined(self._joined(logits), values, lengths)
            return readings.flatten(2), stack
        weights, state = stack.state.extend_joined(self._joined(logits), lengths)
        values = torch.cat([stack.values, values], dim=1)
        return self.readings(weights, values), WeightedStack(state, values)

    def _joined(self, logits: Tensor) -> Tensor:
        """Log weights of push, replace and pop in one tensor, (B, T, Q, S, Q S + Q S + Q)."""
        Q, S = self.num_states, self.num_symbols
        return logits.unflatten(-1, (Q, S, 2 * Q * S + Q))
