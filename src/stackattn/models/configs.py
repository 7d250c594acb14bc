"""Configurations of the models.

An architecture contains the options that do not depend on the data; the section `model` of a run's configuration is an
architecture. A config adds the sizes of the vocabulary and defines a model completely.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from ..config import FieldError, require
from ..nn import SoftmaxSpec, StackSpec, parse_layers
from ..nn.checks import check_choice, check_dropout, check_positive, check_range
from ..nn.kinds import PUSH_ACTIVATION_OPTIONS
from ..nn.specs import parse_stack

POSITIONS = ("sinusoidal", "rotary", "none")


@dataclass(frozen=True, kw_only=True)
class _TransformerOptions:
    """Options that the language model and the sequence-to-sequence model share."""

    layers: str | int = "5"
    """Layers from first to last, such as `2.nondeterministic-3-3-5.2`; a number stands for that many layers of softmax
    attention."""
    d_model: int = 32
    """Size of the vectors between the layers; an even number, and a multiple of `heads`. Rotary positions need an even
    `d_model` / `heads`."""
    heads: int = 4
    """Number of heads of each softmax attention layer."""
    hidden_size: int | None = None
    """Size of the hidden layer of the feed-forward networks; default: 2 times `d_model`."""
    dropout: float = 0.1
    """Dropout rate, from 0 to less than 1."""
    init_range: float = 0.1
    """Bound s of the uniform initialisation in (-s, s), which applies to all parameters without another rule."""
    xavier_layer: int | None = None
    """Number of a softmax attention layer, counted from 1, that is initialised like a stack layer instead of with
    `init_range`; in a sequence-to-sequence model, this applies to the encoder and to the decoder. It serves as a
    control in comparisons with stack layers; by default, there is no such layer."""
    positions: str = "sinusoidal"
    """How the model represents positions: `sinusoidal` encodings added to the embeddings (the paper), `rotary`
    embeddings in softmax self-attention, or `none`."""
    push_activation: str = "sigmoid"
    """Function applied to the vectors that stack layers push: `sigmoid` (the paper), `identity`, `exp`, or `published`
    (the published code: `identity` in superposition layers, `exp` in nondeterministic layers)."""

    hidden_factor: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_positive(d_model=self.d_model, heads=self.heads)
        require(self.d_model % 2 == 0, "d_model", "an even number", self.d_model)
        if self.hidden_size is not None:
            check_positive(hidden_size=self.hidden_size)
        check_dropout(self.dropout)
        check_range(self.init_range)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("push_activation", self.push_activation, PUSH_ACTIVATION_OPTIONS)
        self._check_layers("layers")
        if self.xavier_layer is not None:
            specs = parse_layers(self.layers)
            numbers = [number for number, spec in enumerate(specs, 1) if isinstance(spec, SoftmaxSpec)]
            expected = f"the number of a softmax attention layer of {self.layers!r}, one of {numbers}"
            require(self.xavier_layer in numbers, "xavier_layer", expected, self.xavier_layer)

    def _check_layers(self, name: str) -> None:
        """Check a field with layers, and store an int as text."""
        layers = getattr(self, name)
        has_softmax = any(isinstance(spec, SoftmaxSpec) for spec in parse_layers(layers, name))
        size, remainder = divmod(self.d_model, self.heads)
        if self.positions == "rotary" and has_softmax and size % 2 and not remainder:
            found = f"{self.d_model} / {self.heads} = {size}; change one of them"
            raise FieldError("positions", f"expected an even d_model / heads for rotary, got {found}")
        object.__setattr__(self, name, str(layers))

    @property
    def feed_forward_size(self) -> int:
        """`hidden_size`, or its default."""
        return self.hidden_factor * self.d_model if self.hidden_size is None else self.hidden_size


@dataclass(frozen=True, kw_only=True)
class TransformerArchitecture(_TransformerOptions):
    """A transformer language model, without the sizes of its vocabulary.

    Raises:
        ValueError, TypeError: an option is invalid; the message names it.
    """

    tied: bool = False
    """Whether the output layer uses the embedding table as its weights, without a bias."""

    def for_vocabulary(self, input_size: int, output_size: int) -> TransformerLMConfig:
        """Add the sizes of the vocabulary."""
        return TransformerLMConfig(**_options(self), input_size=input_size, output_size=output_size)


@dataclass(frozen=True, kw_only=True)
class TransformerLMConfig(TransformerArchitecture):
    """Configuration of a `TransformerLM`.

    Examples::

        TransformerLMConfig(input_size=8, output_size=8, layers="2.nondeterministic-3-3-5.2", d_model=28)
    """

    input_size: int
    """Number of tokens that the model can read: the rows of the embedding table."""
    output_size: int
    """Number of tokens that the model can predict: 0 to `output_size` - 1. Tokens with larger ids, such as BOS, are
    only read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_vocabulary(self.input_size, self.output_size, tied=self.tied)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqArchitecture(_TransformerOptions):
    """A sequence-to-sequence transformer, without the sizes of its vocabulary.

    `layers` are the layers of the encoder. Encoder, decoder and output layer share one embedding table.

    Raises:
        ValueError, TypeError: an option is invalid; the message names it.
    """

    decoder_layers: str | int | None = None
    """Layers of the decoder, in the notation of `layers`; by default the same as `layers`, which are those of the
    encoder."""
    d_model: int = 160
    heads: int = 8
    hidden_size: int | None = None
    """Size of the hidden layer of the feed-forward networks; default: 4 times `d_model`."""
    init_range: float = 0.01

    hidden_factor: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_layers is not None:
            self._check_layers("decoder_layers")

    def for_vocabulary(self, input_size: int, output_size: int) -> Seq2SeqConfig:
        """Add the sizes of the vocabulary."""
        return Seq2SeqConfig(**_options(self), input_size=input_size, output_size=output_size)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Seq2SeqArchitecture):
    """Configuration of a `Seq2SeqTransformer`.

    Examples::

        Seq2SeqConfig(input_size=100, output_size=98, layers="1.superposition-32", decoder_layers=2, d_model=32)
    """

    input_size: int
    """Number of tokens in the vocabulary: the rows of the embedding table."""
    output_size: int
    """Number of tokens that the model can predict: 0 to `output_size` - 1. Tokens with larger ids, such as BOS, are
    only read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_vocabulary(self.input_size, self.output_size, tied=True)


STACK_INITS = ("xavier", "uniform")


@dataclass(frozen=True, kw_only=True)
class LSTMArchitecture:
    """An LSTM language model, without the sizes of its vocabulary.

    Raises:
        ValueError, TypeError: an option is invalid; the message names it.
    """

    hidden_size: int = 100
    """Size of the hidden state."""
    stack: str | None = None
    """Stack that the LSTM controls, such as `superposition-10` or `nondeterministic-3-3-5`; none by default."""
    init_range: float = 0.1
    """Bound s of the uniform initialisation in (-s, s), which applies to all parameters without another rule."""
    stack_init: str = "xavier"
    """Initialisation of the maps from the hidden state to a nondeterministic stack: `xavier` (the paper: Xavier
    uniform, biases 0) or `uniform` (the published code: uniform in (-init_range, init_range), biases too). The maps to
    a superposition stack always use `xavier`."""

    def __post_init__(self) -> None:
        check_positive(hidden_size=self.hidden_size)
        check_range(self.init_range)
        check_choice("stack_init", self.stack_init, STACK_INITS)
        _ = self.stack_spec  # raises if `stack` is invalid

    @property
    def stack_spec(self) -> StackSpec | None:
        """The parsed `stack`."""
        if self.stack is None:
            return None
        if not isinstance(self.stack, str):
            raise TypeError(f"stack: expected None or text such as 'superposition-10', got {self.stack!r}")
        spec = parse_stack(self.stack)
        if spec.heads != 1:
            raise FieldError("stack", f"expected a stack with one head, got {self.stack!r}")
        return spec

    def for_vocabulary(self, input_size: int, output_size: int) -> LSTMConfig:
        """Add the sizes of the vocabulary."""
        return LSTMConfig(**_options(self), input_size=input_size, output_size=output_size)


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(LSTMArchitecture):
    """Configuration of an `LSTMLM`.

    Examples::

        LSTMConfig(input_size=8, output_size=8, hidden_size=93, stack="superposition-10")
    """

    input_size: int
    """Number of tokens that the model can read, BOS included. The last one is BOS, which has no input vector: the
    prediction after it is the bias of the output layer."""
    output_size: int
    """Number of tokens that the model can predict: 0 to `output_size` - 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_vocabulary(self.input_size, self.output_size, tied=False)


def _options(architecture: TransformerArchitecture | Seq2SeqArchitecture | LSTMArchitecture) -> dict:
    """The options of an architecture, or of a config without its sizes."""
    return {name: x for name, x in asdict(architecture).items() if name not in ("input_size", "output_size")}


def _check_vocabulary(input_size: int, output_size: int, *, tied: bool) -> None:
    check_positive(input_size=input_size, output_size=output_size)
    expected = f"at most input_size = {input_size}, since the output layer uses the embedding table"
    require(not tied or output_size <= input_size, "output_size", expected, output_size)
