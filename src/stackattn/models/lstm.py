"""LSTM language models: plain, and with a stack whose reading is part of the next step's input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..nn import StackSpec, State, parse_layers
from ..nn.checks import check_positive, check_range, check_tokens, unknown_token
from ..nn.state import without_padding
from ..ops.lengths import length_mask
from .lstm_stacks import build_lstm_stack


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


class LSTMLM(nn.Module):
    """A language model: logits of the next token after each one, BOS first."""

    may_leave_parameters_unused = True  # a batch of one symbol never asks the stack: no gradient for its parameters

    def __init__(self, config: LSTMConfig):
        super().__init__()
        self.config = config
        h = config.hidden_size
        spec = _stack_spec(config)
        self.stack = None if spec is None else build_lstm_stack(spec, h)
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
        if self.stack is not None and not (self.config.published and self.stack.has_uniform_init):
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
                stack = self.stack.step(h, stack, acting, maps)
            new = torch.lstm_cell(torch.cat([x[:, t], stack.reading], dim=1), (h, c), *weights)
            if takes is None:
                (h, c), acts = new, True
            else:
                h, c = (a.where(takes[:, None], b) for a, b in zip(new, (h, c), strict=True))
                acts = takes | acts
            rows.append(h)
        return torch.stack(rows, dim=1), LSTMState(h, c, stack, state.started, acts)


def _stack_spec(config: LSTMConfig) -> StackSpec | None:
    if config.stack is None:
        return None
    if not isinstance(config.stack, str):
        raise TypeError(f"stack: expected None or text such as 'superposition-10', got {config.stack!r}")
    spec, *more = parse_layers(config.stack)
    if more or not isinstance(spec, StackSpec) or spec.heads != 1:
        raise ValueError(f"stack: expected one stack such as 'superposition-10', got {config.stack!r}")
    return spec
