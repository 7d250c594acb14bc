"""Hugging Face's GPT-2 and Llama with stack attention (needs the extra `hf`).

Importing this package registers the models with `AutoConfig`, `AutoModel` and `AutoModelForCausalLM`.

Modules:
    attention   stack attention in place of a model's attention, and as an inserted sublayer
    cache       the state of a stack in a cache
    pretrained  registration, initialisation and saving, and training only the stacks
    gpt2        GPT-2
    llama       Llama
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "stackattn.models.huggingface needs transformers, which cannot be imported; run pip install 'stackattn[hf]'"
    ) from error

from .attention import CachedStackAttention, InsertedStack
from .cache import StackCacheLayer
from .gpt2 import StackGPT2Config, StackGPT2LMHeadModel, StackGPT2Model
from .llama import StackLlamaConfig, StackLlamaForCausalLM, StackLlamaModel
from .pretrained import train_only_stacks

__all__ = [
    "CachedStackAttention",
    "InsertedStack",
    "StackCacheLayer",
    "StackGPT2Config",
    "StackGPT2LMHeadModel",
    "StackGPT2Model",
    "StackLlamaConfig",
    "StackLlamaForCausalLM",
    "StackLlamaModel",
    "train_only_stacks",
]
