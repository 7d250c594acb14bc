"""Transformers with softmax and stack attention layers in any order: language model and sequence-to-sequence model."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from ..nn import Memory, SelfAttention, StackAttention, State, TransformerLayer, parse_layers, sinusoids
from ..nn.checks import check_same_size, check_state, check_tokens, unknown_token
from ..nn.dropout import Dropout
from ..nn.layers import LayerState
from ..nn.linear import Linear
from ..ops.documents import by_documents, extend_by_documents
from ..ops.lengths import without_padding
from ..ops.linear import linear
from .configs import Seq2SeqConfig, TransformerLMConfig


@dataclass(frozen=True, repr=False)
class TransformerState(State):
    """State of a transformer between two calls to `extend`."""

    layers: tuple[LayerState, ...]
    positions: Tensor  # (B,): number of tokens that each sequence has read

    def restart(self, rows: Tensor) -> TransformerState:
        """Reset the sequences selected by `rows`, (B,), bool, to the state before the first token."""
        return TransformerState(tuple(layer.restart(rows) for layer in self.layers), self.positions * ~rows)


class _Embedding(nn.Module):
    """Tokens to vectors: table times sqrt(d_model), plus sinusoidal encodings if the model uses them, then dropout."""

    def __init__(self, config: TransformerLMConfig | Seq2SeqConfig):
        super().__init__()
        self.table = nn.Embedding(config.input_size, config.d_model)
        self.sinusoidal = config.positions == "sinusoidal"
        self.dropout = Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, lengths: Tensor | None, first: Tensor | None = None, name: str = "tokens"
    ) -> Tensor:
        """(B, T) -> (B, T, d_model). `first` (B,): position of each sequence's first token; 0 by default."""
        check_tokens(name, tokens, lengths, self.table.weight)
        tokens = without_padding(tokens, lengths)
        d_model = self.table.embedding_dim
        try:
            vectors = self.table(tokens)
        except IndexError as error:  # raised on the CPU only
            raise unknown_token(name, tokens, self.table.num_embeddings) or error from None
        if not self.sinusoidal:
            return self.dropout(vectors * sqrt(d_model))
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (T,)
        if first is not None:
            positions = first[:, None] + positions  # (B, T)
        encodings = sinusoids(positions, d_model, self.table.weight.dtype)
        return self.dropout(torch.add(encodings, vectors, alpha=sqrt(d_model)))


class LayerSequence(nn.Module):
    """Transformer layers one after the other, and a final layer norm.

    Args:
        config: sizes and options.
        layers: the layers in the notation of `parse_layers`.
        causal: whether softmax attention is causal; stack attention always is.
        cross_attention: whether the layers also attend to a memory.
    """

    def __init__(
        self, config: TransformerLMConfig | Seq2SeqConfig, layers: str | int, *, causal: bool, cross_attention: bool
    ):
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(
                spec,
                config.d_model,
                heads=config.heads,
                hidden_size=config.feed_forward_size,
                dropout=config.dropout,
                causal=causal,
                cross_attention=cross_attention,
                push_activation=config.push_activation,
                rotary=config.positions == "rotary",
            )
            for spec in parse_layers(layers)
        )
        self.norm = nn.LayerNorm(config.d_model)

    def read(self, memory: Tensor, lengths: Tensor | None) -> list[Memory | None]:
        """Project the memory (B, T, d_model) to the keys and values of each layer."""
        return [layer.read(memory, lengths) for layer in self.layers]  # pyright: ignore

    def forward(self, x: Tensor, lengths: Tensor | None, memories: list[Memory | None] | None = None) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)"""
        for i, layer in enumerate(self.layers):
            x = layer(x, lengths, memories and memories[i])
        return self.norm(x)

    def initial_state(self, batch_size: int, memories: list[Memory | None] | None = None) -> tuple[LayerState, ...]:
        """Create the states of all layers before the first step."""
        return tuple(
            layer.initial_state(batch_size, memories and memories[i])  # pyright: ignore
            for i, layer in enumerate(self.layers)
        )

    def extend(
        self, x: Tensor, states: tuple[LayerState, ...], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Take T more steps: x (B, T, d_model) -> the output (B, T, d_model) and the new states."""
        new = []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer.extend(x, state, lengths)  # pyright: ignore
            new.append(state)
        return self.norm(x), tuple(new)


