"""Processes that start quickly: a fork server has already imported torch."""

import multiprocessing
from typing import Any


def processes() -> Any:
    """Return a context of `multiprocessing`, in place of the one that starts a new interpreter for each process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stackattn.training.sweep", "stackattn.models", "stackattn.training.cfl"])
    return context
