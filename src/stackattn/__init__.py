"""stackattn: stack attention for PyTorch."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .models.saving import load

__version__ = "0.1.0"

__all__ = [
    "NondeterministicState",
    "Operation",
    "Run",
    "SuperpositionState",
    "backends",
    "best_runs",
    "load",
    "nondeterministic_weights",
    "sample_runs",
    "superposition_weights",
]


def __getattr__(name: str) -> Any:
    """Models are imported when one is loaded: those who want operators alone do not wait for them."""
    if name == "load":
        from .models.saving import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
