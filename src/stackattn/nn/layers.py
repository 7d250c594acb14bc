"""Transformer layers: sublayers with layer norm in front, dropout and a residual connection behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .attention import CrossAttention, Memory, SelfAttention
from .checks import check_dropout, check_positive
from .stack import NondeterministicStackAttention, SuperpositionStackAttention
from .state import State, without_padding


@dataclass(frozen=True)
class Sdpa:
    """A layer with scaled dot-product attention."""

    def __str__(self) -> str:
        return "1"


@dataclass(frozen=True)
class Superposition:
    """A layer with superposition stack attention."""

    stack_embedding_size: int
    heads: int = 1

    def __str__(self) -> str:
        return f"superposition-{self.stack_embedding_size}" + _heads(self.heads)


@dataclass(frozen=True)
class Nondeterministic:
    """A layer with nondeterministic stack attention."""

    num_states: int
    num_symbols: int
    stack_embedding_size: int
    heads: int = 1

    def __str__(self) -> str:
        sizes = f"{self.num_states}-{self.num_symbols}-{self.stack_embedding_size}"
        return f"nondeterministic-{sizes}" + _heads(self.heads)


LayerSpec = Sdpa | Superposition | Nondeterministic


def _heads(heads: int) -> str:
    return "" if heads == 1 else f"x{heads}"


_N = "([1-9][0-9]*)"
_PART = re.compile(rf"{_N}|(?:superposition-{_N}|nondeterministic-{_N}-{_N}-{_N})(?:x{_N})?")


def parse_layers(text: str) -> list[LayerSpec]:
    """`"2.nondeterministic-3-3-5.2"`: parts joined by dots. A number is so many layers of softmax attention;
    `superposition-M` and `nondeterministic-Q-S-M` are stack layers, with `xH` behind for H heads."""
    if not isinstance(text, str):
        raise TypeError(f"layers: expected text such as '2.superposition-32.2', got {text!r}")
    layers: list[LayerSpec] = []
    for part in text.split("."):
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(
                f"layers: expected parts like '2', 'superposition-32' or 'nondeterministic-3-3-5' joined by dots, "
                f"got {part!r} in {text!r}"
            )
        count, m, *sizes, heads = (None if x is None else int(x) for x in found.groups())
        if count is not None:
            layers += [Sdpa()] * count
        elif m is not None:
            layers.append(Superposition(m, heads or 1))
        else:
            layers.append(Nondeterministic(*sizes, heads or 1))  # pyright: ignore
    return layers


def format_layers(layers: list[LayerSpec]) -> str:
    """The text of a list of layers; `parse_layers` reads it."""
    parts: list[str] = []
    for layer in layers:
        if isinstance(layer, Sdpa) and parts and parts[-1].isdigit():
            parts[-1] = str(int(parts[-1]) + 1)
        else:
            parts.append(str(layer))
    return ".".join(parts)


class FeedForward(nn.Sequential):
    def __init__(self, d_model: int, hidden_size: int, dropout: float = 0.0):
        check_positive(d_model=d_model, hidden_size=hidden_size)
        check_dropout(dropout)
        super().__init__(
            nn.Linear(d_model, hidden_size), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_size, d_model)
        )


class Sublayer(nn.Module):
    """x + dropout(function(norm(x)))"""

    def __init__(self, d_model: int, function: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.function = function
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        return x + self.dropout(self.function(self.norm(x), *args))

    def extend(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        y, state = self.function.extend(self.norm(x), state, lengths)  # pyright: ignore
        return x + self.dropout(y), state


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
        push_activations: dict[str, str] | None = None,
    ):
        super().__init__()
        activations = push_activations or {"superposition": "sigmoid", "nondeterministic": "sigmoid"}
        if isinstance(spec, Superposition):
            attention = SuperpositionStackAttention(
                d_model, spec.stack_embedding_size, heads=spec.heads, push_activation=activations["superposition"]
            )
        elif isinstance(spec, Nondeterministic):
            sizes = spec.num_states, spec.num_symbols, spec.stack_embedding_size
            attention = NondeterministicStackAttention(
                d_model, *sizes, heads=spec.heads, push_activation=activations["nondeterministic"]
            )
        else:
            attention = SelfAttention(d_model, heads, dropout, causal=causal)
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