class TransformerLM(nn.Module):
    """A language model: after each token, the logits of the next one.

    Args:
        config: sizes and options.

    Examples::

        model = TransformerLM(TransformerLMConfig(input_size=5, output_size=5, layers="2.nondeterministic-3-3-5.2"))
        logits = model(tokens, lengths)                               # (B, T) and (B,) -> (B, T, 5)
    """

    def __init__(self, config: TransformerLMConfig):
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config)
        self.trunk = LayerSequence(config, config.layers, causal=True, cross_attention=False)
        self.output = None if config.tied else Linear(config.d_model, config.output_size)
        initialise(self, config.init_range, config.xavier_layer)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Compute logits.

        Args:
            tokens: (B, T), int64 or int32
            lengths: (B,), optional
                Number of tokens of each sequence. Later tokens are padding: they are ignored, and their logits are
                meaningless.
            starts: (B, T), bool, optional
                True at the first token of each document, for rows that contain several documents; each document is read
                as if it were alone.

        Returns:
            Logits (B, T, output_size).

        Raises:
            ValueError, TypeError: wrong shape, dtype or device, or (on the CPU) a token that is not in the vocabulary.
        """
        if starts is not None:
            check_tokens("tokens", tokens, lengths, self.embedding.table.weight)
            return by_documents(self.forward, starts, tokens, lengths=lengths)
        return self._logits(self.trunk(self.embedding(tokens, lengths), lengths))

    def initial_state(self, batch_size: int) -> TransformerState:
        """Create the state before the first token."""
        positions = torch.zeros(batch_size, dtype=torch.long, device=self.embedding.table.weight.device)
        return TransformerState(self.trunk.initial_state(batch_size), positions)

    def extend(
        self, tokens: Tensor, state: TransformerState, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Read T more tokens: tokens (B, T) -> logits (B, T, output_size) and the new state.

        `starts` (B, T) marks the first token of each new document, as in `forward`; tokens before the first new
        document continue the document of the state.

        Raises:
            ValueError, TypeError: as in `forward`, or the state does not fit the model or the batch.
        """
        if starts is not None:
            check_tokens("tokens", tokens, lengths, self.embedding.table.weight)
            check_state(state, TransformerState, "tokens", tokens)
            extend = lambda state, tokens, lengths: self.extend(tokens, state, lengths)  # noqa: E731
            return extend_by_documents(state, extend, self.forward, starts, tokens, lengths=lengths)
        x, state = _extend(self.embedding, self.trunk, tokens, state, lengths)
        return self._logits(x), state

    def _logits(self, x: Tensor) -> Tensor:
        if self.output is not None:
            return self.output(x)
        return linear(x, self.embedding.table.weight[: self.config.output_size])


def _extend(
    embedding: _Embedding,
    trunk: LayerSequence,
    tokens: Tensor,
    state: TransformerState,
    lengths: Tensor | None,
    name: str = "tokens",
) -> tuple[Tensor, TransformerState]:
    check_tokens(name, tokens, lengths, embedding.table.weight)
    check_state(state, TransformerState, name, tokens)
    check_same_size("layer", len(trunk.layers), len(state.layers))
    x = embedding(tokens, lengths, state.positions, name)
    x, layers = trunk.extend(x, state.layers, lengths)
    taken = tokens.shape[1] if lengths is None else lengths
    return x, TransformerState(layers, state.positions + taken)


