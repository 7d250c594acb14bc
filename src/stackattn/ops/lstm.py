"""LSTMs with a stack, all steps in one call.

A loop over time steps in Python spends most of its time on the overhead of small operations. The kernel runs the loop,
and the gradients of the weights are matrix products over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from .cpp import network
from .eager import backward_is_differentiated, differentiable_gradients
from .readings import nondeterministic_readings
from .transitions import split_transitions


def superposition_lstm(
    inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, map: Tensor, bias: Tensor
) -> Tensor:
    """Hidden states of an LSTM that starts from zeros and an empty stack.

    At each step except the first, the previous hidden state determines the actions (softmax) and the value to push
    (sigmoid), and the top of the stack is part of the input of the step. All tensors must be float32 on the CPU.

    Args:
        inputs: (B, T, 4 h), the contribution of the input and the bias to the input, forget, cell and output gates.
        weight_reading: (4 h, m), from the reading to the gates.
        weight_hidden: (4 h, h), from the previous hidden state to the gates.
        map: (3 + m, h), from the previous hidden state to the logits of push, no-op and pop and to the value.
        bias: (3 + m,), added to the result of `map`.

    Returns:
        (B, T, h)

    Examples::

        hidden = superposition_lstm(x @ weight.T, weight_reading, weight_hidden, map, bias)
    """
    hidden = _run((inputs, weight_reading, weight_hidden, map, bias), None)
    assert hidden is not None
    return hidden


def nondeterministic_lstm(
    inputs: Tensor,
    weight_reading: Tensor,
    weight_hidden: Tensor,
    map: Tensor,
    bias: Tensor,
    bottom: Tensor,
    num_states: int,
) -> Tensor | None:
    """Hidden states of an LSTM that starts from zeros and a nondeterministic stack with only the bottom element.

    At each step except the first, the previous hidden state determines the transitions and the value to push (sigmoid);
    the reading is part of the input of each step. All tensors must be float32 on the CPU.

    Args:
        inputs: (B, T, 4 h), the contribution of the input and the bias to the input, forget, cell and output gates.
        weight_reading: (4 h, Q S m), from the reading to the gates.
        weight_hidden: (4 h, h), from the previous hidden state to the gates.
        map: (Q S (2 Q S + Q) + m, h), from the previous hidden state to the log weights of push, replace and pop from
            each state and symbol, and to the value.
        bias: (Q S (2 Q S + Q) + m,), added to the result of `map`.
        bottom: (m,), the bottom vector.
        num_states: Q.

    Returns:
        (B, T, h), or None if a log weight is nan or +inf, or if the range of float64 does not suffice.

    Examples::

        hidden = nondeterministic_lstm(x @ weight.T, weight_reading, weight_hidden, map, bias, bottom, num_states=2)
    """
    automaton = num_states, weight_reading.shape[1] // (num_states * bottom.shape[0])
    return _run((inputs, weight_reading, weight_hidden, map, bias, bottom), automaton)


def superposition_reference(
    inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, map: Tensor, bias: Tensor
) -> Tensor:
    """`superposition_lstm` as a loop of PyTorch operations, for any dtype and device."""
    m = weight_reading.shape[1]
    stack = inputs.new_zeros(inputs.shape[0], 0, m)

    def act(hidden: Tensor) -> Tensor:
        nonlocal stack
        actions, value = linear(hidden, map, bias).split((3, m), dim=1)
        push, noop, pop = actions.softmax(-1)[:, :, None, None].unbind(1)  # (B, 1, 1) each
        below = pad(stack, (0, 0, 0, 2))  # (B, depth + 2, m)
        above = torch.cat([value.sigmoid()[:, None], stack], dim=1)  # (B, depth + 1, m)
        stack = push * above + noop * below[:, :-1] + pop * below[:, 1:]
        return stack[:, 0]

    return _loop(inputs, weight_reading, weight_hidden, inputs.new_zeros(inputs.shape[0], m), act)


def nondeterministic_reference(*tensors: Tensor, num_states: int) -> Tensor:
    """`nondeterministic_lstm` as a loop that recomputes all readings so far at each step: slow and exact."""
    inputs, weight_reading, weight_hidden, map, bias, bottom = tensors
    Q, m = num_states, bottom.shape[0]
    S = weight_reading.shape[1] // (Q * m)
    values = bottom.expand(inputs.shape[0], 1, m)
    transitions = inputs.new_zeros(inputs.shape[0], 0, Q, S, 2 * Q * S + Q)

    def act(hidden: Tensor) -> Tensor:
        nonlocal values, transitions
        logits, value = linear(hidden, map, bias).tensor_split([-m], dim=1)
        values = torch.cat([values, value.sigmoid()[:, None]], dim=1)
        transitions = torch.cat([transitions, logits.reshape(-1, 1, *transitions.shape[2:])], dim=1)
        steps = split_transitions(transitions)
        return nondeterministic_readings(*steps, values, backend="reference")[:, -1].flatten(1)

    return _loop(inputs, weight_reading, weight_hidden, pad(values[:, 0], (0, (Q * S - 1) * m)), act)


def _loop(
    inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, reading: Tensor, act: Callable[[Tensor], Tensor]
) -> Tensor:
    """An LSTM that starts with `reading`; `act` maps the previous hidden state to the next reading."""
    hidden = cell = inputs.new_zeros(inputs.shape[0], weight_hidden.shape[1])
    rows = []
    for t in range(inputs.shape[1]):
        if t:
            reading = act(hidden)
        gates = inputs[:, t] + linear(hidden, weight_hidden) + linear(reading, weight_reading)
        enter, forget, candidate, show = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows, dim=1) if rows else hidden[:, None][:, :0]


def _run(arguments: tuple[Tensor, ...], automaton: tuple[int, int] | None) -> Tensor | None:
    """Call the kernel; `automaton` is (Q, S), or None for a superposition stack."""
    inputs, weight_reading, weight_hidden, map, bias, *bottom = arguments
    m = bottom[0].shape[0] if bottom else weight_reading.shape[1]
    layout = _Layout(inputs.shape[2] // 4, weight_reading.shape[1], map.shape[0] - m, m)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in arguments)
    with torch.no_grad():
        weight, choice = layout.gate_weights(weight_reading, weight_hidden), layout.map_weights(map)
        rows = layout.gates(inputs), weight, choice, layout.map_bias(bias)
        if automaton is None:
            made = network.superposition_lstm(layout.sizes, *rows)
        else:
            made = network.nondeterministic_lstm(layout.sizes, automaton, *rows, bottom[0].contiguous(), keep)
    if made is None:
        return None
    if not keep:
        return layout.hidden(made[0]).contiguous()
    return _LSTM.apply(layout, automaton, len(arguments), *arguments, weight, choice, *made)  # pyright: ignore[reportReturnType]


class _LSTM(torch.autograd.Function):
    """The backward pass of a kernel call that has already been made; its results are the last arguments."""

    @staticmethod
    def forward(ctx, layout, automaton, count, *tensors):
        ctx.layout, ctx.automaton, ctx.count = layout, automaton, count
        ctx.save_for_backward(*tensors)
        return layout.hidden(tensors[count + 2]).contiguous()

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        arguments, (weight, choice, *made) = saved[: ctx.count], saved[ctx.count :]
        none = (None,) * (2 + len(made))
        if backward_is_differentiated():
            reference = superposition_reference
            if ctx.automaton is not None:
                reference = partial(nondeterministic_reference, num_states=ctx.automaton[0])
            return None, None, None, *differentiable_gradients(reference, arguments, grad), *none
        layout = ctx.layout
        inputs = made, weight.T.contiguous(), choice.T.contiguous(), layout.hidden_gradient(grad)
        if ctx.automaton is None:
            rows, bottom = network.superposition_lstm_backward(layout.sizes, *inputs), ()
        else:
            *rows, bottoms = network.nondeterministic_lstm_backward(layout.sizes, ctx.automaton, *inputs)
            bottom = (bottoms.sum(0),)
        return None, None, None, *layout.gradients(*rows, made[0]), *bottom, *none


class _Layout:
    """Conversion of tensors to the layout of the kernel: sizes padded to multiples of 8, time first."""

    def __init__(self, hidden: int, reading: int, actions: int, value: int):
        self.h, self.reading, self.actions, self.value = hidden, reading, actions, value
        h, r, a, v = (-(-n // 8) * 8 for n in (hidden, reading, actions, value))
        self.sizes = network.LSTMSizes(h, r, a, v, value)

    def gates(self, inputs: Tensor) -> Tensor:
        """(B, T, 4 h) -> (T, B, 4 h)"""
        x = inputs.unflatten(-1, (4, self.h)).transpose(0, 1)
        return pad(x, (0, self.sizes.hidden - self.h)).flatten(2).contiguous()

    def gate_weights(self, reading: Tensor, hidden: Tensor) -> Tensor:
        """(4 h, reading) and (4 h, h) -> (reading + h, 4 h)"""
        at, h = self.sizes.reading, self.sizes.hidden
        weight = hidden.new_zeros(at + h, 4, h)
        weight[: self.reading, :, : self.h] = reading.unflatten(0, (4, self.h)).permute(2, 0, 1)
        weight[at : at + self.h, :, : self.h] = hidden.unflatten(0, (4, self.h)).permute(2, 0, 1)
        return weight.flatten(1)

    def map_weights(self, map: Tensor) -> Tensor:
        """(actions + value, h) -> (h, actions + value)"""
        return pad(self._spread(map).T, (0, 0, 0, self.sizes.hidden - self.h)).contiguous()

    def map_bias(self, bias: Tensor) -> Tensor:
        return self._spread(bias)

    def hidden(self, x: Tensor) -> Tensor:
        """The inputs of all steps, (T + 1, B, reading + h) -> hidden states (B, T, h)"""
        return x[1:, :, self.sizes.reading : self.sizes.reading + self.h].transpose(0, 1)

    def hidden_gradient(self, grad: Tensor) -> Tensor:
        """(B, T, h) -> (T, B, h)"""
        return pad(grad, (0, self.sizes.hidden - self.h)).transpose(0, 1).contiguous()

    def gradients(self, gates: Tensor, actions: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the inputs, both weights, the map and the bias.

        They are computed from the gradients `gates` (T, B, 4 h) and `actions` (T, B, actions + value), and from the
        inputs of all steps, `x` (T + 1, B, reading + h).
        """
        at, h = self.sizes.reading, self.h
        inputs = gates.unflatten(-1, (4, self.sizes.hidden))[..., :h].flatten(2).transpose(0, 1)
        gates, actions, x = gates.flatten(0, 1), actions.flatten(0, 1), x[:-1].flatten(0, 1)
        weight = network.sum_of_products(gates, x).unflatten(0, (4, self.sizes.hidden))[:, :h].flatten(0, 1)
        map = self._gather(network.sum_of_products(actions, x[:, at:])[:, :h])
        return inputs, weight[:, : self.reading], weight[:, at : at + h], map, self._gather(actions.sum(0))

    def _spread(self, x: Tensor) -> Tensor:
        """Pad actions and values along the first axis."""
        after = (0, 0) * (x.dim() - 1) + (0,)
        return torch.cat(
            [
                pad(x[: self.actions], (*after, self.sizes.actions - self.actions)),
                pad(x[self.actions :], (*after, self.sizes.value - self.value)),
            ]
        )

    def _gather(self, x: Tensor) -> Tensor:
        """The inverse of `_spread`."""
        return torch.cat([x[: self.actions], x[self.sizes.actions :][: self.value]])
