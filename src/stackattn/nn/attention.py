"""Scaled dot-product attention with heads: over itself, causal or not, with a cache; and over another sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..ops.attention import causal_attention
from ..ops.lengths import length_mask
from .checks import check_dropout, check_heads, check_vectors
from .state import State, without_padding


@dataclass(frozen=True, repr=False)
class AttentionState(State):
    keys: Tensor  # (B, heads, steps so far, d_model / heads)
    values: Tensor
    real: Tensor | None  # (B, steps so far): which steps are no padding; None if all


@dataclass(frozen=True, repr=False)
class Memory(AttentionState):
    """What cross-attention looks at."""

    source: Tensor  # (B,): which of the sequences that were read stands in each row

    def reorder(self, index: Tensor) -> Memory:
        """Where hypotheses about the same sources change places, nothing is copied."""
        return self if torch.equal(self.source[index], self.source) else super().reorder(index)


class _Attention(nn.Module):
    def __init__(self, d_model: int, heads: int, dropout: float):
        super().__init__()
        check_heads(d_model, heads)
        check_dropout(dropout)
        self.heads = heads
        self.dropout = dropout
        self.to_output = nn.Linear(d_model, d_model)

    def _check(self, name: str, x: Tensor, lengths: Tensor | None = None) -> None:
        check_vectors(name, x, self.to_output.in_features, lengths)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, d_model / heads)

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        y = scaled_dot_product_attention(queries, keys, values, mask, self._dropout())
        return self.to_output(y.transpose(1, 2).flatten(2))


class SelfAttention(_Attention):
    """Softmax attention of a sequence over itself."""

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0, *, causal: bool = True):
        super().__init__(d_model, heads, dropout)
        self.causal = causal
        self.to_queries_keys_values = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)"""
        self._check("x", x, lengths)
        x = without_padding(x, lengths)
        if self.causal:
            packed = self.to_queries_keys_values(x)  # (B, T, 3 * d_model)
            return self.to_output(causal_attention(packed, self.heads, lengths, dropout=self._dropout()))
        mask = None if lengths is None else length_mask(lengths, x.shape[1])[:, None, None]
        return self._attend(*self._project(x), mask)

    def initial_state(self, batch_size: int) -> AttentionState:
        if not self.causal:
            raise ValueError("attention that looks ahead cannot run step by step")
        weight = self.to_output.weight
        nothing = weight.new_zeros(batch_size, self.heads, 0, weight.shape[0] // self.heads)
        return AttentionState(nothing, nothing, None)

    def extend(self, x: Tensor, state: AttentionState, lengths: Tensor | None = None) -> tuple[Tensor, AttentionState]:
        self._check("x", x, lengths)
        queries, keys, values = self._project(without_padding(x, lengths))
        before, c = state.keys.shape[2], x.shape[1]
        keys, values = torch.cat([state.keys, keys], dim=2), torch.cat([state.values, values], dim=2)
        real = state.real
        if real is not None or lengths is not None:
            old = x.new_ones(x.shape[0], before, dtype=torch.bool) if real is None else real
            new = x.new_ones(x.shape[0], c, dtype=torch.bool) if lengths is None else length_mask(lengths, c)
            real = torch.cat([old, new], dim=1)
        mask = None
        if c > 1:  # step i of the chunk sees what came before the chunk and its steps 0..i
            mask = torch.ones(c, before + c, dtype=torch.bool, device=x.device).tril(before)
        if real is not None:
            # A step of padding sees itself, so that no row is empty.
            itself = torch.ones(c, before + c, dtype=torch.bool, device=x.device).tril(before).triu(before)
            mask = real[:, None] & (True if mask is None else mask) | itself
            mask = mask[:, None]
        y = self._attend(queries, keys, values, mask)
        return y, AttentionState(keys, values, real)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.to_queries_keys_values(x).chunk(3, dim=-1)
        return self._split(queries), self._split(keys), self._split(values)


class CrossAttention(_Attention):
    """Softmax attention of a sequence over another one, the memory, which is projected once and used at every step."""

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0):
        super().__init__(d_model, heads, dropout)
        self.to_queries = nn.Linear(d_model, d_model)
        self.to_keys_values = nn.Linear(d_model, 2 * d_model)

    def read(self, memory: Tensor, lengths: Tensor | None = None) -> Memory:
        """The memory (B, T, d_model) as keys and values."""
        self._check("memory", memory, lengths)
        keys, values = self.to_keys_values(without_padding(memory, lengths)).chunk(2, dim=-1)
        real = None if lengths is None else length_mask(lengths, memory.shape[1])
        source = torch.arange(memory.shape[0], device=memory.device)
        return Memory(self._split(keys), self._split(values), real, source)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        self._check("x", x)
        mask = None if memory.real is None else memory.real[:, None, None]
        return self._attend(self._split(self.to_queries(x)), memory.keys, memory.values, mask)
