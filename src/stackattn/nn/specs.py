"""Layer specifications: the notation `2.nondeterministic-3-3-5.2`, and the attention layer of each specification."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..config import FieldError
from .attention import SelfAttention
from .checks import check_choice
from .kinds import PUSH_ACTIVATION_OPTIONS, STACK_KINDS
from .stack import StackAttention

MAX_LAYERS = 1000
MAX_SIZE = 10**6


@dataclass(frozen=True)
class SoftmaxSpec:
    """A layer with softmax attention. Its sizes follow from the model."""

    def __str__(self) -> str:
        return "1"


@dataclass(frozen=True)
class StackSpec:
    """A layer with stack attention.

    Raises:
        ValueError: the kind is unknown; a size is missing or superfluous; a size, `heads` or `limit` is out of range;
            or a limit is given for a kind without one.

    Examples::

        spec = StackSpec("superposition", (32,), heads=2, limit=64)
        str(spec)                                                     # 'superposition-32d64x2'
        layer = spec.build(d_model=28)
    """

    kind: str
    """Name in the registry `STACK_KINDS`."""
    sizes: tuple[int, ...]
    """Sizes in the order of `STACK_KINDS[kind].sizes`."""
    heads: int = 1
    """Number of independent stacks."""
    limit: int | None = None
    """Limit `STACK_KINDS[kind].limit` of the stack, such as its depth; None: no limit."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, STACK_KINDS)
        names = STACK_KINDS[self.kind].sizes
        if len(self.sizes) != len(names):
            raise ValueError(f"sizes: expected ({', '.join(names)}) for {self.kind}, got {self.sizes!r}")
        if self.limit is not None and STACK_KINDS[self.kind].limit is None:
            raise ValueError(f"limit: expected None for {self.kind}, which has no limit, got {self.limit!r}")
        for name, size in (*self.arguments.items(), ("heads", self.heads)):
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
                raise ValueError(f"{name}: expected an integer from 1 to {MAX_SIZE}, got {size!r}")

    @property
    def named_sizes(self) -> dict[str, int]:
        """Sizes by name, such as `{"stack_embedding_size": 32}`."""
        return dict(zip(STACK_KINDS[self.kind].sizes, self.sizes, strict=True))

    @property
    def arguments(self) -> dict[str, int]:
        """Sizes and the limit, if there is one, by name."""
        limit = {} if self.limit is None else {STACK_KINDS[self.kind].limit: self.limit}
        return {**self.named_sizes, **limit}  # pyright: ignore[reportReturnType]

    def build(self, d_model: int, *, push_activation: str = "sigmoid") -> StackAttention:
        """Create the attention layer.

        Args:
            d_model: size of inputs and outputs.
            push_activation: `"sigmoid"`, `"identity"`, `"exp"`, or `"published"` for that of the published code.

        Raises:
            ValueError: `d_model` is not a positive integer, or the activation is unknown.
        """
        check_choice("push_activation", push_activation, PUSH_ACTIVATION_OPTIONS)
        kind = STACK_KINDS[self.kind]
        activation = kind.push_activation(push_activation)
        return kind.layer(d_model, **self.arguments, heads=self.heads, push_activation=activation)  # pyright: ignore

    def __str__(self) -> str:
        name = STACK_KINDS[self.kind].limit
        limit = "" if self.limit is None or name is None else f"{name[0]}{self.limit}"
        heads = "" if self.heads == 1 else f"x{self.heads}"
        return "-".join([self.kind, *map(str, self.sizes)]) + limit + heads


LayerSpec = SoftmaxSpec | StackSpec


def build_attention(
    spec: LayerSpec,
    d_model: int,
    *,
    heads: int,
    dropout: float = 0.0,
    causal: bool = True,
    push_activation: str = "sigmoid",
    rotary: bool = False,
) -> SelfAttention | StackAttention:
    """Create the attention layer of a specification.

    Args:
        spec: the specification.
        d_model: size of inputs and outputs.
        heads, dropout, causal, rotary: options of softmax attention.
        push_activation: option of stack attention; see `StackSpec.build`.

    Raises:
        TypeError: `spec` is not a specification.
        ValueError: an option of this kind of attention is invalid.
    """
    if isinstance(spec, StackSpec):
        return spec.build(d_model, push_activation=push_activation)
    if not isinstance(spec, SoftmaxSpec):
        raise TypeError(f"spec: expected a SoftmaxSpec or a StackSpec, such as those of parse_layers, got {spec!r:.80}")
    return SelfAttention(d_model, heads, dropout, causal=causal, rotary=rotary)


