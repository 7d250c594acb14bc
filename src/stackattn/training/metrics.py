"""Metrics of evaluations: their names, and the one by which runs are compared."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A metric of the evaluations of a run."""

    key: str
    """Its key in the evaluations."""
    name: str
    """Its name in tables and figures."""


DIFFERENCE = Metric("cross_entropy_difference", "difference")
PERPLEXITY = Metric("perplexity", "perplexity")


def perplexity(nats: float) -> float:
    """Return the perplexity of a cross-entropy in nats; infinity on overflow, nan for nan."""
    return math.exp(nats) if nats < 700 else nats * math.inf


def headline(values: dict[str, Any]) -> tuple[str, float]:
    """Return the name and value of the metric by which runs are compared; lower is better."""
    for key, name in (DIFFERENCE, PERPLEXITY):
        if key in values:
            return name, values[key]
    return "score", values["score"]
