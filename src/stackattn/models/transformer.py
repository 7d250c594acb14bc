"""Transformers with any mix of softmax and stack attention layers: a language model, and an encoder with a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from ..nn import (
    Memory,
    StackAttention,
    State,
    TransformerLayer,
    parse_layers,
    sinusoids,
)
from ..nn.checks import check_dropout, check_positive, check_range, check_tokens, unknown_token
from ..nn.layers import LayerState
from ..nn.state import without_padding


@dataclass(frozen=True)
class TransformerLMConfig:
    """A language model. Tokens 0 to `output_size` - 1 can be predicted; an input may have more (such as BOS)."""

    input_size: int
    """Rows of the embedding table."""
    output_size: int
    """Tokens that can be predicted: the first ones of the table."""
    layers: str = "5"
    """The layers, such as `2.nondeterministic-3-3-5.2`."""
    d_model: int = 32
    heads: int = 4
    hidden_size: int = 64
    """Of the feed-forward networks."""
    dropout: float = 0.1
    tied: bool = False
    """The embedding table is the output layer too, without a bias."""
    init_range: float = 0.1
    """Uniform initialisation of everything that is not initialised otherwise: see `initialise`."""
    published: bool = False
    """As the published code does, not as the paper says: pushed vectors without a sigmoid."""

    def __post_init__(self) -> None:
        _check(self, self.layers, tied=self.tied)


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder and a decoder that share one table of embeddings, which is the output layer too."""

    input_size: int
    output_size: int
    encoder_layers: str = "5"
    decoder_layers: str = "5"
    d_model: int = 160
    heads: int = 8
    hidden_size: int = 640
    dropout: float = 0.1
    init_range: float = 0.01
    published: bool = False

    def __post_init__(self) -> None:
        _check(self, self.encoder_layers, self.decoder_layers, tied=True)


def _check(config: TransformerLMConfig | Seq2SeqConfig, *layers: str, tied: bool) -> None:
    check_positive(input_size=config.input_size, output_size=config.output_size)
    check_positive(d_model=config.d_model, heads=config.heads, hidden_size=config.hidden_size)
    if config.d_model % 2:
        raise ValueError(f"d_model: expected an even number, got {config.d_model}")
    check_dropout(config.dropout)
    check_range(config.init_range)
    if tied and config.output_size > config.input_size:
        expected = f"at most input_size = {config.input_size}, since the output layer is the embedding table"
        raise ValueError(f"output_size: expected {expected}, got {config.output_size}")
    for text in layers:
        parse_layers(text)


@dataclass(frozen=True, repr=False)
class TransformerState(State):
    layers: tuple[LayerState, ...]
    positions: Tensor  # (B,): how many tokens each sequence has read


class _Embedding(nn.Module):
    """Tokens to vectors: a table times sqrt(d_model), plus the position, and dropout."""

    def __init__(self, size: int, d_model: int, dropout: float):
        super().__init__()
        self.table = nn.Embedding(size, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tensor, lengths: Tensor | None, first: Tensor | None = None, name: str = "tokens"
    ) -> Tensor:
        """`first` (B,): the position of each sequence's first token here, if it is not 0."""
        check_tokens(name, tokens, lengths)
        tokens = without_padding(tokens, lengths)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        if first is not None:
            positions = first[:, None] + positions
        d_model = self.table.embedding_dim
        places = sinusoids(positions, d_model, self.table.weight.dtype)
        try:
            vectors = self.table(tokens)
        except IndexError as error:  # on the CPU; a GPU tells later, without saying which
            raise unknown_token(name, tokens, self.table.num_embeddings) or error from None
        return self.dropout(torch.add(places, vectors, alpha=sqrt(d_model)))