_NUMBER = r"[1-9][0-9]*"
_COUNT = re.compile(_NUMBER)
_STACK = re.compile(
    rf"(?P<kind>[a-z]+)-(?P<sizes>{_NUMBER}(?:-{_NUMBER})*)"
    rf"(?:(?P<letter>[a-wyz])(?P<limit>{_NUMBER}))?(?:x(?P<heads>{_NUMBER}))?"
)


def parse_layers(layers: str | int, name: str = "layers") -> list[LayerSpec]:
    """Parse the layers of a model.

    Args:
        layers: parts joined by dots. A number stands for that many layers of softmax attention; `superposition-M`,
            `nondeterministic-Q-S-M` and `stratified-M` are stack layers. `superposition-MdK` keeps only the top K
            elements, `nondeterministic-Q-S-MwK` has a window of K steps, and the suffix `xH` stands for H heads. An int
            is a number of layers of softmax attention.
        name: name of the argument in error messages.

    Returns:
        One specification for each layer.

    Raises:
        TypeError: `layers` is neither text nor an int.
        ValueError: wrong notation, a number of layers that is not from 1 to 1000, or a size above 10^6.

    Examples::

        parse_layers("2.nondeterministic-3-3-5.2")                    # five layers, the middle one with a stack
        parse_layers(5)                                               # five layers of softmax attention
    """
    if isinstance(layers, bool) or not isinstance(layers, str | int):
        raise TypeError(f"{name}: expected an integer or text such as '2.superposition-32.2', got {layers!r}")
    if isinstance(layers, int):
        if not 1 <= layers <= MAX_LAYERS:
            # Python does not convert very large integers to text.
            found = layers if abs(layers) < 10**20 else "a number of more than 20 digits"
            raise FieldError(name, f"expected 1 to {MAX_LAYERS} layers, got {found}")
        return [SoftmaxSpec()] * layers
    specs: list[LayerSpec] = []
    for part in layers.split("."):
        if _COUNT.fullmatch(part):
            specs += [SoftmaxSpec()] * _parse_number(part, MAX_LAYERS, layers, name)
        else:
            specs.append(_parse_stack(part, layers, name, f"parts like '2', {_examples()} joined by dots"))
        if len(specs) > MAX_LAYERS:
            raise FieldError(name, f"expected at most {MAX_LAYERS} layers, got more in {_brief(layers)}")
    return specs


def parse_stack(text: str, name: str = "stack") -> StackSpec:
    """Parse a single stack, such as `superposition-10`; `name` is the name of the argument in error messages.

    Raises:
        ValueError: wrong notation, or a size above 10^6.
    """
    return _parse_stack(text, text, name, f"one stack such as {_examples()}")


def format_layers(specs: Iterable[LayerSpec]) -> str:
    """Format layers in the notation of `parse_layers`."""
    parts: list[str] = []
    for spec in specs:
        if isinstance(spec, SoftmaxSpec) and parts and parts[-1].isdigit():
            parts[-1] = str(int(parts[-1]) + 1)
        else:
            parts.append(str(spec))
    return ".".join(parts)


def _examples() -> str:
    examples = [repr(text) for kind in STACK_KINDS.values() for text in kind.examples]
    return f"{', '.join(examples[:-1])} or {examples[-1]}"


def _parse_stack(part: str, text: str, name: str, expected: str) -> StackSpec:
    found = _STACK.fullmatch(part)
    sizes = found["sizes"].split("-") if found else []
    kind = STACK_KINDS.get(found["kind"]) if found else None
    letters = (None, kind.limit[0]) if kind is not None and kind.limit is not None else (None,)
    if found is None or kind is None or len(sizes) != len(kind.sizes) or found["letter"] not in letters:
        found = _brief(part) if part == text else f"{_brief(part)} in {_brief(text)}"
        raise FieldError(name, f"expected {expected}, got {found}")
    *numbers, heads = (_parse_number(size, MAX_SIZE, text, name) for size in (*sizes, found["heads"] or "1"))
    limit = None if found["limit"] is None else _parse_number(found["limit"], MAX_SIZE, text, name)
    return StackSpec(kind.name, tuple(numbers), heads, limit)


def _parse_number(digits: str, limit: int, text: str, name: str) -> int:
    # Compare the number of digits first: Python does not convert thousands of digits to an integer.
    if len(digits) > len(str(limit)) or int(digits) > limit:
        expected = f"expected at most {limit} layers" if limit == MAX_LAYERS else f"expected numbers of at most {limit}"
        found = _brief(digits) if digits == text else f"{_brief(digits)} in {_brief(text)}"
        raise FieldError(name, f"{expected}, got {found}")
    return int(digits)


def _brief(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
