"""Layers: stack attention to put into any model, and the transformer layers of our own ones. No model lives here."""

from .adapters import StackSelfAttention, replace_self_attention
from .attention import AttentionState, CrossAttention, Memory, SelfAttention
from .layers import (
    FeedForward,
    LayerSpec,
    Nondeterministic,
    Sdpa,
    Sublayer,
    Superposition,
    TransformerLayer,
    format_layers,
    parse_layers,
    sinusoids,
)
from .stack import NondeterministicStackAttention, StackState, SuperpositionStackAttention
from .state import State

__all__ = [
    "AttentionState",
    "CrossAttention",
    "FeedForward",
    "LayerSpec",
    "Memory",
    "Nondeterministic",
    "NondeterministicStackAttention",
    "Sdpa",
    "SelfAttention",
    "StackSelfAttention",
    "StackState",
    "State",
    "Sublayer",
    "Superposition",
    "SuperpositionStackAttention",
    "TransformerLayer",
    "format_layers",
    "parse_layers",
    "replace_self_attention",
    "sinusoids",
]
