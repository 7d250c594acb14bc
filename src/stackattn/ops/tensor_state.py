"""Base class of the operators' states, each of which is a stack: tensors and a number of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from . import checks
from .dispatch import choose

Self = TypeVar("Self", bound="TensorState")


class TensorState(ABC):
    """The methods that all immutable states share."""

    LIMIT: ClassVar[str | None] = None
    """Name of the attribute that limits the size of the state, or None if there is none."""

    length: int
    """Number of steps so far, including padding."""
    _backend: str
    _tensor: Tensor
    """One of the state's tensors; its first axis is the batch."""

    @abstractmethod
    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function` applied to each of its tensors. Their first axis is the batch."""

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        return self._tensor.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._tensor.device

    def __repr__(self) -> str:
        limit = "" if self.LIMIT is None else f", {self.LIMIT}={getattr(self, self.LIMIT)}"
        return f"{type(self).__name__}(batch_size={self.batch_size}, length={self.length}{limit}, device={self.device})"

    def reorder(self: Self, index: Tensor) -> Self:
        """A new batch of the sequences at the positions `index`, a vector of integers; repetitions are allowed."""
        index = checks.check_index(index, self)
        return self.map(lambda x: x.index_select(0, index))

    @abstractmethod
    def restart(self: Self, rows: Tensor) -> Self:
        """The same state, with the initial stack for each sequence where `rows`, (B,), bool, is True."""

    def detach(self: Self) -> Self:
        """The same state, detached from the autograd graph."""
        return self.map(torch.Tensor.detach)

    def to(self: Self, device: torch.device | str) -> Self:
        """The same state on another device, with the backend that `"auto"` selects there."""
        moved = self.map(lambda x: x.to(device))
        moved._backend = choose("auto", moved.device) if moved.device != self.device else self._backend
        return moved
