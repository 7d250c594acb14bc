"""The limit on the memory of charts."""

from __future__ import annotations

import os

_VARIABLE = "STACKATTN_CHART_MEMORY"


def chart_memory(default: int) -> int:
    """The largest number of bytes for the charts of one call: `default` MB, unless the environment sets a limit."""
    text = os.environ.get(_VARIABLE, "")
    try:
        return int(1e6 * float(text)) if text else default * 10**6
    except (ValueError, OverflowError):
        raise ValueError(f"{_VARIABLE}: expected a number of MB, got {text!r}") from None
