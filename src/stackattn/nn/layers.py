"""Transformer layers: sublayers with layer norm in front, dropout and a residual connection behind."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .attention import CrossAttention, Memory
from .checks import check_dropout, check_positive
from .dropout import ReLUDropout, ResidualDropout
from .specs import LayerSpec, build_attention
from .state import State, without_padding


class FeedForward(nn.Sequential):
    def __init__(self, d_model: int, hidden_size: int, dropout: float = 0.0):
        check_positive(d_model=d_model, hidden_size=hidden_size)
        check_dropout(dropout)
        # These keys are part of the tensor names of saved models.
        parts = {
            "0": nn.Linear(d_model, hidden_size),
            "1": ReLUDropout(dropout),
            "3": nn.Linear(hidden_size, d_model),
        }
        super().__init__(OrderedDict(parts))


class Sublayer(nn.Module):
    """x + dropout(function(norm(x)))"""

    def __init__(self, d_model: int, function: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.function = function
        self.dropout = ResidualDropout(dropout)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        return self.dropout(x, self.function(self.norm(x), *args))

    def extend(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        y, state = self.function.extend(self.norm(x), state, lengths)  # pyright: ignore
        return self.dropout(x, y), state


@dataclass(frozen=True, repr=False)
class LayerState(State):
    attention: State
    memory: Memory | None  # what the cross-attention looks at


class TransformerLayer(nn.Module):
    """Attention (of any kind), if wanted attention over a memory, and a feed-forward network; each a sublayer."""

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
    ):
        super().__init__()
        attention = build_attention(
            spec, d_model, heads=heads, dropout=dropout, causal=causal, push_activation=push_activation
        )
        self.attention = Sublayer(d_model, attention, dropout)
        self.cross = Sublayer(d_model, CrossAttention(d_model, heads, dropout), dropout) if cross_attention else None
        self.feed_forward = Sublayer(d_model, FeedForward(d_model, hidden_size, dropout), dropout)

    def read(self, memory: Tensor | None, lengths: Tensor | None) -> Memory | None:
        if self.cross is None or memory is None:
            return None
        return self.cross.function.read(memory, lengths)  # pyright: ignore

    def forward(self, x: Tensor, lengths: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        x = self.attention(without_padding(x, lengths), lengths)
        if self.cross is not None:
            x = self.cross(x, memory)
        return self.feed_forward(x)

    def initial_state(self, batch_size: int, memory: Memory | None = None) -> LayerState:
        return LayerState(self.attention.function.initial_state(batch_size), memory)  # pyright: ignore

    def extend(self, x: Tensor, state: LayerState, lengths: Tensor | None = None) -> tuple[Tensor, LayerState]:
        x, attention = self.attention.extend(without_padding(x, lengths), state.attention, lengths)
        if self.cross is not None:
            x = self.cross(x, state.memory)
        return self.feed_forward(x), LayerState(attention, state.memory)


def sinusoids(positions: Tensor, d_model: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positional encodings (..., d_model): sines in the even places, cosines in the odd ones; computed in float64."""
    places = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * 10000.0 ** (-places / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype)
