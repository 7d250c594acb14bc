"""Base class of the states of layers and models: immutable values that can be reused, reordered and detached.

Layers and models that run step by step have `initial_state(batch_size)` and
`extend(x, state, lengths=None) -> (y, state)`. `extend` takes chunks of any length, and the results do not depend on
how a sequence is divided into chunks. `lengths` is the number of steps that each sequence takes; the rest of the chunk
is padding and does not change its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Self = TypeVar("Self", bound="State")


@dataclass(frozen=True, repr=False)
class State:
    """Base class: a frozen dataclass of tensors (batch first), other states, tuples of these, and numbers."""

    def __repr__(self) -> str:
        """List the fields, with shapes in place of tensors."""
        parts = ", ".join(f"{field.name}={_brief(getattr(self, field.name))}" for field in fields(self))
        return f"{type(self).__name__}({parts})"

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        first = self._first
        return first.shape[0] if isinstance(first, Tensor) else first.batch_size

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._first.device

    @property
    def _first(self) -> Any:
        """The tensor or state in the first field."""
        value = getattr(self, fields(self)[0].name)
        return value[0] if isinstance(value, tuple) else value

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to each tensor."""
        return self._each(function, lambda state: state.map(function))

    def reorder(self: Self, index: Tensor) -> Self:
        """Select the sequences `index` as a new batch, for example in beam search."""
        return self._each(lambda x: x.index_select(0, index), lambda state: state.reorder(index))

    def _each(self: Self, of_tensor: Callable[[Tensor], Tensor], of_state: Callable[[Any], Any]) -> Self:
        def apply(value: Any) -> Any:
            if isinstance(value, Tensor):
                return of_tensor(value)
            if isinstance(value, tuple):
                return tuple(map(apply, value))
            return of_state(value) if hasattr(value, "map") else value

        return replace(self, **{field.name: apply(getattr(self, field.name)) for field in fields(self)})

    def restart(self: Self, rows: Tensor) -> Self:
        """Replace the state of each sequence where `rows`, (B,), bool, is True with the one before the first step."""
        raise NotImplementedError(f"restart: expected a state of a transformer or of an attention layer, got {self!r}")

    def detach(self: Self) -> Self:
        """Detach all tensors from the autograd graph."""
        return self.map(torch.Tensor.detach)


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, tuple):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
