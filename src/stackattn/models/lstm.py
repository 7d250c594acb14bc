"""LSTM language models: plain, and with a stack whose reading is part of the next step's input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, pad

from ..nn import Nondeterministic, Sdpa, State, Superposition, parse_layers
from ..nn.checks import check_positive, check_range, check_tokens, unknown_token
from ..nn.state import without_padding
from ..ops import NondeterministicState
from ..ops.lengths import length_mask


@dataclass(frozen=True)
class LSTMConfig:
    """A language model on one-hot inputs, with or without a stack."""

    input_size: int
    """Tokens, BOS among them. BOS is the last one: it is not read, it only asks for the first prediction."""
    output_size: int
    """Tokens that can be predicted."""
    hidden_size: int = 100
    stack: str | None = None
    """None, or a stack such as `superposition-10` or `nondeterministic-3-3-5`."""
    init_range: float = 0.1
    published: bool = False
    """As the published code does: the maps to the nondeterministic stack are initialised uniformly, biases too."""

    def __post_init__(self) -> None:
        check_positive(input_size=self.input_size, output_size=self.output_size, hidden_size=self.hidden_size)
        check_range(self.init_range)
        _stack_spec(self)


@dataclass(frozen=True, repr=False)
class LSTMState(State):
    hidden: Tensor  # (B, hidden_size)
    cell: Tensor  # (B, hidden_size)
    stack: Any  # the stack before the action that `hidden` chooses; None without a stack
    # Of all sequences, or (B,) where they may differ:
    started: bool | Tensor  # whether BOS has come
    acts: bool | Tensor  # whether `hidden` chooses an action, as it does once a token was read


@dataclass(frozen=True, repr=False)
class VectorStack(State):
    """A superposition stack of vectors, top first: where vectors are small, cheaper than attention weights."""

    elements: Tensor  # (B, depth, m)
    reading: Tensor  # (B, m)


@dataclass(frozen=True, repr=False)
class RunStack(State):
    stack: NondeterministicState
    values: Tensor  # (B, 1 + steps so far, m), the bottom vector first
    reading: Tensor  # (B, Q * S * m)


class _StackMaps(nn.Module):
    """From the hidden state to the actions on the stack and to the pushed vector."""

    def __init__(self, hidden_size: int, num_actions: int, m: int):
        super().__init__()
        self.to_actions = nn.Linear(hidden_size, num_actions)
        self.to_value = nn.Linear(hidden_size, m)

    def maps(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of both maps as one, for all steps of a run."""
        layers = (self.to_actions, self.to_value)
        return torch.cat([x.weight for x in layers]), torch.cat([x.bias for x in layers])

    def choose(self, hidden: Tensor, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, hidden_size) -> actions (B, num_actions) before any softmax, pushed vector (B, m)"""
        sizes = (self.to_actions.out_features, self.to_value.out_features)
        actions, value = linear(hidden, *maps).split(sizes, dim=1)
        return actions, value.sigmoid()


class _SuperpositionStack(_StackMaps):
    def __init__(self, hidden_size: int, spec: Superposition):
        super().__init__(hidden_size, 3, spec.stack_embedding_size)
        self.reading_size = spec.stack_embedding_size

    def initial_state(self, batch_size: int) -> VectorStack:
        weight = self.to_value.weight
        nothing = weight.new_zeros(batch_size, 1, self.reading_size)
        return VectorStack(nothing, nothing[:, 0])

    def step(
        self, hidden: Tensor, state: VectorStack, taken: Tensor | None, maps: tuple[Tensor, Tensor]
    ) -> VectorStack:
        actions, value = self.choose(hidden, maps)
        push, noop, pop = actions.softmax(-1)[:, :, None, None].unbind(1)  # (B, 1, 1) each
        padded = pad(state.elements, (0, 0, 0, 2))  # (B, depth + 2, m)
        at, below = padded[:, :-1], padded[:, 1:]
        above = torch.cat([value[:, None], state.elements], dim=1)  # what a push puts into each place
        elements = push * above + noop * at + pop * below
        if taken is not None:
            elements = elements.where(taken[:, None, None], at)
        return VectorStack(elements, elements[:, 0])


class _NondeterministicStack(_StackMaps):
    def __init__(self, hidden_size: int, spec: Nondeterministic):
        self.Q, self.S = Q, S = spec.num_states, spec.num_symbols
        super().__init__(hidden_size, Q * S * (2 * Q * S + Q), spec.stack_embedding_size)
        self.bottom = nn.Parameter(torch.empty(spec.stack_embedding_size))
        self.reading_size = Q * S * spec.stack_embedding_size

    def initial_state(self, batch_size: int) -> RunStack:
        values = self.bottom.sigmoid().expand(batch_size, 1, -1)
        reading = pad(values[:, 0], (0, self.reading_size - values.shape[2]))  # start state, bottom symbol
        return RunStack(NondeterministicState.empty(batch_size, self.Q, self.S, device=values.device), values, reading)

    def step(self, hidden: Tensor, state: RunStack, taken: Tensor | None, maps: tuple[Tensor, Tensor]) -> RunStack:
        Q, S = self.Q, self.S
        actions, value = self.choose(hidden, maps)
        rows = actions.reshape(-1, 1, Q, S, 2 * Q * S + Q)
        lengths = None if taken is None else taken.long()
        weights, stack = state.stack.extend_joined(rows, lengths)  # (B, 1, i, Q, S)
        values = torch.cat([state.values, value[:, None]], dim=1)
        reading = (weights.flatten(3)[:, 0].mT @ values).flatten(1)  # (B, Q * S * m)
        if taken is not None:
            reading = reading.where(taken[:, None], state.reading)
        return RunStack(stack, values, reading)


class LSTMLM(nn.Module):
    """A language model: logits of the next token after each one, BOS first."""

    may_leave_parameters_unused = True  # a batch of one symbol never asks the stack: no gradient for its parameters

    def __init__(self, config: LSTMConfig):
        super().__init__()
        self.config = config
        h = config.hidden_size
        self.stack = _make_stack(config)
        reading_size = self.stack.reading_size if self.stack is not None else 0
        self.weight_input = nn.Parameter(torch.empty(4 * h, config.input_size - 1 + reading_size))
        self.weight_hidden = nn.Parameter(torch.empty(4 * h, h))
        self.bias = nn.Parameter(torch.empty(4 * h))
        self.register_buffer("no_bias", torch.zeros(4 * h), persistent=False)  # PyTorch's LSTM wants two
        self.output = nn.Linear(h, config.output_size)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Xavier uniform for the maps to the stack and the output layer, biases 0; the rest uniform."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -self.config.init_range, self.config.init_range)
        layers = [self.output]
        published = self.config.published and isinstance(self.stack, _NondeterministicStack)
        if self.stack is not None and not published:
            layers += [self.stack.to_actions, self.stack.to_value]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, output_size). Beyond `lengths` nothing is read, and what comes out there means nothing."""
        check_tokens("tokens", tokens, lengths)
        # No state is wanted at the end, so padding may be read: what it changes comes later than every real step.
        return self.extend(without_padding(tokens, lengths), self.initial_state(tokens.shape[0]))[0]

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = self.bias.new_zeros(batch_size, self.config.hidden_size)
        return LSTMState(
            zeros, zeros, None if self.stack is None else self.stack.initial_state(batch_size), False, False
        )

    def extend(self, tokens: Tensor, state: LSTMState, lengths: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        check_tokens("tokens", tokens, lengths)
        B, c = tokens.shape
        if c == 0:
            return self.output(state.hidden[:, None][:, :0]), state
        tokens = without_padding(tokens, lengths)
        # (B, c): the steps that read a token, which BOS is not; None if all do
        taken = None if lengths is None else length_mask(lengths, c)
        rows = []
        if state.started is False:
            tokens, taken = tokens[:, 1:], None if taken is None else taken[:, 1:]
            rows = [state.hidden[:, None]]  # what predicts the first token
        elif isinstance(state.started, Tensor):
            reads = torch.cat([state.started[:, None], state.started.new_ones(B, c - 1)], dim=1)
            taken = reads if taken is None else reads & taken
        started = lengths is None or state.started is True or (lengths > 0) | state.started
        if tokens.shape[1] == 0:
            return self.output(rows[0]), replace(state, started=started)
        run = self._run if self.stack is None else self._run_with_stack
        hidden, state = run(self._one_hot(tokens), replace(state, started=started), taken)
        return self.output(torch.cat([*rows, hidden], dim=1)), state

    def _one_hot(self, tokens: Tensor) -> Tensor:
        """BOS has no place there: all zeros."""
        try:
            rows = one_hot(tokens.long(), self.config.input_size)
        except RuntimeError as error:  # on the CPU; a GPU tells later, without saying which
            raise unknown_token("tokens", tokens, self.config.input_size) or error from None
        return rows[..., :-1].to(self.bias.dtype)

    def _run(self, x: Tensor, state: LSTMState, taken: Tensor | None) -> tuple[Tensor, LSTMState]:
        weights = [self.weight_input, self.weight_hidden, self.bias, self.no_bias]
        h, c = state.hidden, state.cell
        if taken is None:
            hidden, h, c = torch.lstm(x, [h[None], c[None]], weights, True, 1, 0.0, self.training, False, True)
            return hidden, replace(state, hidden=h[0], cell=c[0])
        # The cell is wanted where each sequence ends, and the fused loop gives only the last one.
        rows = []
        for t in range(x.shape[1]):
            new = torch.lstm_cell(x[:, t], (h, c), *weights)
            h, c = (a.where(taken[:, t, None], b) for a, b in zip(new, (h, c), strict=True))
            rows.append(h)
        return torch.stack(rows, dim=1), replace(state, hidden=h, cell=c)

    def _run_with_stack(self, x: Tensor, state: LSTMState, taken: Tensor | None) -> tuple[Tensor, LSTMState]:
        assert self.stack is not None
        weights = [self.weight_input, self.weight_hidden, self.bias, self.no_bias]
        h, c, stack = state.hidden, state.cell, state.stack  # the stack's kind goes with self.stack
        acts = state.acts
        maps = self.stack.maps()
        rows = []
        for t in range(x.shape[1]):
            takes = None if taken is None else taken[:, t]
            if acts is not False:
                acting = takes if acts is True else acts if takes is None else acts & takes
                stack = self.stack.step(h, stack, acting, maps)  # pyright: ignore[reportArgumentType]
            new = torch.lstm_cell(torch.cat([x[:, t], stack.reading], dim=1), (h, c), *weights)
            if takes is None:
                (h, c), acts = new, True
            else:
                h, c = (a.where(takes[:, None], b) for a, b in zip(new, (h, c), strict=True))
                acts = takes | acts
            rows.append(h)
        return torch.stack(rows, dim=1), LSTMState(h, c, stack, state.started, acts)


def _stack_spec(config: LSTMConfig) -> Superposition | Nondeterministic | None:
    if config.stack is None:
        return None
    spec, *more = parse_layers(config.stack)
    if more or isinstance(spec, Sdpa) or spec.heads != 1:
        raise ValueError(f"stack: expected one stack such as 'superposition-10', got {config.stack!r}")
    return spec


def _make_stack(config: LSTMConfig) -> _SuperpositionStack | _NondeterministicStack | None:
    spec = _stack_spec(config)
    if spec is None:
        return None
    kind = _SuperpositionStack if isinstance(spec, Superposition) else _NondeterministicStack
    return kind(config.hidden_size, spec)  # pyright: ignore
