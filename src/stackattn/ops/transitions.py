"""The transitions of a step as rows of one tensor, and the rows of all steps that a state has taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def join_transitions(log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> Tensor:
    """The transitions from each state and symbol as one row, (B, c, Q, S, Q S + Q S + Q): push, replace, pop."""
    return torch.cat([log_push.flatten(4), log_replace.flatten(4), log_pop], dim=-1)


def split_transitions(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    Q, S = rows.shape[2:4]
    push, replace, pop = rows.split((Q * S, Q * S, Q), dim=-1)
    return push.unflatten(-1, (Q, S)), replace.unflatten(-1, (Q, S)), pop


class History(NamedTuple):
    """The rows of all steps so far, the last ones first: what exact arithmetic would start from again.

    That is rarely wanted, so what happens to a state (reordering, detaching) is written down here, and done then.
    """

    before: History | None
    rows: Tensor | None  # of some steps, or
    function: Callable[[Tensor], Tensor] | None  # what was done to all that came before

    def steps(self) -> Tensor:
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
