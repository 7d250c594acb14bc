"""GPT-2 with stack attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model
from transformers.cache_utils import Cache
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Block, GPT2PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from .attention import NoWeights, WithInsertedStacks, place_stacks
from .pretrained import StackPreTrainedModel, register


class StackGPT2Config(GPT2Config):
    """Configuration of GPT-2 with stack attention."""

    model_type = "stackattn-gpt2"
    stack_layers: str | None = None
    """All `n_layer` layers in the notation of `parse_layers`. `5.nondeterministic-3-3-5.6` means 5 layers with GPT-2's
    attention, one with a stack, and 6 more with GPT-2's attention. None: GPT-2's attention in all layers."""
    inserted_stacks: str | None = None
    """Stacks that are added between the layers, in the same notation: `6.superposition-64.6` adds a stack after the
    sixth of 12 layers. The numbers count the model's own layers. None: no added stacks."""


class StackGPT2Block(WithInsertedStacks, GPT2Block):
    """A layer of GPT-2, followed by inserted stacks."""

    def forward(
        self,
        hidden_states: Any,
        past_key_values: Cache | None = None,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)"""
        hidden_states = super().forward(hidden_states, past_key_values, attention_mask, *args, **kwargs)
        return self.add_stacks(hidden_states, past_key_values, attention_mask)


class _StackGPT2(StackPreTrainedModel, GPT2PreTrainedModel):
    config_class = StackGPT2Config
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": GPT2Block,
        "attentions": [
            OutputRecorder(GPT2Attention, layer_name=".attn", index=1),
            OutputRecorder(NoWeights, layer_name=".attn"),
        ],
        "cross_attentions": OutputRecorder(GPT2Attention, layer_name=".crossattention", index=1),
    }


class StackGPT2Model(_StackGPT2, GPT2Model):
    """GPT-2 without a language modelling head, with stack attention."""

    def __init__(self, config: StackGPT2Config):
        super().__init__(config)
        norm = partial(nn.LayerNorm, config.n_embd, eps=config.layer_norm_epsilon)
        place_stacks(config, self.h, StackGPT2Block, "attn", config.n_embd, config.resid_pdrop, norm)
        self.post_init()


class StackGPT2LMHeadModel(_StackGPT2, GPT2LMHeadModel):
    """GPT-2 language model with stack attention. It supports `generate`, `save_pretrained` and `from_pretrained`.

    Raises:
        ValueError: `stack_layers` or `inserted_stacks` is not valid notation, `stack_layers` does not have `n_layer`
            layers, `inserted_stacks` begins with a stack, or its numbers do not sum to `n_layer`.

    Examples::

        config = StackGPT2Config(n_layer=4, n_embd=64, n_head=4, stack_layers="2.nondeterministic-3-3-5.1")
        model = StackGPT2LMHeadModel(config)
        model = StackGPT2LMHeadModel.from_pretrained("gpt2", inserted_stacks="6.superposition-64.6")
    """

    def __init__(self, config: StackGPT2Config):
        GPT2PreTrainedModel.__init__(self, config)  # GPT2LMHeadModel.__init__ would build a GPT2Model
        self.transformer = StackGPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()


register(StackGPT2Config, StackGPT2Model, StackGPT2LMHeadModel)
