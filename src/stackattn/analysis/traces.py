"""Traces of a model's stacks on given inputs: actions, attention weights, contents, heights and automaton runs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.lstm import LSTMLM
from ..nn import (
    NondeterministicStackAttention,
    StackAttention,
    StratifiedStackAttention,
    SuperpositionStackAttention,
)
from ..ops import (
    AutomatonRun,
    Operation,
    best_runs,
    nondeterministic_weights,
    sample_runs,
    stratified_weights,
    superposition_weights,
)
from ..ops.pytorch.log_chart import log_chart, log_sum
from .contents import nondeterministic_contents, stratified_contents, superposition_contents


@dataclass(frozen=True)
class StackTrace(ABC):
    """Trace of one stack on a batch of B sequences with T steps. All tensors are float64 on the CPU.

    Expensive results are cached, so returned tensors must not be modified.
    """

    name: str
    first: int
    """Index of the token read at the first step: 0, or 1 if the model does not read BOS."""
    steps: tuple[Tensor, ...]
    """The tensors that the stack's operator takes, such as the log weights of push, replace and pop."""
    limit: int | None = None
    """The depth or the window of the stack; None: no limit."""

    KIND: ClassVar[str]
    """Name of the kind of stack, as in a layer specification."""
    ACTIONS: ClassVar[tuple[str, str, str]]
    """Names of the entries along the last axis of `actions`."""
    BOTTOM: ClassVar[tuple[str, str]]
    """Symbol and name of column 0 of `tops`."""
    HAS_STATES: ClassVar[bool] = False
    """Whether operations have states and stack symbols."""

    @abstractmethod
    def tops(self) -> Tensor:
        """Attention weights (B, T, T + 1): the weight of each element on top of the stack after each step.

        Column 0 is the bottom (nondeterministic) or the empty share (other stacks); column i + 1 is the element
        pushed at step i. Each row sums to 1, or is zero if no run reaches that step.
        """

    @abstractmethod
    def actions(self) -> Tensor:
        """Shares (B, T, 3) of push, replace or no-op (see `ACTIONS`), and pop at each step."""

    @abstractmethod
    def contents(self) -> Tensor:
        """Probability (B, T, T) that the element pushed at step i is anywhere on the stack after step t."""

    def heights(self) -> Tensor:
        """Exact expected number of elements on the stack (B, T), not counting the bottom."""
        return self.contents().sum(-1)

    def split_tops(self) -> Tensor | None:
        """`tops` split by state and top symbol, (B, T, T + 1, Q, S); None for stacks without states."""
        return None

    @abstractmethod
    def log_totals(self) -> Tensor:
        """Log of the total weight of all runs of the automaton, (B,)."""

    @abstractmethod
    def best_runs(self) -> list[AutomatonRun]:
        """The run with the largest weight, for each sequence."""

    @abstractmethod
    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        """`num_samples` runs of each sequence, sampled in proportion to their weights."""


