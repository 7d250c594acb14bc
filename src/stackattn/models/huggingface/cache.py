"""Layer of a Hugging Face cache that holds the state of a stack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache

from ...nn import StackAttention, StackState

_NO_KEYS = "past_key_values: expected a cache of this model, got one that holds the state of a stack in this layer"


class StackCacheLayer(CacheLayerMixin):
    """Cache layer that holds the state of a stack instead of keys and values."""

    is_sliding = False

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.state: StackState | None = None
        self.length = 0
        self.is_initialized = False

    def extend(self, stack: StackAttention, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Take T more steps of a stack, and replace its state: x (B, T, d_model) -> the output (B, T, d_model)."""
        if self.state is None:
            self.state = stack.initial_state(x.shape[0])
        y, self.state = stack.extend(x, self.state, lengths)
        self.length += x.shape[1]
        self.is_initialized = True
        return y

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(beam_idx.to(self.state.device))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            rows = torch.arange(self.state.batch_size, device=self.state.device)
            self.reorder_cache(rows[:, None].expand(-1, repeats).flatten())

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise NotImplementedError(
                f"tokens_to_remove: expected 0, got {tokens_to_remove}: a stack cannot remove tokens; use a generation "
                "method that does not crop the cache"
            )

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise TypeError(_NO_KEYS)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError(_NO_KEYS)

    def offload(self) -> None:
        """Do nothing: the state stays on its device."""

    def prefetch(self) -> None:
        """Do nothing; see `offload`."""


def stack_cache_layer(cache: Cache, index: int) -> StackCacheLayer:
    """Return the cache layer of the stack at `index`; an empty layer for keys and values is replaced by a new one.

    Raises:
        ValueError: the cache has another kind of layer, or keys and values, at this index.
    """
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())
    layer: Any = cache.layers[index]
    if isinstance(layer, StackCacheLayer):
        return layer
    if type(layer) is not DynamicLayer or layer.get_seq_length():
        found = f"a {type(layer).__name__} in layer {index}"
        raise ValueError(f"past_key_values: expected a DynamicCache, empty or filled by this model, got {found}")
    new = cache.layers[index] = StackCacheLayer()
    return new
