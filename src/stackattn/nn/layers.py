"""Transformer layers: pre-norm sublayers with attention and feed-forward networks; positional encodings."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.lengths import without_padding
from .attention import CrossAttention, Memory
from .checks import check_dropout, check_positive, check_state, check_vectors
from .dropout import ReLUDropout, ResidualDropout
from .linear import Linear
from .specs import LayerSpec, build_attention
from .state import State


class FeedForward(nn.Sequential):
    """Linear, ReLU, dropout, linear: (..., d_model) -> (..., d_model)

    Args:
        d_model: size of inputs and outputs.
        hidden_size: size of the hidden layer.
        dropout: dropout rate after the ReLU.

    Raises:
        ValueError: a size is not a positive integer, or the dropout rate is invalid.
    """

    def __init__(self, d_model: int, hidden_size: int, dropout: float = 0.0):
        check_positive(d_model=d_model, hidden_size=hidden_size)
        check_dropout(dropout)
        # These keys are part of the tensor names of saved models.
        parts = {
            "0": Linear(d_model, hidden_size),
            "1": ReLUDropout(dropout),
            "3": Linear(hidden_size, d_model),
        }
        super().__init__(OrderedDict(parts))


class Sublayer(nn.Module):
    """A function with layer norm, dropout and a residual connection: x + dropout(function(norm(x)))

    Args:
        d_model: size of inputs and outputs.
        function: module from (B, T, d_model) to (B, T, d_model).
        dropout: dropout rate of the function's output.
    """

    def __init__(self, d_model: int, function: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.function = function
        self.dropout = ResidualDropout(dropout)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model); `args` are passed to the function."""
        return self.dropout(x, self.function(self.norm(x), *args))

    def extend(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Take T more steps; the state is that of the function."""
        y, state = self.function.extend(self.norm(x), state, lengths)  # pyright: ignore
        return self.dropout(x, y), state


@dataclass(frozen=True, repr=False)
class LayerState(State):
    """State of a transformer layer between two calls to `extend`."""

    attention: State
    memory: Memory | None  # of the cross-attention

    def restart(self, rows: Tensor) -> LayerState:
        """Restart the attention of each sequence where `rows`, (B,), bool, is True; the memory stays the same."""
        return LayerState(self.attention.restart(rows), self.memory)


class TransformerLayer(nn.Module):
    """A transformer layer: attention, optional cross-attention and a feed-forward network, each in a `Sublayer`.

    Args:
        spec: specification of the attention.
        d_model: size of inputs and outputs.
        heads: number of heads of softmax attention and cross-attention.
        hidden_size: size of the hidden layer of the feed-forward network.
        dropout: dropout rate.
        causal: whether softmax attention is causal; stack attention always is.
        cross_attention: whether the layer attends to a memory.
        push_activation: see `StackSpec.build`.
        rotary: see `SelfAttention`.

    Raises:
        ValueError: a size, the dropout rate or `push_activation` is invalid.

    Examples::

        layer = TransformerLayer(StackSpec("superposition", (8,)), d_model=32, heads=4, hidden_size=64)
        y = layer(x, lengths)                                         # (B, T, 32) -> (B, T, 32)
    """

    def __init__(
        self,
        spec: LayerSpec,
        d_model: int,
        *,
        heads: int,
        hidden_size: int,
        dropout: float = 0.0,
        causal: bool = True,
        cross_attention: bool = False,
        push_activation: str = "sigmoid",
        rotary: bool = False,
    ):
        super().__init__()
        attention = build_attention(
            spec,
            d_model,
            heads=heads,
            dropout=dropout,
            causal=causal,
            push_activation=push_activation,
            rotary=rotary,
        )
        self.attention = Sublayer(d_model, attention, dropout)
        self.cross = Sublayer(d_model, CrossAttention(d_model, heads, dropout), dropout) if cross_attention else None
        self.feed_forward = Sublayer(d_model, FeedForward(d_model, hidden_size, dropout), dropout)

    def read(self, memory: Tensor | None, lengths: Tensor | None) -> Memory | None:
        """Project a memory (B, T, d_model) for the cross-attention; return None without cross-attention or memory."""
        if self.cross is None or memory is None:
            return None
        return self.cross.function.read(memory, lengths)  # pyright: ignore

    def forward(self, x: Tensor, lengths: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model). Steps after `lengths` (B,) are padding and are ignored.

        `memory` is the result of `read`, for layers with cross-attention.
        """
        self._check(x, lengths)
        if self.cross is not None and memory is None:
            raise TypeError("memory: expected the result of `read` for a layer with cross-attention, got None")
        x = self.attention(without_padding(x, lengths), lengths)
        if self.cross is not None:
            x = self.cross(x, memory)
        return self.feed_forward(x)

    def initial_state(self, batch_size: int, memory: Memory | None = None) -> LayerState:
        """Create the state before the first step."""
        return LayerState(self.attention.function.initial_state(batch_size), memory)  # pyright: ignore

    def extend(self, x: Tensor, state: LayerState, lengths: Tensor | None = None) -> tuple[Tensor, LayerState]:
        """Take T more steps: x (B, T, d_model) -> the output (B, T, d_model) and the new state."""
        self._check(x, lengths)
        check_state(state, LayerState, "x", x)
        x, attention = self.attention.extend(without_padding(x, lengths), state.attention, lengths)
        if self.cross is not None:
            x = self.cross(x, state.memory)
        return self.feed_forward(x), LayerState(attention, state.memory)

    def _check(self, x: Tensor, lengths: Tensor | None) -> None:
        norm = self.attention.norm
        check_vectors("x", x, norm.normalized_shape[0], lengths, norm.weight)


def sinusoids(positions: Tensor, d_model: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute sinusoidal positional encodings.

    Args:
        positions: (...)
        d_model: size of the encodings, even.
        dtype: dtype of the result; the computation is in float64.

    Returns:
        Encodings (..., d_model): sines at even indices, cosines at odd ones.
    """
    indices = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * 10000.0 ** (-indices / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype)