class _Stack(nn.Module):
    """A list of layers and the layer norm behind the last one."""

    def __init__(self, config: TransformerLMConfig | Seq2SeqConfig, layers: str, *, causal: bool, cross: bool):
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(
                spec,
                config.d_model,
                heads=config.heads,
                hidden_size=config.hidden_size,
                dropout=config.dropout,
                causal=causal,
                cross_attention=cross,
                push_activation="published" if config.published else "sigmoid",
            )
            for spec in parse_layers(layers)
        )
        self.norm = nn.LayerNorm(config.d_model)

    def read(self, memory: Tensor, lengths: Tensor | None) -> list[Memory | None]:
        return [layer.read(memory, lengths) for layer in self.layers]  # pyright: ignore

    def forward(self, x: Tensor, lengths: Tensor | None, memories: list[Memory | None] | None = None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, lengths, memories and memories[i])
        return self.norm(x)

    def initial_state(self, batch_size: int, memories: list[Memory | None] | None = None) -> tuple[LayerState, ...]:
        return tuple(
            layer.initial_state(batch_size, memories and memories[i])  # pyright: ignore
            for i, layer in enumerate(self.layers)
        )

    def extend(
        self, x: Tensor, states: tuple[LayerState, ...], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        new = []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer.extend(x, state, lengths)  # pyright: ignore
            new.append(state)
        return self.norm(x), tuple(new)


class TransformerLM(nn.Module):
    """A language model: logits of the next token after each one."""

    def __init__(self, config: TransformerLMConfig):
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config.input_size, config.d_model, config.dropout)
        self.stack = _Stack(config, config.layers, causal=True, cross=False)
        self.output = None if config.tied else nn.Linear(config.d_model, config.output_size)
        initialise(self, config.init_range)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, output_size). Beyond `lengths` nothing is read, and what comes out there means nothing."""
        return self._logits(self.stack(self.embedding(tokens, lengths), lengths))

    def initial_state(self, batch_size: int) -> TransformerState:
        positions = torch.zeros(batch_size, dtype=torch.long, device=self.embedding.table.weight.device)
        return TransformerState(self.stack.initial_state(batch_size), positions)

    def extend(
        self, tokens: Tensor, state: TransformerState, lengths: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        x, state = _extend(self.embedding, self.stack, tokens, state, lengths)
        return self._logits(x), state

    def _logits(self, x: Tensor) -> Tensor:
        if self.output is not None:
            return self.output(x)
        return nn.functional.linear(x, self.embedding.table.weight[: self.config.output_size])


def _extend(
    embedding: _Embedding,
    stack: _Stack,
    tokens: Tensor,
    state: TransformerState,
    lengths: Tensor | None,
    name: str = "tokens",
) -> tuple[Tensor, TransformerState]:
    x = embedding(tokens, lengths, state.positions, name)
    x, layers = stack.extend(x, state.layers, lengths)
    taken = tokens.shape[1] if lengths is None else lengths
    return x, TransformerState(layers, state.positions + taken)


class Seq2SeqTransformer(nn.Module):
    """From one sequence to another: logits of the next target token, given the source and the target so far."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config.input_size, config.d_model, config.dropout)
        self.encoder = _Stack(config, config.encoder_layers, causal=False, cross=False)
        self.decoder = _Stack(config, config.decoder_layers, causal=True, cross=True)
        initialise(self, config.init_range)

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, d_model)"""
        return self.encoder(self.embedding(source, lengths, name="source"), lengths)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """(B, T), (B, U) -> (B, U, output_size)"""
        memories = self.decoder.read(self.encode(source, source_lengths), source_lengths)
        x = self.decoder(self.embedding(target, target_lengths, name="target"), target_lengths, memories)
        return self._logits(x)

    def initial_state(self, source: Tensor, lengths: Tensor | None = None) -> TransformerState:
        """The state of the decoder that has read the source and no target."""
        memories = self.decoder.read(self.encode(source, lengths), lengths)
        positions = torch.zeros(source.shape[0], dtype=torch.long, device=source.device)
        return TransformerState(self.decoder.initial_state(source.shape[0], memories), positions)

    def extend(
        self, target: Tensor, state: TransformerState, lengths: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        x, state = _extend(self.embedding, self.decoder, target, state, lengths, "target")
        return self._logits(x), state

    def _logits(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.embedding.table.weight[: self.config.output_size])


@torch.no_grad()
def initialise(model: nn.Module, init_range: float) -> None:
    """The paper's initialisation, with `s` its range: 0.1 for context-free languages, 0.01 for natural language.

    Layer norms            weight 1, bias 0
    stack attention        Xavier uniform (the maps have no biases); the bottom vector uniform in (-s, s)
    feed-forward networks  of stack layers: Xavier uniform, gain sqrt(2) before the ReLU and 1 behind it, biases 0
    an output layer        Xavier uniform, bias 0
    everything else        uniform in (-s, s): embeddings, softmax attention, the feed-forward networks of its layers
    """
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -init_range, init_range)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, TransformerLayer):
            attention = module.attention.function
            if not isinstance(attention, StackAttention):
                continue
            attention.reset_maps()
            first, _, _, second = module.feed_forward.function  # pyright: ignore
            for linear, gain in ((first, sqrt(2)), (second, 1.0)):
                nn.init.xavier_uniform_(linear.weight, gain)
                nn.init.zeros_(linear.bias)
    output = getattr(model, "output", None)
    if isinstance(output, nn.Linear):
        nn.init.xavier_uniform_(output.weight)
        nn.init.zeros_(output.bias)
