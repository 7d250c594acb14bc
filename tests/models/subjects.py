"""Layers and models that can run step by step, with a common interface for the shared tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stackattn.models import (
    LSTMLM,
    LSTMConfig,
    Seq2SeqConfig,
    Seq2SeqTransformer,
    TransformerLM,
    TransformerLMConfig,
)
from stackattn.nn import (
    NondeterministicStackAttention,
    SelfAttention,
    SoftmaxSpec,
    StackSpec,
    StratifiedStackAttention,
    SuperpositionStackAttention,
    TransformerLayer,
)

D = 6  # d_model
TOKENS = 5  # size of the models' vocabulary, BOS included; Seq2Seq models read two more tokens

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "superposition": lambda: SuperpositionStackAttention(D, 3),
    "superposition x2": lambda: SuperpositionStackAttention(D, 3, heads=2),
    "superposition, depth 2": lambda: SuperpositionStackAttention(D, 3, depth=2),
    "nondeterministic": lambda: NondeterministicStackAttention(D, 2, 3, 2),
    "nondeterministic x2": lambda: NondeterministicStackAttention(D, 2, 2, 3, heads=2, push_activation="exp"),
    "nondeterministic, window 3": lambda: NondeterministicStackAttention(D, 2, 2, 3, window=3),
    "stratified": lambda: StratifiedStackAttention(D, 3),
    "stratified x2": lambda: StratifiedStackAttention(D, 2, heads=2, push_activation="identity"),
    "softmax attention": lambda: SelfAttention(D, 2),
    "layer, softmax": lambda: TransformerLayer(SoftmaxSpec(), D, heads=2, hidden_size=8),
    "layer, superposition": lambda: TransformerLayer(
        StackSpec("superposition", (3,), heads=2), D, heads=2, hidden_size=8
    ),
    "layer, nondeterministic": lambda: TransformerLayer(
        StackSpec("nondeterministic", (2, 2, 3)), D, heads=2, hidden_size=8
    ),
}


def lm(layers: str, **options: Any) -> TransformerLM:
    sizes = {"d_model": D, "heads": 2, "hidden_size": 8, "init_range": 0.5}
    return TransformerLM(
        TransformerLMConfig(input_size=TOKENS, output_size=TOKENS, layers=layers, **{**sizes, **options})
    )


def lstm(stack: str | None, **options: Any) -> LSTMLM:
    return LSTMLM(
        LSTMConfig(
            input_size=TOKENS, output_size=TOKENS, stack=stack, **{"hidden_size": 4, "init_range": 0.7, **options}
        )
    )


def seq2seq(encoder: str, decoder: str, **options: Any) -> Seq2SeqTransformer:
    sizes = {"input_size": TOKENS + 2, "output_size": TOKENS, "d_model": D, "heads": 2, "hidden_size": 8}
    config = {"layers": encoder, "decoder_layers": decoder, "init_range": 0.5, **sizes, **options}
    return Seq2SeqTransformer(Seq2SeqConfig(**config))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Tf": lambda: lm("2"),
    "Tf, tied": lambda: lm("1", tied=True, positions="rotary", heads=1),
    "Tf+Sup": lambda: lm("1.superposition-4.1"),
    "Tf+Nd": lambda: lm("1.nondeterministic-2-2-3.1"),
    "Tf+Sup, depth 3": lambda: lm("superposition-4d3x2.1"),
    "Tf+Strat": lambda: lm("1.stratified-4.1"),
    "Tf, mixed": lambda: lm(
        "superposition-3x2.1.nondeterministic-1-2-2x2.nondeterministic-2-1-1", push_activation="published"
    ),
    "LSTM": lambda: lstm(None),
    "LSTM+Sup": lambda: lstm("superposition-3"),
    "Tf+Nd, window 3": lambda: lm("nondeterministic-2-2-3w3x2.1"),
    "LSTM+Nd, window 3": lambda: lstm("nondeterministic-2-2-3w3"),
    "LSTM+Sup, depth 2": lambda: lstm("superposition-3d2"),
    "LSTM+Nd": lambda: lstm("nondeterministic-2-2-3"),
    "Seq2Seq": lambda: seq2seq("2", "2"),
    "Seq2Seq, mixed": lambda: seq2seq("1.nondeterministic-2-2-3", "superposition-3.nondeterministic-2-2-2x2.1"),
}


@dataclass
class Subject:
    module: nn.Module
    is_layer: bool
    source: tuple[Tensor, Tensor] | None = None  # tokens and lengths of the encoder's input

    def inputs(self, B: int, T: int) -> Tensor:
        """Return random inputs: vectors (B, T, D) for layers, tokens (B, T) that begin with BOS for models."""
        if self.is_layer:
            return torch.randn(B, T, D, dtype=torch.float64)
        tokens = torch.randint(TOKENS - 1, (B, T))
        tokens[:, :1] = TOKENS - 1
        return tokens

    def spoil(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return a copy of x with garbage in the padding."""
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        if self.is_layer:
            return x.masked_fill(padding[..., None], torch.nan)
        absurd = torch.tensor([-7, 10**6, TOKENS - 1])[torch.randint(3, x.shape)]
        return absurd.where(padding, x)

    def with_source(self, B: int) -> Subject:
        """Return the subject with a source of B sequences if the model has an encoder, and unchanged otherwise."""
        if not isinstance(self.module, Seq2SeqTransformer):
            return self
        lengths = torch.arange(B) % 4 + 1
        source = torch.randint(TOKENS, (B, 4))
        padding = torch.arange(4) >= lengths[:, None]
        return Subject(self.module, False, (source.masked_fill(padding, 10**6), lengths))

    def pick(self, index: Tensor) -> Subject:
        """Return the subject with the source sequences at `index`, if it has a source."""
        if self.source is None:
            return self
        return Subject(self.module, self.is_layer, (self.source[0][index], self.source[1][index]))

    def full(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.source is None:
            return self.module(x, lengths)
        return self.module(self.source[0], x, self.source[1], lengths)

    def initial_state(self, batch_size: int) -> Any:
        if self.source is None:
            return self.module.initial_state(batch_size)  # pyright: ignore
        return self.module.initial_state(*self.source)  # pyright: ignore

    def extend(self, x: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.module.extend(x, state, lengths)  # pyright: ignore


def make(name: str, seed: int = 0) -> Subject:
    """Create a subject in float64 and evaluation mode; models have a larger `init_range` than by default."""
    torch.manual_seed(seed)
    module = {**LAYERS, **MODELS}[name]().double().eval()
    return Subject(module, name in LAYERS)


NAMES = [*LAYERS, *MODELS]