@dataclass(frozen=True)
class SuperpositionTrace(StackTrace):
    """Trace of a superposition stack. A run is a list of independent actions; popping an empty stack has no effect."""

    KIND: ClassVar[str] = SuperpositionStackAttention.kind
    ACTIONS: ClassVar[tuple[str, str, str]] = ("push", "no-op", "pop")
    BOTTOM: ClassVar[tuple[str, str]] = ("∅", "empty")

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of push, no-op and pop, (B, T, 3)."""
        (probabilities,) = self.steps
        return probabilities

    def tops(self) -> Tensor:
        weights = self._weights
        return torch.cat([(1 - weights.sum(-1, keepdim=True)).clamp(min=0), weights], dim=-1)

    def actions(self) -> Tensor:
        return self.probabilities

    def contents(self) -> Tensor:
        return self._contents

    @cached_property
    def _weights(self) -> Tensor:
        return superposition_weights(self.probabilities, depth=self.limit)  # (B, T, T)

    @cached_property
    def _contents(self) -> Tensor:
        return superposition_contents(self.probabilities, self.limit)

    def log_totals(self) -> Tensor:
        return self.probabilities.new_zeros(len(self.probabilities))

    def best_runs(self) -> list[AutomatonRun]:
        return [self._as_run(p, p.argmax(-1)) for p in self.probabilities]

    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        return [
            [self._as_run(p, torch.multinomial(p, 1, generator=generator)[:, 0]) for _ in range(num_samples)]
            for p in self.probabilities
        ]

    def _as_run(self, probabilities: Tensor, actions: Tensor) -> AutomatonRun:
        kinds = ("push", "replace", "pop")
        operations = tuple(_Action(kinds[a], 0, None if a == 2 else 0) for a in actions.tolist())
        log_weight = probabilities.gather(-1, actions[:, None]).log().sum().item()
        return _ActionRun(operations, log_weight, self.limit)


@dataclass(frozen=True)
class NondeterministicTrace(StackTrace):
    """Trace of a nondeterministic stack; the steps are log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S) and (B,T,Q,S,Q)."""

    KIND: ClassVar[str] = NondeterministicStackAttention.kind
    ACTIONS: ClassVar[tuple[str, str, str]] = ("push", "replace", "pop")
    BOTTOM: ClassVar[tuple[str, str]] = ("⊥", "bottom")
    HAS_STATES: ClassVar[bool] = True

    def split_tops(self) -> Tensor:
        return self._weights

    def tops(self) -> Tensor:
        return self._weights.sum((-2, -1))

    def actions(self) -> Tensor:
        """Share of all runs up to a step whose last transition is of each kind; zero if no run reaches the step."""
        push, replace, _ = self.steps
        alpha, _ = self._alpha_and_contents
        before, total = alpha[:, :-1, :, :, None, None], log_sum(alpha[:, 1:], (2, 3))
        reached = total > -torch.inf
        pushed, replaced = (
            (log_sum(before + x, (2, 3, 4, 5)) - total).exp().where(reached, 0) for x in (push, replace)
        )
        # Summing pops directly needs the inner weights of their pushes.
        popped = (reached.to(pushed.dtype) - pushed - replaced).clamp(min=0)
        return torch.stack([pushed, replaced, popped], dim=-1)

    def contents(self) -> Tensor:
        _, contents = self._alpha_and_contents
        return contents

    def log_totals(self) -> Tensor:
        alpha, _ = self._alpha_and_contents
        return log_sum(alpha[:, -1], (1, 2))

    @cached_property
    def _weights(self) -> Tensor:
        return nondeterministic_weights(*self.steps, window=self.limit)  # (B, T, T + 1, Q, S)

    @cached_property
    def _alpha_and_contents(self) -> tuple[Tensor, Tensor]:
        """Log of the total weight of all runs up to each time (B, T + 1, Q, S), and the contents (B, T, T).

        Both come from one chart, which is not kept because it is much larger.
        """
        push, replace, pop = self.steps
        chart = log_chart(push, replace, pop, log_sum, self.limit)
        return chart.alpha, nondeterministic_contents(push, replace, chart)

    def best_runs(self) -> list[AutomatonRun]:
        return best_runs(*self.steps, window=self.limit)

    def sample_runs(self, num_samples: int, generator: torch.Generator | None = None) -> list[list[AutomatonRun]]:
        push, replace, pop = self.steps
        return sample_runs(push, replace, pop, num_samples, generator=generator, window=self.limit)


@dataclass(frozen=True)
class StratifiedTrace(SuperpositionTrace):
    """Trace of a stratified stack; the steps are the push and pop strengths (B, T).

    `contents` are strengths, not probabilities, and `heights` are their sums. The stack itself has no runs. In the runs
    of the trace, a step pushes with probability `push` and otherwise pops with probability `pop`; the attention weights
    are not averages over these runs.
    """

    KIND: ClassVar[str] = StratifiedStackAttention.kind

    @property
    def probabilities(self) -> Tensor:
        push, pop = self.steps
        return torch.stack([push, (1 - push) * (1 - pop), (1 - push) * pop], dim=-1)

    @cached_property
    def _weights(self) -> Tensor:
        return stratified_weights(*self.steps)  # (B, T, T)

    @cached_property
    def _contents(self) -> Tensor:
        return stratified_contents(*self.steps)


TRACES: dict[str, type[StackTrace]] = {
    trace.KIND: trace for trace in (SuperpositionTrace, NondeterministicTrace, StratifiedTrace)
}
"""Trace classes by kind of stack, for the kinds of `stackattn.nn.kinds`."""


def trace_stacks(model: nn.Module, *inputs: Any) -> list[StackTrace]:
    """Run a model in evaluation mode and trace each of its stacks.

    Args:
        model: any model with stack attention layers, or an `LSTMLM` with a stack.
        inputs: arguments of `model`, on any device. All sequences must have the same length: padding is traced like
            real tokens.

    Returns:
        One trace per stack, named as in `stack_names`. Each head of a layer is a separate stack. The list is empty for
        a model without stacks.

    Examples::

        for trace in trace_stacks(model, tokens):   # tokens (B, T)
            print(trace.name, trace.tops().shape)   # (B, T, T + 1)
    """
    return trace_forward(model, *inputs)[1]


@torch.no_grad()
def trace_forward(model: nn.Module, *inputs: Any) -> tuple[Any, list[StackTrace]]:
    """Return the output of a model in evaluation mode together with the traces of its stacks: see `trace_stacks`.

    Examples::

        logits, traces = trace_forward(model, tokens)   # tokens (B, T) -> logits (B, T, output_size)
    """
    inputs = _on_device_of(model, inputs)
    with _evaluating(model):
        if isinstance(model, LSTMLM):
            return model(*inputs), _trace_lstm(model, *inputs)
        return _trace_layers(model, *inputs)


def stack_names(model: nn.Module) -> list[str]:
    """Names of the stacks of a model, such as `layer 3` or `encoder layer 3, head 1`, in the order of its layers."""
    if isinstance(model, LSTMLM):
        return [] if model.stack is None else [LSTM_STACK]
    return [name for path, layer in _stack_layers(model) for name in _head_names(path, layer)]


LSTM_STACK = "LSTM stack"


def _on_device_of(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    device = next((parameter.device for parameter in model.parameters()), None)
    return tuple(x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in inputs)


def _stack_layers(model: nn.Module) -> Iterator[tuple[str, StackAttention]]:
    """Stack attention layers with their paths, in the order of the model's layers."""
    return ((path, layer) for path, layer in model.named_modules() if isinstance(layer, StackAttention))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _trace_layers(model: nn.Module, *inputs: Any) -> tuple[Any, list[StackTrace]]:
    layers = dict(_stack_layers(model))
    actions: dict[str, tuple[Tensor, ...]] = {}

    def keep(path: str) -> Any:
        return lambda layer, arguments: actions.update({path: layer.actions(*arguments)})

    hooks = [layer.register_forward_pre_hook(keep(path)) for path, layer in layers.items()]
    try:
        output = model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    traces: list[StackTrace] = []
    for path, layer in layers.items():
        if path not in actions:
            continue
        parts = [_exact(x) for x in actions[path]]
        for head, name in enumerate(_head_names(path, layer)):
            of_head = tuple(x if layer.heads == 1 else x[:, head] for x in parts)
            traces.append(TRACES[layer.kind](name, 0, of_head, layer.limit))
    return output, traces


