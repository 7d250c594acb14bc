"""States of layers and models: values that can be branched, reordered and detached.

Whatever runs step by step has `initial_state(batch_size)` and `extend(x, state, lengths=None) -> (y, state)`, for
chunks of any length; running a sequence in one call, in steps or in any chunks gives the same results. `lengths` says
how many of the chunk's steps each sequence takes; the rest is padding that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..ops.lengths import length_mask

Self = TypeVar("Self", bound="State")


@dataclass(frozen=True, repr=False)
class State:
    """A value made of tensors (batch first), of other states, of tuples of them, and of numbers."""

    def __repr__(self) -> str:
        """What it is made of; of tensors only the shapes."""
        parts = ", ".join(f"{field.name}={_brief(getattr(self, field.name))}" for field in fields(self))
        return f"{type(self).__name__}({parts})"

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function` applied to each tensor."""
        return self._each(function, lambda state: state.map(function))

    def reorder(self: Self, index: Tensor) -> Self:
        """The states of the sequences `index`, as a new batch: for beam search."""
        return self._each(lambda x: x.index_select(0, index), lambda state: state.reorder(index))

    def _each(self: Self, of_tensor: Callable[[Tensor], Tensor], of_state: Callable[[Any], Any]) -> Self:
        def apply(value: Any) -> Any:
            if isinstance(value, Tensor):
                return of_tensor(value)
            if isinstance(value, tuple):
                return tuple(map(apply, value))
            return of_state(value) if hasattr(value, "map") else value

        return replace(self, **{field.name: apply(getattr(self, field.name)) for field in fields(self)})

    def detach(self: Self) -> Self:
        """The same state without its past in the autograd graph."""
        return self.map(torch.Tensor.detach)


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, tuple):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, T, ...) with zeros beyond the lengths: nan that stands there must not reach a product with zero."""
    if lengths is None:
        return x
    return x.where(length_mask(lengths, x.shape[1])[(...,) + (None,) * (x.dim() - 2)], 0)
