"""Models: transformers and LSTMs with stacks, saving and loading, and text generation.

Modules:
    configs      configurations of the models
    transformer  transformers with softmax and stack attention layers
    lstm         LSTM language models with or without a stack
    lstm_stacks  stacks that an LSTM controls
    building     the model class of each configuration
    saving       saving and loading models
    generation   greedy decoding, sampling and beam search
    huggingface  Hugging Face's GPT-2 and Llama with stack attention (needs the extra `hf`; not imported here)
"""

from .building import build_model
from .configs import (
    LSTMArchitecture,
    LSTMConfig,
    Seq2SeqArchitecture,
    Seq2SeqConfig,
    TransformerArchitecture,
    TransformerLMConfig,
)
from .generation import Generated, beam_search, greedy, sample
from .lstm import LSTMLM
from .saving import load, save
from .transformer import LayerSequence, Seq2SeqTransformer, TransformerLM

__all__ = [
    "LSTMLM",
    "Generated",
    "LSTMArchitecture",
    "LSTMConfig",
    "LayerSequence",
    "Seq2SeqArchitecture",
    "Seq2SeqConfig",
    "Seq2SeqTransformer",
    "TransformerArchitecture",
    "TransformerLM",
    "TransformerLMConfig",
    "beam_search",
    "build_model",
    "greedy",
    "load",
    "sample",
    "save",
]
