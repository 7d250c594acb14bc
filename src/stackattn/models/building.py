"""The model class of each configuration."""

from __future__ import annotations

from typing import overload

from torch import nn

from .configs import LSTMConfig, Seq2SeqConfig, TransformerLMConfig
from .lstm import LSTMLM
from .transformer import Seq2SeqTransformer, TransformerLM

ModelConfig = TransformerLMConfig | Seq2SeqConfig | LSTMConfig

MODELS: dict[str, tuple[type[ModelConfig], type[nn.Module]]] = {
    "TransformerLM": (TransformerLMConfig, TransformerLM),
    "Seq2SeqTransformer": (Seq2SeqConfig, Seq2SeqTransformer),
    "LSTMLM": (LSTMConfig, LSTMLM),
}
"""Config class and model class by the name of the model."""


@overload
def build_model(config: TransformerLMConfig) -> TransformerLM: ...
@overload
def build_model(config: Seq2SeqConfig) -> Seq2SeqTransformer: ...
@overload
def build_model(config: LSTMConfig) -> LSTMLM: ...


def build_model(config: ModelConfig) -> nn.Module:
    """Create the model of a configuration, with newly drawn parameters.

    Args:
        config: a `TransformerLMConfig`, `Seq2SeqConfig` or `LSTMConfig`.

    Raises:
        TypeError: `config` has another class.

    Examples::

        model = build_model(LSTMConfig(input_size=8, output_size=8, stack="superposition-10"))
        model = build_model(TransformerArchitecture(layers=3).for_vocabulary(input_size=8, output_size=8))
    """
    for config_type, model_type in MODELS.values():
        if type(config) is config_type:
            return model_type(config)
    expected = " or ".join(config_type.__name__ for config_type, _ in MODELS.values())
    raise TypeError(f"config: expected {expected}, got {type(config).__name__}")
