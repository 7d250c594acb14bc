"""Warnings that point to the code that calls the library."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str) -> None:
    """Issue a RuntimeWarning that points to the innermost line outside stackattn and PyTorch."""
    level, frame = 1, sys._getframe()
    while frame is not None and (frame.f_globals.get("__name__") or "").startswith(("stackattn.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)
