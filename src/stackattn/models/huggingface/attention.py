"""Stack attention as the attention of Hugging Face models, and as an inserted sublayer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from ...nn import StackAttention, StackSpec, parse_layers
from ...nn.adapters import check_mask_values, check_past_is_visible, without_padding_anywhere
from ...ops.immediate import reads_values
from .cache import stack_cache_layer


class NoWeights(nn.Module):
    """Module that returns None.

    Hugging Face records this None as the weights of a stack, so that the weights of other layers keep their positions.
    """

    def forward(self) -> None:
        return None


class CachedStackAttention(nn.Module):
    """Stack attention with the interface of attention in Hugging Face models. Its state is stored in the model's cache.

    Args:
        stack: the stack attention layer.
        layer_idx: index in the model's cache: that of the layer whose attention the stack replaces or, for an inserted
            stack, an index after those of all layers.
        dropout: dropout rate of the output.
        config: configuration of the model; None: assume that the other layers return their weights.
    """

    def __init__(
        self, stack: StackAttention, layer_idx: int, dropout: float = 0.0, config: PreTrainedConfig | None = None
    ):
        super().__init__()
        self.config = config
        self.stack = stack
        self.layer_idx = layer_idx
        self.dropout = nn.Dropout(dropout)
        self.no_weights = NoWeights()

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(B, T, d_model) -> the output (B, T, d_model), and None for the weights. `kwargs` are ignored."""
        layer = None if past_key_values is None else stack_cache_layer(past_key_values, self.layer_idx)
        real, x = (None, hidden_states) if attention_mask is None else _real_steps(attention_mask, hidden_states)

        def attend(x: Tensor, lengths: Tensor | None) -> Tensor:
            return self.stack(x, lengths) if layer is None else layer.extend(self.stack, x, lengths)

        if real is None or (reads_values(x.device) and real.all()):
            y = attend(x, None)
        else:
            y = without_padding_anywhere(attend, x, real)
        # Only eager attention returns weights. With other implementations, nothing is recorded for the other layers, so
        # a None recorded here would be at the wrong index of `attentions`.
        if self.config is None or self.config._attn_implementation == "eager":
            self.no_weights()
        return self.dropout(y), None


class InsertedStack(nn.Module):
    """Stack attention as a sublayer that follows a layer, with a residual connection: x + dropout(stack(norm(x))).

    The output map of the stack is initialised with zeros, so that the sublayer does not change the outputs of a
    pretrained model until the stack is trained.

    Args:
        norm: the norm before the stack.
        stack: the stack attention layer.
        cache_index: index in the model's cache.
        dropout: dropout rate of the output.
    """

    def __init__(self, norm: nn.Module, stack: StackAttention, cache_index: int, dropout: float = 0.0):
        super().__init__()
        self.norm = norm
        self.attention = CachedStackAttention(stack, cache_index, dropout)
        self.close()

    def close(self) -> None:
        """Set the output map to zeros."""
        nn.init.zeros_(self.attention.stack.to_output.weight)

    def forward(self, x: Tensor, past_key_values: Cache | None, attention_mask: Tensor | None) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)"""
        return x + self.attention(self.norm(x), past_key_values, attention_mask)[0]


class WithInsertedStacks(nn.Module):
    """Mixin for a model's own layer class: a layer that is followed by inserted stacks."""

    def __init__(self, config: Any, layer_idx: int, inserted: list[InsertedStack]):
        super().__init__(config, layer_idx)
        self.inserted = nn.ModuleList(inserted)

    def add_stacks(self, x: Tensor, past_key_values: Cache | None, attention_mask: Tensor | None) -> Tensor:
        """Apply the stacks to the layer's output (B, T, d_model)."""
        for stack in self.inserted:
            x = stack(x, past_key_values, attention_mask)
        return x


