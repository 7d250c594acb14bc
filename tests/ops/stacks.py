"""A common interface to the superposition and the nondeterministic stack, for tests that apply to both."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from oracles import random_transitions, relative_error
from torch import Tensor

import stackattn
from stackattn.ops import reference

BACKENDS = ("reference", "torch", "cpp")
FAST = ("torch", "cpp")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Superposition:
    names = ("actions",)
    operator = staticmethod(stackattn.superposition_weights)
    reference = staticmethod(reference.superposition_weights)

    def inputs(self, B: int, T: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return [torch.randn(B, T, 3, generator=seeded(seed), dtype=torch.float64).softmax(-1).to(dtype)]

    def state(self, B: int, backend: str = "auto") -> stackattn.SuperpositionState:
        return stackattn.SuperpositionState.empty(B, backend=backend)


@dataclass(frozen=True)
class Nondeterministic:
    """The nondeterministic stack: `scale` is that of `random_transitions`; `hidden` applies `_hide` to the inputs."""

    Q: int
    S: int
    scale: float = 1.0
    hidden: bool = False
    names = ("log_push", "log_replace", "log_pop")
    operator = staticmethod(stackattn.nondeterministic_weights)
    reference = staticmethod(reference.nondeterministic_weights)

    def inputs(self, B: int, T: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        inputs = list(
            random_transitions(B, T, self.Q, self.S, self.scale, 0.0, seeded(seed), dtype, tied=self.scale > 1)
        )
        return _hide(*inputs) if self.hidden else inputs

    def state(self, B: int, backend: str = "auto") -> stackattn.NondeterministicState:
        return stackattn.NondeterministicState.empty(B, self.Q, self.S, backend=backend)


def _hide(log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> list[Tensor]:
    """Make the last sequence leave the range of float64 at step 2.

    The largest weights of that step are from state 1 and symbol 1, but step 1 leads all runs to state 0 and symbol 0.
    """
    for x in (log_push, log_replace):
        x[-1:, 1:2].flatten(4)[..., 1:] = -torch.inf
    log_pop[-1:, 1:2] = -torch.inf
    for x in (log_push, log_replace, log_pop):
        x[-1:, 2:3, 1, 1] += 5000.0
    return [log_push, log_replace, log_pop]


Stack = Superposition | Nondeterministic
STACKS = (Superposition(), Nondeterministic(1, 2), Nondeterministic(3, 2))
HARD_STACKS = (Nondeterministic(2, 2, hidden=True), Nondeterministic(2, 3, 1000.0, hidden=True))


def operator(stack: Stack, backend: str, lengths: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda *inputs: stack.operator(*inputs, lengths, backend=backend)


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float, floor: float = 0.0) -> None:
    """Check that the largest error of each tensor relative to its largest entry is within the tolerance; nan fails."""
    errors = [relative_error(a, b, floor) for a, b in zip(found, expected, strict=True)]
    assert all(error <= tolerance for error in errors), f"relative errors {errors}"


def pieces(inputs, sizes):
    return list(zip(*(x.split(sizes, 1) for x in inputs), strict=True))


def widened(rows, columns):
    """Append zeros for the elements that are pushed later."""
    return torch.cat([rows, rows.new_zeros(*rows.shape[:2], columns - rows.shape[2], *rows.shape[3:])], 2)


def in_chunks(stack, backend, sizes, lengths=None):
    """The operator, computed with a state in chunks of the given sizes; `lengths` has one tensor per chunk."""

    def weights(*inputs):
        state, rows = stack.state(len(inputs[0]), backend), []
        for n, piece in enumerate(pieces(inputs, sizes)):
            row, state = state.extend(*piece, *([] if lengths is None else [lengths[n]]))
            rows.append(row)
        assert state.length == sum(sizes) == inputs[0].shape[1]
        return torch.cat([widened(row, rows[-1].shape[2]) for row in rows], 1)

    return weights
