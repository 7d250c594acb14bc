"""Both stacks behind one interface, so that one test serves both."""

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
    Q: int
    S: int
    scale: float = 1.0
    names = ("log_push", "log_replace", "log_pop")
    operator = staticmethod(stackattn.nondeterministic_weights)
    reference = staticmethod(reference.nondeterministic_weights)

    def inputs(self, B: int, T: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return list(random_transitions(B, T, self.Q, self.S, self.scale, 0.0, seeded(seed), dtype, tied=self.scale > 1))

    def state(self, B: int, backend: str = "auto") -> stackattn.NondeterministicState:
        return stackattn.NondeterministicState.empty(B, self.Q, self.S, backend=backend)


Stack = Superposition | Nondeterministic
STACKS = (Superposition(), Nondeterministic(1, 2), Nondeterministic(3, 2))
# The second one leaves the range of plain doubles within a few steps.
HARD_STACKS = (Nondeterministic(2, 2, 30.0), Nondeterministic(2, 3, 1000.0))


def operator(stack: Stack, backend: str, lengths: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda *inputs: stack.operator(*inputs, lengths, backend=backend)


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float, floor: float = 0.0) -> None:
    """Largest error relative to the largest entry, tensor by tensor; nan is never close."""
    errors = [relative_error(a, b, floor) for a, b in zip(found, expected, strict=True)]
    assert all(error <= tolerance for error in errors), f"relative errors {errors}"
