"""The three transition tensors joined into one, and the history of a state's transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def join_transitions(log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> Tensor:
    """All transitions from each state and symbol in one tensor (B, c, Q, S, Q S + Q S + Q): push, replace, pop."""
    return torch.cat([log_push.flatten(4), log_replace.flatten(4), log_pop], dim=-1)


def split_transitions(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of `join_transitions`."""
    Q, S = rows.shape[2:4]
    push, replace, pop = rows.split((Q * S, Q * S, Q), dim=-1)
    return push.unflatten(-1, (Q, S)), replace.unflatten(-1, (Q, S)), pop


class History(NamedTuple):
    """A linked list of the transitions of all steps so far, last first, from which a state can be recomputed exactly.

    Recomputation is rare, so functions that are applied to the state (reordering, detaching) are only recorded here and
    applied on demand.
    """

    before: History | None
    rows: Tensor | None  # joined transitions of some steps; None if this entry is a function
    function: Callable[[Tensor], Tensor] | None  # to be applied to all earlier steps; None if this entry has rows

    def steps(self) -> Tensor:
        """The joined transitions of all steps."""
        found: list[Tensor] = []
        functions: list[Callable[[Tensor], Tensor]] = []
        at: History | None = self
        while at is not None:
            if at.function is not None:
                functions.append(at.function)
            if (rows := at.rows) is not None:
                for function in reversed(functions):
                    rows = function(rows)
                found.append(rows)
            at = at.before
        return torch.cat(found[::-1], dim=1)
