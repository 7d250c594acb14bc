"""Attention over a stratified stack."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import StratifiedState, stratified_weights
from .stack import StackAttention, WeightedStack


class StratifiedStackAttention(StackAttention):
    """Attention over a stratified stack (Grefenstette et al., 2015): each step pops and pushes some strength.

    Args:
        d_model: size of inputs and outputs.
        stack_embedding_size: size m of the vectors on the stack (default: `d_model`).
        heads: number of independent stacks.
        push_activation: function applied to the pushed vectors: `"sigmoid"`, `"identity"` or `"exp"`.

    Raises:
        ValueError: a size or `heads` is not a positive integer, or the activation is unknown.

    Examples::

        layer = StratifiedStackAttention(d_model=32)
        y, weights = layer(x, return_weights=True)                    # (B, T, T)
        push, pop = layer.actions(x)                                  # (B, T), (B, T)
    """

    kind = "stratified"

    def __init__(
        self, d_model: int, stack_embedding_size: int | None = None, *, heads: int = 1, push_activation: str = "sigmoid"
    ):
        m = d_model if stack_embedding_size is None else stack_embedding_size
        super().__init__(d_model, 2, m, m, heads=heads, push_activation=push_activation)
        self.reset_parameters()

    def split_actions(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        push, pop = logits.sigmoid().unbind(-1)  # (B, T) each
        return push, pop

    def weights(self, actions: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
        return stratified_weights(*actions, lengths=lengths)  # (B, T, T)

    def readings(self, weights: Tensor, values: Tensor) -> Tensor:
        return weights @ values

    def initial_stack(self, batch_size: int) -> WeightedStack:
        values = self.initial_values(batch_size)
        return WeightedStack(StratifiedState.empty(len(values), device=values.device), values)

    def extend_stack(
        self, stack: WeightedStack, logits: Tensor, values: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, WeightedStack]:
        weights, state = stack.state.extend(*self.split_actions(logits), lengths)
        values = torch.cat([stack.values, values], dim=1)
        return self.readings(weights, values), WeightedStack(state, values)
