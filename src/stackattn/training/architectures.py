"""The section `model` of language-model experiments: the sizes that do not follow from the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..models import LSTMLM, LSTMConfig, TransformerLM, TransformerLMConfig


@dataclass(frozen=True)
class TransformerOptions:
    layers: str = "5"
    """Layers, such as `5` or `2.nondeterministic-3-3-5.2`."""
    d_model: int = 32
    """Size of the vectors between layers."""
    heads: int = 4
    """Number of heads of softmax attention."""
    hidden_size: int | None = None
    """Size of the hidden layer of feed-forward networks; default: 2 * d_model."""
    dropout: float = 0.1
    """Dropout rate."""
    tied: bool = False
    """Use the embeddings as the output layer."""
    init_range: float = 0.1
    """Parameters are initialised uniformly in [-init_range, init_range]."""
    published: bool = False
    """As the published code does, not as the paper says: pushed vectors without a sigmoid."""


@dataclass(frozen=True)
class LSTMOptions:
    hidden_size: int = 100
    """Size of the hidden state."""
    stack: str | None = None
    """The stack, such as `superposition-10`; default: no stack."""
    published: bool = False
    """As the published code does: actions and pushed vectors of LSTM+Nd are initialised like the LSTM."""


ModelOptions = TransformerOptions | LSTMOptions


def build_language_model(
    options: ModelOptions, input_size: int, output_size: int, init_seed: int
) -> TransformerLM | LSTMLM:
    torch.manual_seed(init_seed)
    if isinstance(options, LSTMOptions):
        return LSTMLM(
            LSTMConfig(
                input_size=input_size,
                output_size=output_size,
                hidden_size=options.hidden_size,
                stack=options.stack,
                stack_init="uniform" if options.published else "xavier",
            )
        )
    return TransformerLM(
        TransformerLMConfig(
            input_size=input_size,
            output_size=output_size,
            layers=options.layers,
            d_model=options.d_model,
            heads=options.heads,
            hidden_size=options.hidden_size,
            dropout=options.dropout,
            tied=options.tied,
            init_range=options.init_range,
            push_activation="published" if options.published else "sigmoid",
        )
    )
