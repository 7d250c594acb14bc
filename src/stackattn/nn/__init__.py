"""Layers for any model: stack attention, softmax attention, and the transformer layers that contain them.

Modules:
    stack             base class of the stack attention layers
    superposition     attention over a superposition stack
    nondeterministic  attention over the stack of a nondeterministic pushdown automaton
    stratified        attention over a stratified stack
    kinds             registry of the stack attention layers
    specs             layer specifications, their notation and their attention layers
    attention         softmax attention over the same or another sequence
    dropout           dropout alone, with a residual addition, and after a ReLU
    linear            linear layer that uses oneDNN where that is faster
    layers            transformer layers: attention and feed-forward network with norms and residual connections
    adapters          stack attention inside PyTorch's transformer layers
    state             base class of the states of layers and models that run step by step
    graphs            CUDA graphs
    checks            argument checks
"""

from .adapters import StackSelfAttention, replace_self_attention
from .attention import AttentionState, CrossAttention, Memory, SelfAttention
from .graphs import capture
from .kinds import STACK_KINDS, StackKind
from .layers import FeedForward, Sublayer, TransformerLayer, sinusoids
from .nondeterministic import NondeterministicStackAttention
from .specs import LayerSpec, SoftmaxSpec, StackSpec, build_attention, format_layers, parse_layers
from .stack import StackAttention, StackState
from .state import State
from .stratified import StratifiedStackAttention
from .superposition import SuperpositionStackAttention

__all__ = [
    "STACK_KINDS",
    "AttentionState",
    "CrossAttention",
    "FeedForward",
    "LayerSpec",
    "Memory",
    "NondeterministicStackAttention",
    "SelfAttention",
    "SoftmaxSpec",
    "StackAttention",
    "StackKind",
    "StackSelfAttention",
    "StackSpec",
    "StackState",
    "State",
    "StratifiedStackAttention",
    "Sublayer",
    "SuperpositionStackAttention",
    "TransformerLayer",
    "build_attention",
    "capture",
    "format_layers",
    "parse_layers",
    "replace_self_attention",
    "sinusoids",
]
