"""Attention over a superposition stack."""

from __future__ import annotations

from torch import Tensor

from ..ops import SuperpositionReadingState, superposition_readings, superposition_weights
from .stack import StackAttention


class SuperpositionStackAttention(StackAttention):
    """Attention over a superposition stack (Joulin and Mikolov, 2015): each step mixes a push, a no-op and a pop.

    Args:
        d_model: size of inputs and outputs.
        stack_embedding_size: size m of the vectors on the stack (default: `d_model`).
        depth: number of elements that are kept, counted from the top (default: all). With a depth, the time of a full
            pass is linear in the number of steps, and that of a single step is constant.
        heads: number of independent stacks.
        push_activation: function applied to the pushed vectors: `"sigmoid"`, `"identity"` or `"exp"`.

    Raises:
        ValueError: a size, `heads` or `depth` is not a positive integer, or the activation is unknown.

    Examples::

        layer = SuperpositionStackAttention(d_model=32)
        y = layer(x)                                                  # (B, T, 32) -> (B, T, 32)
        y, weights = layer(x, return_weights=True)                    # (B, T, T)
        (probabilities,) = layer.actions(x)                           # (B, T, 3)
    """

    kind = "superposition"
    limit_name = "depth"

    def __init__(
        self,
        d_model: int,
        stack_embedding_size: int | None = None,
        *,
        depth: int | None = None,
        heads: int = 1,
        push_activation: str = "sigmoid",
    ):
        m = d_model if stack_embedding_size is None else stack_embedding_size
        super().__init__(d_model, 3, m, m, limit=depth, heads=heads, push_activation=push_activation)
        self.reset_parameters()

    def split_actions(self, logits: Tensor) -> tuple[Tensor]:
        return (logits.softmax(-1),)  # (B, T, 3): push, no-op, pop

    def weights(self, actions: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
        return superposition_weights(actions[0], lengths, depth=self.limit)  # (B, T, T)

    def readings(self, weights: Tensor, values: Tensor) -> Tensor:
        return weights @ values

    def read_stack(self, logits: Tensor, values: Tensor, lengths: Tensor | None) -> Tensor:
        return superposition_readings(*self.split_actions(logits), values, lengths, depth=self.limit)

    def initial_stack(self, batch_size: int) -> SuperpositionReadingState:
        weight = self.to_values.weight
        m, place = weight.shape[0] // self.heads, {"dtype": weight.dtype, "device": weight.device}
        return SuperpositionReadingState.empty(batch_size * self.heads, m, depth=self.limit, **place)

    def extend_stack(
        self, stack: SuperpositionReadingState, logits: Tensor, values: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, SuperpositionReadingState]:
        return stack.extend(*self.split_actions(logits), values, lengths)
