"""Models: transformers and LSTMs with stacks, how they are saved, and how they generate."""

from .lstm import LSTMLM, LSTMConfig
from .saving import load, save
from .transformer import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig

__all__ = [
    "LSTMLM",
    "LSTMConfig",
    "Seq2SeqConfig",
    "Seq2SeqTransformer",
    "TransformerLM",
    "TransformerLMConfig",
    "load",
    "save",
]
