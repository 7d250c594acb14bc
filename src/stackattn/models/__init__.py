"""Models: transformers and LSTMs with stacks, how they are saved, and how they generate."""

from .generation import Generated, beam_search, greedy, sample
from .lstm import LSTMLM, LSTMConfig
from .saving import load, save
from .transformer import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig

__all__ = [
    "LSTMLM",
    "Generated",
    "LSTMConfig",
    "Seq2SeqConfig",
    "Seq2SeqTransformer",
    "TransformerLM",
    "TransformerLMConfig",
    "beam_search",
    "greedy",
    "load",
    "sample",
    "save",
]