class Seq2SeqTransformer(nn.Module):
    """A sequence-to-sequence model: the logits of the next target token, given the source and the target so far.

    Args:
        config: sizes and options.

    Examples::

        model = Seq2SeqTransformer(Seq2SeqConfig(input_size=100, output_size=98, layers="1.superposition-32"))
        logits = model(source, target, source_lengths, target_lengths)   # (B, T), (B, U) -> (B, U, 98)
    """

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config)
        self.encoder = LayerSequence(config, config.layers, causal=False, cross_attention=False)
        decoder_layers = config.layers if config.decoder_layers is None else config.decoder_layers
        self.decoder = LayerSequence(config, decoder_layers, causal=True, cross_attention=True)
        initialise(self, config.init_range, config.xavier_layer)

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode the source: (B, T) -> (B, T, d_model)"""
        return self.encoder(self.embedding(source, lengths, name="source"), lengths)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """Compute logits.

        Args:
            source: (B, T), int64 or int32
            target: (B, U), int64 or int32
            source_lengths: (B,), optional
            target_lengths: (B,), optional
                Number of tokens of each sequence; the rest is padding and is ignored.

        Returns:
            Logits (B, U, output_size).

        Raises:
            ValueError, TypeError: wrong shape, dtype or device, or (on the CPU) a token that is not in the vocabulary.
        """
        memories = self.decoder.read(self.encode(source, source_lengths), source_lengths)
        x = self.decoder(self.embedding(target, target_lengths, name="target"), target_lengths, memories)
        return self._logits(x)

    def initial_state(self, source: Tensor, lengths: Tensor | None = None) -> TransformerState:
        """Encode the source (B, T), and create the decoder's state before the first target token."""
        memories = self.decoder.read(self.encode(source, lengths), lengths)
        positions = torch.zeros(source.shape[0], dtype=torch.long, device=source.device)
        return TransformerState(self.decoder.initial_state(source.shape[0], memories), positions)

    def extend(
        self, target: Tensor, state: TransformerState, lengths: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Read U more target tokens: (B, U) -> logits (B, U, output_size) and the new state."""
        x, state = _extend(self.embedding, self.decoder, target, state, lengths, "target")
        return self._logits(x), state

    def _logits(self, x: Tensor) -> Tensor:
        return linear(x, self.embedding.table.weight[: self.config.output_size])


@torch.no_grad()
def initialise(model: nn.Module, init_range: float, xavier_layer: int | None = None) -> None:
    """Initialise a transformer as in the paper.

    | parameters                            | initialisation                                                  |
    |---------------------------------------|-----------------------------------------------------------------|
    | layer norms                           | weight 1, bias 0                                                |
    | maps of stack attention               | Xavier uniform                                                  |
    | feed-forward networks of stack layers | Xavier uniform, gain sqrt(2) before and 1 after ReLU; biases 0  |
    | output layer, if not tied             | Xavier uniform, bias 0                                          |
    | all others                            | uniform in (-init_range, init_range)                            |

    The paper uses an `init_range` of 0.1 for context-free languages and of 0.01 for natural language. The softmax
    attention layer with number `xavier_layer`, counted from 1, is initialised like a stack layer, with biases 0.
    """
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -init_range, init_range)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, LayerSequence):
            for number, layer in enumerate(module.layers, 1):
                _initialise_layer(layer, number == xavier_layer)  # pyright: ignore
    output = getattr(model, "output", None)
    if isinstance(output, nn.Linear):
        _xavier(output)


def _initialise_layer(layer: TransformerLayer, xavier: bool) -> None:
    attention = layer.attention.function
    if isinstance(attention, StackAttention):
        attention.reset_maps()
    elif isinstance(attention, SelfAttention) and xavier:
        _xavier(attention.to_queries_keys_values)
        _xavier(attention.to_output)
    else:
        return
    first, _, second = layer.feed_forward.function  # pyright: ignore
    _xavier(first, sqrt(2))
    _xavier(second)


def _xavier(layer: nn.Linear, gain: float = 1.0) -> None:
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
