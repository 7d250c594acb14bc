"""What the stacks of a model do on given inputs: actions, weights, contents, heights, single runs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.lstm import LSTMLM
from ..nn import StackAttention
from ..ops import AutomatonRun, Operation, best_runs, nondeterministic_weights, sample_runs, superposition_weights
from ..ops.pytorch.log_chart import log_chart, log_sum
from .contents import nondeterministic_contents, superposition_contents


@dataclass(frozen=True)
class StackTrace(ABC):
    """What one stack did on a batch of B sequences, in T steps. Numbers are float64, on the CPU."""

    name: str
    first: int
    """The token that its first step reads: 0, or 1 where a model does not read its BOS."""

    ACTIONS: ClassVar[tuple[str, str, str]] = ("push", "no-op", "pop")
    BOTTOM: ClassVar[str] = "∅"
    """How column 0 of the weights is called: the empty stack, or a bottom that is never popped."""

    @abstractmethod
    def tops(self) -> Tensor:
        """(B, T, T + 1): the weight of each element to be on top after a step. Column 0 is the bottom, or of a
        superposition stack the share that is empty; column i + 1 is what step i pushed. Each row sums to 1."""

    @abstractmethod
    def actions(self) -> Tensor:
        """(B, T, 3): how much of each step was a push, a replace (of a superposition stack: a no-op) and a pop."""

    @abstractmethod
    def contents(self) -> Tensor:
        """(B, T, T): how likely what step i pushed is on the stack after step t, on top or below."""

    def heights(self) -> Tensor:
        """(B, T): the expected number of elements on the stack, not counting the bottom. Exact."""
        return self.contents().sum(-1)

    @abstractmethod
    def log_totals(self) -> Tensor:
        """(B,): the log of the weight of all runs together, beside which that of a single run may be seen."""

    @abstractmethod
    def best_runs(self) -> list[AutomatonRun]:
        """The run of the largest weight of each sequence."""

    @abstractmethod
    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        """Runs of each sequence, drawn in proportion to their weights."""


@dataclass(frozen=True)
class SuperpositionTrace(StackTrace):
    """Of a superposition stack. Its runs are lists of independent actions; popping nothing changes nothing."""

    probabilities: Tensor  # (B, T, 3): push, no-op, pop

    def tops(self) -> Tensor:
        weights = superposition_weights(self.probabilities)  # (B, T, T)
        return torch.cat([(1 - weights.sum(-1, keepdim=True)).clamp(min=0), weights], dim=-1)

    def actions(self) -> Tensor:
        return self.probabilities

    def contents(self) -> Tensor:
        return superposition_contents(superposition_weights(self.probabilities))

    def log_totals(self) -> Tensor:
        return self.probabilities.new_zeros(len(self.probabilities))

    def best_runs(self) -> list[AutomatonRun]:
        return [_actions_as_run(p, p.argmax(-1)) for p in self.probabilities]

    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        return [
            [_actions_as_run(p, torch.multinomial(p, 1, generator=generator)[:, 0]) for _ in range(num_samples)]
            for p in self.probabilities
        ]


@dataclass(frozen=True)
class NondeterministicTrace(StackTrace):
    """Of a nondeterministic stack."""

    transitions: tuple[Tensor, Tensor, Tensor]  # log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q)

    ACTIONS: ClassVar[tuple[str, str, str]] = ("push", "replace", "pop")
    BOTTOM: ClassVar[str] = "⊥"

    def weights(self) -> Tensor:
        """(B, T, T + 1, Q, S): `tops`, split by the automaton's state and the symbol on top."""
        return nondeterministic_weights(*self.transitions)

    def tops(self) -> Tensor:
        return self.weights().sum((-2, -1))

    def actions(self) -> Tensor:
        """Of all runs that end with a step, the share whose last move is of each kind."""
        push, replace, _ = self.transitions
        alpha = self._alpha
        before, total = alpha[:, :-1, :, :, None, None], log_sum(alpha[:, 1:], (2, 3))
        pushed, replaced = ((log_sum(before + x, (2, 3, 4, 5)) - total).exp() for x in (push, replace))
        popped = (1 - pushed - replaced).clamp(min=0)  # a pop is weighed by all the ways to push what it takes away
        return torch.stack([pushed, replaced, popped], dim=-1)

    def contents(self) -> Tensor:
        return nondeterministic_contents(*self.transitions)

    def log_totals(self) -> Tensor:
        return log_sum(self._alpha[:, -1], (1, 2))

    @cached_property
    def _alpha(self) -> Tensor:
        """(B, T + 1, Q, S): the log of the weight of all runs up to each time, by where they end."""
        return log_chart(*self.transitions, log_sum).alpha

    def best_runs(self) -> list[AutomatonRun]:
        return best_runs(*self.transitions)

    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        return sample_runs(*self.transitions, num_samples, generator=generator)


