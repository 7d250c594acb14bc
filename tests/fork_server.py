"""Processes that start quickly: a fork server has already imported torch."""

import multiprocessing
from typing import Any


def processes() -> Any:
    """Return a `multiprocessing` context that forks processes from a server instead of starting new interpreters."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stackattn.training.sweep", "stackattn.models", "stackattn.training.cfl"])
    return context
