"""Registry of the stack attention layers, by kind of stack.

Traces (`analysis.traces`) and the stacks of LSTMs (`models.lstm_stacks`) have registries with the same names of kinds;
LSTMs have no stratified stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from .nondeterministic import NondeterministicStackAttention
from .stack import PUSH_ACTIVATIONS, StackAttention
from .stratified import StratifiedStackAttention
from .superposition import SuperpositionStackAttention

PUSH_ACTIVATION_OPTIONS = (*PUSH_ACTIVATIONS, "published")
"""Values of the option `push_activation`: one activation for all kinds, or that of the published code."""


@dataclass(frozen=True)
class StackKind:
    """One kind of stack."""

    layer: type[StackAttention]
    """Class of the attention layer. Its attribute `kind` is the name in the layer notation."""
    sizes: tuple[str, ...]
    """Names of the sizes, in the order of the layer notation. They are also the names of the layer's arguments."""
    abbreviation: str
    """Short name in labels of models, such as `Tf+Nd`."""
    published_push_activation: str
    """Activation of pushed vectors that the option `"published"` stands for."""

    @property
    def name(self) -> str:
        """Name in the layer notation."""
        return self.layer.kind

    @property
    def limit(self) -> str | None:
        """Name of the layer's optional limit, such as `depth`. Its first letter is the suffix in the layer notation."""
        return self.layer.limit_name

    @property
    def examples(self) -> list[str]:
        """Layers of this kind in the layer notation: one without a limit and, if the kind has one, one with it."""
        text = "-".join([self.name, *"3" * len(self.sizes)])
        return [text] if self.limit is None else [text, f"{text}{self.limit[0]}64"]

    def push_activation(self, option: str) -> str:
        """Resolve a value of the option `push_activation` to the activation of this kind."""
        return self.published_push_activation if option == "published" else option


STACK_KINDS: dict[str, StackKind] = {
    kind.name: kind
    for kind in (
        StackKind(SuperpositionStackAttention, ("stack_embedding_size",), "Sup", published_push_activation="identity"),
        StackKind(
            NondeterministicStackAttention,
            ("num_states", "num_symbols", "stack_embedding_size"),
            "Nd",
            published_push_activation="exp",
        ),
        StackKind(StratifiedStackAttention, ("stack_embedding_size",), "Strat", published_push_activation="sigmoid"),
    )
}
"""All kinds of stacks by their names in the layer notation."""
