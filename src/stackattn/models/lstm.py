"""LSTM language models: without a stack, or with a stack whose reading is part of the LSTM's next input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, pad

from ..nn import State
from ..nn.checks import check_state, check_tokens, unknown_token
from ..nn.linear import Linear
from ..ops import by_documents
from ..ops.checks import checked_lengths
from ..ops.eager import is_plain
from ..ops.lengths import length_mask, without_padding
from .configs import LSTMConfig
from .lstm_stacks import build_lstm_stack


@dataclass(frozen=True, repr=False)
class LSTMState(State):
    """State of an LSTM language model between two calls to `extend`."""

    hidden: Tensor  # (B, hidden_size)
    cell: Tensor  # (B, hidden_size)
    stack: Any  # state of the stack before the action that `hidden` selects; None without a stack
    # The flags are bools if all sequences are known to agree, and otherwise tensors (B,).
    started: bool | Tensor  # whether BOS has been read
    acts: bool | Tensor  # whether `hidden` selects an action: true once a token after BOS has been read


class LSTMLM(nn.Module):
    """A language model on one-hot inputs: after each token, the logits of the next one. The first token is BOS.

    Args:
        config: sizes and options.

    Examples::

        model = LSTMLM(LSTMConfig(input_size=8, output_size=8, hidden_size=93, stack="superposition-10"))
        logits = model(tokens, lengths)                               # (B, T) and (B,) -> (B, T, 8)
    """

    may_leave_parameters_unused = True  # the stack takes no action if no sequence is longer than BOS and one token

    def __init__(self, config: LSTMConfig):
        super().__init__()
        self.config = config
        h = config.hidden_size
        spec = config.stack_spec
        self.stack = None if spec is None else build_lstm_stack(spec, h)
        reading_size = self.stack.reading_size if self.stack is not None else 0
        self.weight_input = nn.Parameter(torch.empty(4 * h, config.input_size - 1 + reading_size))
        self.weight_hidden = nn.Parameter(torch.empty(4 * h, h))
        self.bias = nn.Parameter(torch.empty(4 * h))
        self.register_buffer("no_bias", torch.zeros(4 * h), persistent=False)  # PyTorch's LSTM takes two biases
        self.output = Linear(h, config.output_size)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Output layer and, by default, maps to the stack: Xavier uniform, biases 0. All others: uniform."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -self.config.init_range, self.config.init_range)
        layers = [self.output]
        uniform = self.config.stack_init == "uniform"
        if self.stack is not None and not (uniform and self.stack.has_uniform_init):
            layers += [self.stack.to_actions, self.stack.to_value]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Compute logits: tokens (B, T) and lengths (B,) -> (B, T, output_size).

        The first token of each sequence, and of each document of `starts`, is BOS. Arguments and errors are those of
        `TransformerLM.forward`.
        """
        check_tokens("tokens", tokens, lengths, self.bias)
        if starts is not None:
            return by_documents(self.forward, starts, tokens, lengths=lengths)
        # Reading the padding is safe here: it affects only later steps and the final state, which is discarded.
        tokens = without_padding(tokens, checked_lengths(lengths, tokens.shape[1]))
        hidden = self._unroll_in_one_call(tokens)
        if hidden is not None:
            return self.output(hidden)
        return self.extend(tokens, self.initial_state(tokens.shape[0]))[0]

    def initial_state(self, batch_size: int) -> LSTMState:
        """Create the state before BOS."""
        zeros = self.bias.new_zeros(batch_size, self.config.hidden_size)
        stack = None if self.stack is None else self.stack.initial_state(batch_size)
        return LSTMState(zeros, zeros, stack, started=False, acts=False)

    def extend(self, tokens: Tensor, state: LSTMState, lengths: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """Read T more tokens: tokens (B, T) -> logits (B, T, output_size) and the new state.

        Raises:
            ValueError, TypeError: as in `forward`, or the state does not fit the model or the batch.
        """
        check_tokens("tokens", tokens, lengths, self.bias)
        check_state(state, LSTMState, "tokens", tokens)
        if (state.stack is None) != (self.stack is None):
            with_or_without = "without" if self.stack is None else "with"
            raise TypeError(f"state: expected the state of a model {with_or_without} a stack")
        B, c = tokens.shape
        lengths = checked_lengths(lengths, tokens.shape[1])
        if c == 0:
            return self.output(state.hidden[:, None][:, :0]), state
        tokens = without_padding(tokens, lengths)
        # (B, c): steps that update the LSTM, which BOS and padding do not; None if all do
        taken = None if lengths is None else length_mask(lengths, c)
        rows = []
        if state.started is False:
            tokens, taken = tokens[:, 1:], None if taken is None else taken[:, 1:]
            rows = [state.hidden[:, None]]  # predicts the first token
        elif isinstance(state.started, Tensor):
            reads = torch.cat([state.started[:, None], state.started.new_ones(B, c - 1)], dim=1)
            taken = reads if taken is None else reads & taken
        started = lengths is None or state.started is True or (lengths > 0) | state.started
        if tokens.shape[1] == 0:
            return self.output(rows[0]), replace(state, started=started)
        unroll = self._unroll if self.stack is None else self._unroll_with_stack
        hidden, state = unroll(self._one_hot(tokens), replace(state, started=started), taken)
        return self.output(torch.cat([*rows, hidden], dim=1)), state

    def _one_hot(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, input_size - 1); BOS is all zeros."""
        try:
            rows = one_hot(tokens.long(), self.config.input_size)
        except RuntimeError as error:  # raised on the CPU only
            raise unknown_token("tokens", tokens, self.config.input_size) or error from None
        return rows[..., :-1].to(self.bias.dtype)

    def _unroll_in_one_call(self, tokens: Tensor) -> Tensor | None:
        """Compute the hidden states (B, T, hidden_size) with the kernel; None if it does not support the inputs.

        A batch of sequences of at most BOS and one token is not supported: the stack takes no action, so the parameters
        of its maps must have no gradients, whereas the kernel would return zeros.
        """
        if self.stack is None or tokens.shape[1] < 3 or not is_plain(self.bias):
            return None
        size = self.config.input_size - 1
        inputs = linear(self._one_hot(tokens[:, 1:]), self.weight_input[:, :size], self.bias)  # (B, T - 1, 4 h)
        maps = self.stack.maps()
        if not is_plain(inputs, self.weight_input, self.weight_hidden, *maps):
            return None
        hidden = self.stack.unroll_lstm(inputs, self.weight_input[:, size:], self.weight_hidden, maps)
        return None if hidden is None else pad(hidden, (0, 0, 1, 0))  # zeros predict the first token

    def _unroll(self, x: Tensor, state: LSTMState, taken: Tensor | None) -> tuple[Tensor, LSTMState]:
        weights = [self.weight_input, self.weight_hidden, self.bias, self.no_bias]
        h, c = state.hidden, state.cell
        if taken is None:
            hidden, h, c = torch.lstm(
                x,
                [h[None], c[None]],
                weights,
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=self.training,
                bidirectional=False,
                batch_first=True,
            )
            return hidden, replace(state, hidden=h[0], cell=c[0])
        # The new state needs the cell at the end of each sequence, but the fused loop returns only the last cell.
        rows = []
        for t in range(x.shape[1]):
            new = torch.lstm_cell(x[:, t], (h, c), *weights)
            h, c = (a.where(taken[:, t, None], b) for a, b in zip(new, (h, c), strict=True))
            rows.append(h)
        return torch.stack(rows, dim=1), replace(state, hidden=h, cell=c)

    def _unroll_with_stack(self, x: Tensor, state: LSTMState, taken: Tensor | None) -> tuple[Tensor, LSTMState]:
        assert self.stack is not None
        weights = [self.weight_input, self.weight_hidden, self.bias, self.no_bias]
        h, c, stack = state.hidden, state.cell, state.stack
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
