"""stackattn: stack attention for PyTorch."""

from .ops import (
    NondeterministicState,
    Operation,
    Run,
    SuperpositionState,
    backends,
    best_runs,
    nondeterministic_weights,
    sample_runs,
    superposition_weights,
)

__version__ = "0.1.0"

__all__ = [
    "NondeterministicState",
    "Operation",
    "Run",
    "SuperpositionState",
    "backends",
    "best_runs",
    "nondeterministic_weights",
    "sample_runs",
    "superposition_weights",
]
