"""stackattn: stack attention for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models.saving import load, save
    from .ops import (
        AutomatonRun,
        NondeterministicReadingState,
        NondeterministicState,
        Operation,
        StratifiedState,
        SuperpositionReadingState,
        SuperpositionState,
        backends,
        best_runs,
        by_documents,
        immediate_checks,
        nondeterministic_readings,
        nondeterministic_weights,
        sample_runs,
        stratified_readings,
        stratified_weights,
        superposition_readings,
        superposition_weights,
    )

__version__ = "0.1.0"

__all__ = [
    "AutomatonRun",
    "NondeterministicReadingState",
    "NondeterministicState",
    "Operation",
    "StratifiedState",
    "SuperpositionReadingState",
    "SuperpositionState",
    "backends",
    "best_runs",
    "by_documents",
    "immediate_checks",
    "load",
    "nondeterministic_readings",
    "nondeterministic_weights",
    "sample_runs",
    "save",
    "stratified_readings",
    "stratified_weights",
    "superposition_readings",
    "superposition_weights",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `stackattn --help` and `stackattn.languages` do not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = ".models.saving" if name in ("load", "save") else ".ops"
    value = getattr(import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
