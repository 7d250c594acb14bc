"""Operators: actions -> attention weights. Pure functions and value-like states on tensors; no parameters live here."""

from .attention import causal_attention
from .dispatch import backends
from .nondeterministic import nondeterministic_weights
from .readings import nondeterministic_readings, superposition_readings
from .runs import AutomatonRun, Operation, best_runs, sample_runs
from .states import NondeterministicState, SuperpositionState
from .superposition import superposition_weights

__all__ = [
    "AutomatonRun",
    "NondeterministicState",
    "Operation",
    "SuperpositionState",
    "backends",
    "best_runs",
    "causal_attention",
    "nondeterministic_readings",
    "nondeterministic_weights",
    "sample_runs",
    "superposition_readings",
    "superposition_weights",
]
