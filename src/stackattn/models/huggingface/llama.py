"""Llama with stack attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
)
from transformers.utils.output_capturing import OutputRecorder

from .attention import NoWeights, WithInsertedStacks, place_stacks
from .pretrained import StackPreTrainedModel, register


class StackLlamaConfig(LlamaConfig):
    """Configuration of Llama with stack attention."""

    model_type = "stackattn-llama"
    stack_layers: str | None = None
    """All `num_hidden_layers` layers in the notation of `parse_layers`. `5.nondeterministic-3-3-5.6` means 5 layers
    with Llama's attention, one with a stack, and 6 more with Llama's attention. None: Llama's attention in all
    layers."""
    inserted_stacks: str | None = None
    """Stacks that are added between the layers, in the same notation: `8.superposition-64.8` adds a stack after the
    eighth of 16 layers. The numbers count the model's own layers. None: no added stacks."""


class StackLlamaDecoderLayer(WithInsertedStacks, LlamaDecoderLayer):
    """A layer of Llama, followed by inserted stacks."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Any = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)"""
        hidden_states = super().forward(hidden_states, attention_mask, position_ids, past_key_values, **kwargs)
        return self.add_stacks(hidden_states, past_key_values, attention_mask)


class _StackLlama(StackPreTrainedModel, LlamaPreTrainedModel):
    config_class = StackLlamaConfig
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": LlamaDecoderLayer,
        "attentions": [
            OutputRecorder(LlamaAttention, index=1),
            OutputRecorder(NoWeights, layer_name=".self_attn"),
        ],
    }


class StackLlamaModel(_StackLlama, LlamaModel):
    """Llama without a language modelling head, with stack attention."""

    def __init__(self, config: StackLlamaConfig):
        super().__init__(config)
        norm = partial(LlamaRMSNorm, config.hidden_size, eps=config.rms_norm_eps)
        place_stacks(config, self.layers, StackLlamaDecoderLayer, "self_attn", config.hidden_size, 0.0, norm)
        self.post_init()


class StackLlamaForCausalLM(_StackLlama, LlamaForCausalLM):
    """Llama language model with stack attention. It supports `generate`, `save_pretrained` and `from_pretrained`.

    Raises:
        ValueError: `stack_layers` or `inserted_stacks` is not valid notation, `stack_layers` does not have
            `num_hidden_layers` layers, `inserted_stacks` begins with a stack, or its numbers do not sum to
            `num_hidden_layers`.

    Examples::

        config = StackLlamaConfig(num_hidden_layers=4, hidden_size=64, stack_layers="2.nondeterministic-3-3-5.1")
        model = StackLlamaForCausalLM(config)
        model = StackLlamaForCausalLM.from_pretrained(folder, inserted_stacks="8.superposition-64.8")
    """

    def __init__(self, config: StackLlamaConfig):
        LlamaPreTrainedModel.__init__(self, config)  # LlamaForCausalLM.__init__ would build a LlamaModel
        self.model = StackLlamaModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


register(StackLlamaConfig, StackLlamaModel, StackLlamaForCausalLM)
