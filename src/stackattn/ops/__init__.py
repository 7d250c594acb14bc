"""Operators: actions -> attention weights. Pure functions and value-like states on tensors; no parameters live here."""

from .backends import backends
from .nondeterministic import nondeterministic_weights
from .states import NondeterministicState, SuperpositionState
from .superposition import superposition_weights

__all__ = [
    "NondeterministicState",
    "SuperpositionState",
    "backends",
    "nondeterministic_weights",
    "superposition_weights",
]
