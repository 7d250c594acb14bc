"""stackattn: stack attention for PyTorch."""

from .ops import (
    NondeterministicState,
    SuperpositionState,
    backends,
    nondeterministic_weights,
    superposition_weights,
)

__all__ = [
    "NondeterministicState",
    "SuperpositionState",
    "backends",
    "nondeterministic_weights",
    "superposition_weights",
]
