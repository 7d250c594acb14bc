"""Small Hugging Face models with stacks, for both architectures."""

import os
import subprocess
import sys

import torch
import transformers

from stackattn.models.huggingface import (
    StackGPT2Config,
    StackGPT2LMHeadModel,
    StackLlamaConfig,
    StackLlamaForCausalLM,
)
from stackattn.nn import StackAttention

LAYERS, VOCABULARY = 3, 12
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
DROPOUTS = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
SIZES = {
    "gpt2": {"vocab_size": VOCABULARY, "n_positions": 40, "n_embd": 8, "n_layer": LAYERS, "n_head": 2, **DROPOUTS},
    "llama": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,  # grouped-query attention
    },
}
CLASSES = {
    "gpt2": (StackGPT2Config, StackGPT2LMHeadModel),
    "llama": (StackLlamaConfig, StackLlamaForCausalLM),
}
PLAIN = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}
ONLY_STACKS = "superposition-4.superposition-4.superposition-4"
STACKS = {
    "superposition": {"stack_layers": "1.superposition-4x2.1"},
    "nondeterministic": {"stack_layers": "1.nondeterministic-2-2-3.1"},
    "both": {"stack_layers": "superposition-4.1.nondeterministic-2-2-3"},
    "limited": {"stack_layers": "superposition-4d3.1.nondeterministic-2-2-3w3"},
    "only stacks": {"stack_layers": ONLY_STACKS},
    "inserted": {"inserted_stacks": "1.superposition-4.nondeterministic-2-2-3.2"},
    "replaced and inserted": {"stack_layers": "2.superposition-4", "inserted_stacks": "3.superposition-4"},
}


def make(architecture, stacks="superposition", **options):
    """Return a model in float64 with large weights, so that outputs depend on earlier tokens."""
    torch.manual_seed(0)
    config_class, model_class = CLASSES[architecture]
    sizes = {**SIZES[architecture], **TOKENS, "initializer_range": 0.5}
    model = model_class(config_class(**{**sizes, **STACKS[stacks], **options})).double().eval()
    for module in model.modules():
        if isinstance(module, StackAttention):
            torch.nn.init.normal_(module.to_output.weight)  # inserted stacks initialise it with zeros
    return model


def plain(architecture, **options):
    """Return a float32 model of the same sizes without stacks, an instance of Hugging Face's own class."""
    torch.manual_seed(0)
    config_class, model_class = PLAIN[architecture]
    return model_class(config_class(**{**SIZES[architecture], **TOKENS, "initializer_range": 0.5, **options})).eval()


def layers(model):
    """Return the transformer layers of a model."""
    return model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers


def attention(layer):
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def prompts(batch=3, length=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def generate(model, tokens, **options):
    torch.manual_seed(2)
    options = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 12, **options}
    return model.generate(tokens, **options)


def run_python(program, *arguments, folder):
    """Run a program in a new process, in which transformers copies modules to `folder`, and return its output."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    changed = {"HF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