def _trace_lstm(model: LSTMLM, tokens: Tensor) -> list[StackTrace]:
    """Trace step by step, because the reading of the stack is part of the next input.

    Each hidden state selects an action, including the last one, whose action the model does not perform.
    """
    if model.stack is None or tokens.shape[1] < 2:
        return []
    state, rows = model.initial_state(len(tokens)), []
    for t in range(tokens.shape[1]):
        _, state = model.extend(tokens[:, t : t + 1], state)
        rows.append(model.stack.to_actions(state.hidden))
    logits = _exact(torch.stack(rows[1:], dim=1))  # (B, T, actions); BOS is not read
    actions, trace = model.stack.split_actions(logits), TRACES[model.stack.kind]
    return [trace(LSTM_STACK, 1, actions, model.stack.limit)]


def _exact(x: Tensor) -> Tensor:
    return x.detach().cpu().double()


def _head_names(path: str, layer: StackAttention) -> list[str]:
    name = _layer_name(path)
    return [name] if layer.heads == 1 else [f"{name}, head {head + 1}" for head in range(layer.heads)]


def _layer_name(path: str) -> str:
    """`trunk.layers.2.attention.function` is layer 3; a module outside any list keeps its path."""
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    part = next((part for part in ("encoder", "decoder") if path.startswith(f"{part}.")), "")
    return f"{part} layer {int(number[1]) + 1}".strip() if number else path


class _Action(Operation):
    """An action on a superposition stack, which has neither states nor symbols."""

    def __str__(self) -> str:
        return "no-op" if self.kind == "replace" else self.kind


@dataclass(frozen=True)
class _ActionRun(AutomatonRun):
    """A run of a superposition stack: popping an empty stack has no effect, and at most `depth` elements are kept."""

    depth: int | None

    def stacks(self) -> list[list[tuple[int, int]]]:
        stack, stacks = [(-1, 0)], []
        for step, operation in enumerate(self.operations):
            if operation.kind == "push":
                stack.append((step, 0))
            elif operation.kind == "pop" and len(stack) > 1:
                stack.pop()
            if self.depth is not None and len(stack) > 1 + self.depth:
                del stack[1]
            stacks.append(list(stack))
        return stacks
