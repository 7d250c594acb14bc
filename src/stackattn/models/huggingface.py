"""Hugging Face's GPT-2 with stack attention in some of its layers (needs the extra `hf`).

Importing this module registers the model with `AutoModelForCausalLM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

try:
    from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model
    from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache
    from transformers.models.gpt2.modeling_gpt2 import GPT2PreTrainedModel
except ImportError as error:
    raise ImportError("stackattn.models.huggingface needs transformers: pip install 'stackattn[hf]'") from error

from ..nn import StackAttention, StackSpec, StackState, parse_layers
from ..nn.adapters import check_past_is_visible, without_padding_anywhere


class StackGPT2Config(GPT2Config):
    """Configuration of GPT-2 with stack attention."""

    model_type = "stackattn-gpt2"
    stack_layers: str | None = None
    """All `n_layer` layers in the notation of `parse_layers`. `5.nondeterministic-3-3-5.6` means 5 layers with GPT-2's
    attention, one with a stack, and 6 more with GPT-2's attention. None: GPT-2's attention in all layers."""


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
            self.reorder_cache(torch.arange(self.state.batch_size).repeat_interleave(repeats))

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise NotImplementedError(
                "a stack cannot remove tokens; use a generation method that does not crop the cache"
            )

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise TypeError("the cache of a stack layer holds no keys and values")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError("the cache of a stack layer holds no keys and values")

    def offload(self) -> None:
        """Do nothing: the state is small and stays on its device."""

    def prefetch(self) -> None:
        """Do nothing; see `offload`."""


class GPT2StackAttention(nn.Module):
    """Stack attention with the interface of GPT-2's attention. Its state is stored in the model's cache.

    Args:
        stack: the stack attention layer.
        layer_idx: index of the layer in the model.
        dropout: dropout rate of the output.
    """

    def __init__(self, stack: StackAttention, layer_idx: int, dropout: float = 0.0):
        super().__init__()
        self.stack = stack
        self.layer_idx = layer_idx
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(B, T, d_model) -> the output (B, T, d_model), and None for the weights. `kwargs` are ignored."""
        layer = None if past_key_values is None else self._cache_layer(past_key_values)
        real = _real_steps(attention_mask, *hidden_states.shape[:2])

        def attend(x: Tensor, lengths: Tensor | None) -> Tensor:
            return self.stack(x, lengths) if layer is None else layer.extend(self.stack, x, lengths)

        if real is None or real.all():
            y = attend(hidden_states, None)
        else:
            y = without_padding_anywhere(attend, hidden_states, real)
        return self.dropout(y), None

    def _cache_layer(self, cache: Cache) -> StackCacheLayer:
        """Return the cache layer of this stack; an empty one for keys and values is replaced."""
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        while len(cache.layers) <= self.layer_idx:
            cache.layers.append(DynamicLayer())
        layer: Any = cache.layers[self.layer_idx]
        if isinstance(layer, StackCacheLayer):
            return layer
        if type(layer) is not DynamicLayer or layer.get_seq_length():
            found = f"a {type(layer).__name__} in layer {self.layer_idx}"
            raise ValueError(f"past_key_values: expected a DynamicCache, empty or filled by this model, got {found}")
        new = cache.layers[self.layer_idx] = StackCacheLayer()
        return new


def _real_steps(mask: Tensor | None, B: int, T: int) -> Tensor | None:
    """Convert a mask in any of GPT-2's formats to (B, T): which of the last T steps are not padding."""
    if mask is None:
        return None
    if mask.dim() == 2:
        return mask[:, -T:].bool()
    # (B, 1, T, steps so far): True, or an added 0, where attention is allowed
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not (visible | (mask <= torch.finfo(mask.dtype).min / 2)).all():
        raise ValueError(
            "attention_mask: expected only the values 0 and -inf: stack attention has no logits to add other values to"
        )
    visible = visible[:, 0, :, -T:].expand(B, T, T)
    real = visible.diagonal(dim1=1, dim2=2)  # padding is hidden from itself, too
    check_past_is_visible("attention_mask", visible | ~real[:, None] | ~real[..., None])
    return real


class _StackWeights(GPT2PreTrainedModel):
    """Initialisation of the stack layers."""

    config_class = StackGPT2Config

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, StackAttention):
            module.reset_parameters()


class StackGPT2Model(_StackWeights, GPT2Model):
    """GPT-2 without a language modelling head, with stack attention in the layers of `config.stack_layers`."""

    def __init__(self, config: StackGPT2Config):
        super().__init__(config)
        specs = parse_layers(config.stack_layers or config.n_layer, "stack_layers")
        if len(specs) != config.n_layer:
            raise ValueError(
                f"stack_layers: expected {config.n_layer} layers in total, got {len(specs)} in {config.stack_layers!r}"
            )
        for i, spec in enumerate(specs):
            if isinstance(spec, StackSpec):
                self.h[i].attn = GPT2StackAttention(spec.build(config.n_embd), i, config.resid_pdrop)


class StackGPT2LMHeadModel(_StackWeights, GPT2LMHeadModel):
    """GPT-2 language model with stack attention. It supports `generate`, `save_pretrained` and `from_pretrained`.

    Raises:
        ValueError: `stack_layers` does not have `n_layer` layers.

    Examples::

        config = StackGPT2Config(n_layer=4, n_embd=64, n_head=4, stack_layers="2.nondeterministic-3-3-5.1")
        model = StackGPT2LMHeadModel(config)
        model = StackGPT2LMHeadModel.from_pretrained("gpt2", stack_layers="6.superposition-64.5")   # layer 7 of 12
    """

    def __init__(self, config: StackGPT2Config):
        GPT2PreTrainedModel.__init__(self, config)  # GPT2LMHeadModel.__init__ would build a GPT2Model
        self.transformer = StackGPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()


AutoConfig.register(StackGPT2Config.model_type, StackGPT2Config)
AutoModelForCausalLM.register(StackGPT2Config, StackGPT2LMHeadModel)
