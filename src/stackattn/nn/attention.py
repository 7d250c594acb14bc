"""Multi-head softmax attention: self-attention with a cache, and cross-attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..ops.attention import causal_attention
from ..ops.checks import check_count, checked_lengths
from ..ops.dropout import dropout
from ..ops.eager import is_plain
from ..ops.immediate import reads_values
from ..ops.lengths import length_mask, without_padding
from .checks import check_dropout, check_heads, check_same_size, check_state, check_vectors
from .linear import Linear
from .state import State


@dataclass(frozen=True, repr=False)
class AttentionState(State):
    """Keys and values of the steps so far."""

    keys: Tensor  # (B, heads, steps so far, d_model / heads)
    values: Tensor
    real: Tensor | None  # (B, steps so far): steps that are not padding; None if there is no padding

    def restart(self, rows: Tensor) -> AttentionState:
        """Mark all steps so far as padding in each sequence where `rows`, (B,), bool, is True."""
        real = rows.new_ones(rows.shape[0], self.keys.shape[2]) if self.real is None else self.real
        return replace(self, real=real & ~rows[:, None])


@dataclass(frozen=True, repr=False)
class Memory(AttentionState):
    """Keys and values of the sequence that cross-attention attends to."""

    source: Tensor  # (B,): index of the source sequence of each row

    def reorder(self, index: Tensor) -> Memory:
        """Select rows; on the CPU, nothing is copied if each row keeps its source, as in beam search."""
        if reads_values(index.device) and torch.equal(self.source[index], self.source):
            return self
        return super().reorder(index)


class _Attention(nn.Module):
    """Common parts of self-attention and cross-attention."""

    def __init__(self, d_model: int, heads: int, dropout: float):
        super().__init__()
        check_heads(d_model, heads)
        check_dropout(dropout)
        self.heads = heads
        self.dropout = dropout
        self.to_output = Linear(d_model, d_model)

    def _check(self, name: str, x: Tensor, lengths: Tensor | None = None) -> None:
        check_vectors(name, x, self.to_output.in_features, lengths, self.to_output.weight)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, d_model / heads)

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        y = _attention(queries, keys, values, mask, self._dropout())
        return self.to_output(y.transpose(1, 2).flatten(2))


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """`scaled_dot_product_attention`, with faster dropout of the weights on the CPU."""
    # PyTorch's attention returns zeros for a row that attends to nothing; the softmax below would be nan.
    if not p or not is_plain(queries, keys, values) or (mask is not None and not mask.any(-1).all()):
        return scaled_dot_product_attention(queries, keys, values, mask, p)
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.mT  # (B, heads, U, T)
    if mask is not None:
        scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return dropout(scores.softmax(-1), p) @ values


class SelfAttention(_Attention):
    """Softmax attention of a sequence over itself.

    Args:
        d_model: size of inputs and outputs; a multiple of `heads`.
        heads: number of heads.
        dropout: dropout rate of the attention weights.
        causal: whether a step attends only to itself and to earlier steps.
        rotary: whether queries and keys are rotated by their position (see `rotate`); requires an even head size.

    Raises:
        ValueError: a size or the dropout rate is invalid.

    Examples::

        attention = SelfAttention(32, heads=4)
        y = attention(x, lengths)                                     # (B, T, 32) -> (B, T, 32)
    """

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0, *, causal: bool = True, rotary: bool = False):
        super().__init__(d_model, heads, dropout)
        if rotary and d_model // heads % 2:
            raise ValueError(
                f"rotary: expected an even head size, got d_model / heads = {d_model} / {heads} = {d_model // heads}"
            )
        self.causal, self.rotary = causal, rotary
        self.to_queries_keys_values = Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend: (B, T, d_model) -> (B, T, d_model). Steps after `lengths` (B,) are padding and are ignored."""
        self._check("x", x, lengths)
        lengths = checked_lengths(lengths, x.shape[1])
        x = without_padding(x, lengths)
        if self.causal:
            packed = self._packed(x)  # (B, T, 3 * d_model)
            return self.to_output(causal_attention(packed, self.heads, lengths, dropout=self._dropout()))
        mask = None if lengths is None else length_mask(lengths, x.shape[1])[:, None, None]
        return self._attend(*self._project(x), mask)

    def initial_state(self, batch_size: int) -> AttentionState:
        """Create the state before the first step. Raises ValueError if the attention is not causal."""
        if not self.causal:
            raise ValueError("causal: expected True for attention that runs step by step, got False")
        check_count("batch_size", batch_size, least=0)
        weight = self.to_output.weight
        empty = weight.new_zeros(batch_size, self.heads, 0, weight.shape[0] // self.heads)
        return AttentionState(empty, empty, None)

    def extend(self, x: Tensor, state: AttentionState, lengths: Tensor | None = None) -> tuple[Tensor, AttentionState]:
        """Take T more steps: x (B, T, d_model) -> the output (B, T, d_model) and the new state.

        Raises:
            ValueError, TypeError: as in `forward`, or the state does not fit the layer or the batch.
        """
        self._check("x", x, lengths)
        check_state(state, AttentionState, "x", x)
        check_same_size("head", self.heads, state.keys.shape[1])
        before, c = state.keys.shape[2], x.shape[1]
        lengths = checked_lengths(lengths, c)
        first = None if state.real is None else state.real.sum(dim=1)  # (B,): position of the first new step
        queries, keys, values = self._project(without_padding(x, lengths), before if first is None else first)
        keys, values = torch.cat([state.keys, keys], dim=2), torch.cat([state.values, values], dim=2)
        real = state.real
        if real is not None or lengths is not None:
            old = x.new_ones(x.shape[0], before, dtype=torch.bool) if real is None else real
            new = x.new_ones(x.shape[0], c, dtype=torch.bool) if lengths is None else length_mask(lengths, c)
            real = torch.cat([old, new], dim=1)
        mask = None
        if c > 1:  # step i of the chunk attends to all steps before the chunk and to steps 0 to i of the chunk
            mask = torch.ones(c, before + c, dtype=torch.bool, device=x.device).tril(before)
        if real is not None:
            # A padding step attends to itself, so that no row of the mask is empty.
            itself = torch.ones(c, before + c, dtype=torch.bool, device=x.device).tril(before).triu(before)
            mask = real[:, None] & (True if mask is None else mask) | itself
            mask = mask[:, None]
        y = self._attend(queries, keys, values, mask)
        return y, AttentionState(keys, values, real)

    def _packed(self, x: Tensor, first: Tensor | int = 0) -> Tensor:
        """Queries, keys and values (B, T, 3 * d_model) of steps whose positions start at `first`, an int or (B,)."""
        packed = self.to_queries_keys_values(x)
        if not self.rotary:
            return packed
        positions = torch.arange(x.shape[1], device=x.device)  # (T,)
        positions = positions + (first[:, None] if isinstance(first, Tensor) else first)  # (T,) or (B, T)
        parts = packed.unflatten(-1, (3, self.heads, -1))  # (B, T, 3, heads, head size)
        turned = rotate(parts[:, :, :2], positions[..., None, None])
        return torch.cat([turned, parts[:, :, 2:]], dim=2).flatten(2)

    def _project(self, x: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self._packed(x, first).chunk(3, dim=-1)
        return self._split(queries), self._split(keys), self._split(values)


class CrossAttention(_Attention):
    """Softmax attention of a sequence over another sequence, the memory, which is projected once for all steps.

    Args:
        d_model: size of inputs, memory and outputs; a multiple of `heads`.
        heads: number of heads.
        dropout: dropout rate of the attention weights.

    Raises:
        ValueError: a size or the dropout rate is invalid.

    Examples::

        attention = CrossAttention(32, heads=4)
        y = attention(x, attention.read(memory, memory_lengths))      # (B, U, 32), (B, T, 32) -> (B, U, 32)
    """

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0):
        super().__init__(d_model, heads, dropout)
        self.to_queries = Linear(d_model, d_model)
        self.to_keys_values = Linear(d_model, 2 * d_model)

    def read(self, memory: Tensor, lengths: Tensor | None = None) -> Memory:
        """Project the memory (B, T, d_model) to keys and values. Steps after `lengths` (B,) are padding."""
        self._check("memory", memory, lengths)
        keys, values = self.to_keys_values(without_padding(memory, lengths)).chunk(2, dim=-1)
        real = None if lengths is None else length_mask(lengths, memory.shape[1])
        source = torch.arange(memory.shape[0], device=memory.device)
        return Memory(self._split(keys), self._split(values), real, source)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Attend to the memory: (B, U, d_model) -> (B, U, d_model)."""
        self._check("x", x)
        mask = None if memory.real is None else memory.real[:, None, None]
        return self._attend(self._split(self.to_queries(x)), memory.keys, memory.values, mask)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate each pair of components by an angle proportional to the position (rotary embeddings, Su et al., 2021).

    The dot product of two rotated vectors depends only on the difference of their positions.

    Args:
        x: (..., n), with n even; components i and i + n / 2 form a pair.
        positions: (...), broadcast to the shape of `x` without its last dimension.
    """
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = positions[..., None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
