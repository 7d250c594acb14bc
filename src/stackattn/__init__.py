"""stackattn: stack attention for PyTorch."""

from .ops import backends, nondeterministic_weights, superposition_weights

__all__ = ["backends", "nondeterministic_weights", "superposition_weights"]