@torch.no_grad()
def watch_stacks(model: nn.Module, *inputs: Any) -> list[StackTrace]:
    """Call `model(*inputs)` in evaluation mode, and return what each of its stacks did, each head for itself.

    Any model with stack attention layers will do, as will an `LSTMLM` with a stack. A model without stacks gives an
    empty list. All sequences must be of one length: padding is not cut off.
    """
    was_training = model.training
    model.eval()
    try:
        return _watch_lstm(model, *inputs) if isinstance(model, LSTMLM) else _watch_layers(model, *inputs)
    finally:
        model.train(was_training)


def _watch_layers(model: nn.Module, *inputs: Any) -> list[StackTrace]:
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, StackAttention)}
    calls: dict[str, tuple[Any, ...]] = {}

    def keep(name: str) -> Any:
        return lambda _, arguments: calls.update({name: arguments})

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    traces: list[StackTrace] = []
    for name, arguments in calls.items():  # in the order in which they are called
        layer = layers[name]
        _, actions = layer(*arguments, return_actions=True)
        parts = [_exact(x) for x in (actions if isinstance(actions, tuple) else (actions,))]
        for head in range(layer.heads):
            of_head = [x if layer.heads == 1 else x[:, head] for x in parts]
            label = _layer_name(name) + (f", head {head + 1}" if layer.heads > 1 else "")
            traces.append(_trace(layer.kind, label, 0, of_head))
    return traces


def _watch_lstm(model: LSTMLM, tokens: Tensor) -> list[StackTrace]:
    """Step by step, as the stack's reading is part of the next input. The action of a token is what its hidden state
    says, also of the last one, whose action the model itself never takes."""
    if model.stack is None or tokens.shape[1] < 2:
        return []
    state, rows = model.initial_state(len(tokens)), []
    for t in range(tokens.shape[1]):
        _, state = model.extend(tokens[:, t : t + 1], state)
        rows.append(model.stack.to_actions(state.hidden))
    rows = rows[1:]  # BOS is not read
    logits = _exact(torch.stack(rows, dim=1))  # (B, T, actions)
    return [_trace(model.stack.kind, "the LSTM's stack", 1, list(model.stack.split_actions(logits)))]


def _trace(kind: str, name: str, first: int, actions: list[Tensor]) -> StackTrace:
    """`actions`: the arguments of the operator."""
    if kind == "superposition":
        return SuperpositionTrace(name, first, *actions)
    return NondeterministicTrace(name, first, (actions[0], actions[1], actions[2]))


def _exact(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64)


def _layer_name(path: str) -> str:
    """`stack.layers.2.attention.function` is layer 3; a module that is in no list keeps its path."""
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    part = next((part for part in ("encoder", "decoder") if path.startswith(f"{part}.")), "")
    return f"{part} layer {int(number[1]) + 1}".strip() if number else path


def _actions_as_run(probabilities: Tensor, actions: Tensor) -> AutomatonRun:
    kinds = ("push", "replace", "pop")
    operations = tuple(_Action(kinds[a], 0, None if a == 2 else 0) for a in actions.tolist())
    return _ActionRun(operations, probabilities.gather(-1, actions[:, None]).log().sum().item())


class _Action(Operation):
    """On a superposition stack, which has neither states nor symbols."""

    def __str__(self) -> str:
        return "no-op" if self.kind == "replace" else self.kind


class _ActionRun(AutomatonRun):
    """A run of a superposition stack: popping nothing changes nothing."""

    def stacks(self) -> list[list[tuple[int, int]]]:
        stack, stacks = [(-1, 0)], []
        for step, operation in enumerate(self.operations):
            if operation.kind == "push":
                stack.append((step, 0))
            elif operation.kind == "pop" and len(stack) > 1:
                stack.pop()
            stacks.append(list(stack))
        return stacks