def place_stacks(
    config: Any,
    layers: nn.ModuleList,
    layer_class: type[WithInsertedStacks],
    attention: str,
    d_model: int,
    dropout: float,
    make_norm: Callable[[], nn.Module],
) -> None:
    """Replace attention and insert stacks as the configuration of a model specifies.

    Args:
        config: a configuration with `stack_layers` and `inserted_stacks`.
        layers: the model's layers.
        layer_class: class of the layers that are followed by inserted stacks.
        attention: name of the layers' attribute for attention.
        d_model: size of inputs and outputs.
        dropout: dropout rate of the outputs of the stacks.
        make_norm: creates the norm before an inserted stack.
    """
    for i, inserted in build_inserted(config.inserted_stacks, len(layers), d_model, dropout, make_norm):
        layers[i] = layer_class(config, i, inserted)
    for i, stack in replaced_attention(config, len(layers), d_model, dropout):
        setattr(layers[i], attention, stack)


def replaced_attention(
    config: Any, count: int, d_model: int, dropout: float
) -> Iterator[tuple[int, CachedStackAttention]]:
    """Yield the index and the new attention of each layer for which `stack_layers` specifies a stack.

    Raises:
        ValueError: `stack_layers` does not have `count` layers.
    """
    layers = config.stack_layers
    specs = parse_layers(layers or count, "stack_layers")
    if len(specs) != count:
        raise ValueError(f"stack_layers: expected {count} layers in total, got {len(specs)} in {layers!r}")
    for i, spec in enumerate(specs):
        if isinstance(spec, StackSpec):
            yield i, CachedStackAttention(spec.build(d_model), i, dropout, config)


def build_inserted(
    layers: str | None, count: int, d_model: int, dropout: float, make_norm: Callable[[], nn.Module]
) -> Iterator[tuple[int, list[InsertedStack]]]:
    """Yield the index of each layer that is followed by inserted stacks, and these stacks.

    Raises:
        ValueError: `layers` begins with a stack, or its numbers do not sum to `count`.
    """
    own = -1  # index of the most recent of the model's own layers; -1: none so far
    specs: dict[int, list[StackSpec]] = {}
    for spec in parse_layers(layers or count, "inserted_stacks"):
        if not isinstance(spec, StackSpec):
            own += 1
        elif own < 0:
            raise ValueError(f"inserted_stacks: expected a number of layers before the first stack, got {layers!r}")
        else:
            specs.setdefault(own, []).append(spec)
    if own + 1 != count:
        expected = f"numbers that sum to {count}, the number of the model's layers"
        raise ValueError(f"inserted_stacks: expected {expected}, got {layers!r}")
    cache_index = itertools.count(count)  # after the keys and values of all layers
    for i, after in specs.items():
        yield i, [InsertedStack(make_norm(), spec.build(d_model), next(cache_index), dropout) for spec in after]


def _real_steps(mask: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """Convert a mask of 2 or 4 dimensions to a mask (B, T) of those of the last T steps that are not padding.

    The second result is `x`; if the mask is invalid and values are not read, it is nan instead. While a model is being
    exported, the first result is None for 4-dimensional masks; their padding must be on the right.
    """
    if not isinstance(mask, Tensor):
        advice = "load the model with attn_implementation='eager' or 'sdpa'"
        raise TypeError(f"attention_mask: expected a tensor, got {type(mask).__name__}; {advice}")
    B, T = x.shape[:2]
    if mask.dim() == 2:
        return mask[:, -T:].bool(), x
    # (B, 1, T, steps so far): True, or 0 in an additive mask, where attention is allowed
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool:
        x = check_mask_values("attention_mask", visible | (mask <= torch.finfo(mask.dtype).min / 2), x)
    visible = visible[:, 0, :, -T:].expand(B, T, T)
    real = visible.diagonal(dim1=1, dim2=2)  # padding is hidden from itself, too
    visible = visible | ~real[:, None] | ~real[..., None]
    if _is_exporting():
        # An exported program has no branches on values. Padding on the right needs none: stacks are causal.
        later = visible.new_ones(T, T).triu(1)
        supported = (visible | later).all() & (real[:, 1:] <= real[:, :-1]).all()
        torch.ops.aten._assert_async.msg(
            supported, "attention_mask: an exported model supports only padding on the right"
        )
        return None, x
    return real, check_past_is_visible("attention_mask", visible, x)


def _is_exporting() -> bool:
    """Whether torch.export is tracing the model.

    torch 2.6 has no function for this; with it, only an export with strict=False is recognised.
    """
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
