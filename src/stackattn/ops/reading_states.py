"""Stacks that are extended step by step and return readings, as immutable states.

Such a state contains the pushed vectors, and attention weights are not computed. With a limited depth, its size and
the cost of a step do not grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import checks, vectors
from .dispatch import choose, choose_for_state


class SuperpositionReadingState:
    """The state of a superposition stack as its vectors. States are immutable: `extend` returns a new one.

    Examples::

        >>> import torch
        >>> from stackattn import SuperpositionReadingState
        >>> state = SuperpositionReadingState.empty(batch_size=2, value_size=5, depth=64)
        >>> for _ in range(100):
        ...     readings, state = state.extend(torch.rand(2, 1, 3).softmax(-1), torch.rand(2, 1, 5))  # (B, 1, m)
        >>> state
        SuperpositionReadingState(batch_size=2, length=100, depth=64, device=cpu)
    """

    def __init__(self, stack: Tensor, length: int, depth: int | None, backend: str):
        self._stack = stack  # (B, height, m), the top first
        self._backend = backend
        self.length = length
        self.depth = depth

    @classmethod
    def empty(
        cls,
        batch_size: int,
        value_size: int,
        *,
        depth: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        backend: str = "auto",
    ) -> SuperpositionReadingState:
        """States of `batch_size` empty stacks.

        Args:
            batch_size: number of stacks.
            value_size: size m of the vectors.
            depth: number of elements that are kept, the top ones; None: all.
            dtype: dtype of the readings. The stack is float64 if this is float64, and float32 otherwise.
            device: device of the stack.
            backend: `"auto"`, `"torch"` or `"cpp"`.
        """
        checks.check_count("batch_size", batch_size, least=0)
        checks.check_count("value_size", value_size)
        checks.check_limit("depth", depth)
        if dtype not in checks.FLOATS:
            raise TypeError(f"dtype: expected one of float32, float64, bfloat16, float16, got {dtype}")
        dtype = vectors.computing_dtype(dtype)
        stack = torch.zeros(batch_size, 0, value_size, dtype=dtype, device=device)
        return cls(stack, 0, depth, choose_for_state(backend, stack.device))

    @property
    def batch_size(self) -> int:
        return self._stack.shape[0]

    @property
    def device(self) -> torch.device:
        return self._stack.device

    def __repr__(self) -> str:
        sizes = f"batch_size={self.batch_size}, length={self.length}, depth={self.depth}"
        return f"{type(self).__name__}({sizes}, device={self.device})"

    def extend(
        self, actions: Tensor, values: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, SuperpositionReadingState]:
        """Extend the stack by c steps.

        Args:
            actions: (B, c, 3)
                Weights of push, no-op and pop.
            values: (B, c, m)
                The vectors that are pushed.
            lengths: (B,), optional
                Number of the c steps that each sequence takes. Later steps are ignored; their readings are zero.

        Returns:
            Readings (B, c, m), and the new state.
        """
        checks.check_actions(actions, lengths)
        checks.check_same_batch("actions", actions, self)
        checks.check_values(values, actions, actions.shape[1])
        if values.shape[2] != self._stack.shape[2]:
            raise ValueError(f"values: expected size {self._stack.shape[2]} like the state, got {values.shape[2]}")
        readings, stack = vectors.read_stack(actions, values, self._stack, lengths, self.depth, self._backend)
        return readings, type(self)(stack, self.length + actions.shape[1], self.depth, self._backend)

    def reorder(self, index: Tensor) -> SuperpositionReadingState:
        """A new batch of the states at the positions `index`, a vector of integers; repetitions are allowed."""
        index = checks.check_index(index, self)
        return self.map(lambda x: x.index_select(0, index))

    def detach(self) -> SuperpositionReadingState:
        """The same state, detached from the autograd graph."""
        return self.map(torch.Tensor.detach)

    def to(self, device: torch.device | str) -> SuperpositionReadingState:
        """The same state on another device."""
        moved = self.map(lambda x: x.to(device))
        moved._backend = choose("auto", moved.device) if moved.device != self.device else self._backend
        return moved

    def map(self, function: Callable[[Tensor], Tensor]) -> SuperpositionReadingState:
        """The same state with `function` applied to each of its tensors. Their first axis is the batch."""
        return type(self)(function(self._stack), self.length, self.depth, self._backend)
