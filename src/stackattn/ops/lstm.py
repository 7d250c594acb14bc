"""An LSTM with a superposition stack, all steps in one call.

A loop over time in Python spends most of its time between small operations. The kernel runs the loop, and the gradients
of the weights are matrix products over all steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from .cpp import network


def superposition_lstm(
    inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, map: Tensor, bias: Tensor
) -> Tensor:
    """Hidden states of an LSTM that starts from zeros and an empty stack.

    At each step but the first, the last hidden state chooses actions (softmax) and a value to push (sigmoid), and the
    top of the stack is part of the input of the step. All tensors must be float32 on the CPU.

    Args:
        inputs: (B, T, 4 h), the contribution of the input and the bias to the gates: input, forget, cell, output.
        weight_reading: (4 h, m), from the reading to the gates.
        weight_hidden: (4 h, h), from the last hidden state to the gates.
        map: (3 + m, h), from the last hidden state to the logits of push, no-op and pop and to the value.
        bias: (3 + m,)

    Returns:
        (B, T, h)

    Examples::

        hidden = superposition_lstm(x @ weight.T, weight_reading, weight_hidden, map, bias)
    """
    return _SuperpositionLSTM.apply(inputs, weight_reading, weight_hidden, map, bias)  # pyright: ignore[reportReturnType]


def reference(inputs: Tensor, weight_reading: Tensor, weight_hidden: Tensor, map: Tensor, bias: Tensor) -> Tensor:
    """`superposition_lstm` as a loop of PyTorch's operations, for any dtype and device."""
    B, T = inputs.shape[:2]
    m, h = weight_reading.shape[1], weight_hidden.shape[1]
    hidden = cell = inputs.new_zeros(B, h)
    stack, rows = inputs.new_zeros(B, 0, m), []
    for t in range(T):
        if t:
            actions, value = linear(hidden, map, bias).split((3, m), dim=1)
            push, noop, pop = actions.softmax(-1)[:, :, None, None].unbind(1)  # (B, 1, 1) each
            below = pad(stack, (0, 0, 0, 2))  # (B, depth + 2, m)
            above = torch.cat([value.sigmoid()[:, None], stack], dim=1)  # (B, depth + 1, m)
            stack = push * above + noop * below[:, :-1] + pop * below[:, 1:]
        gates = inputs[:, t] + linear(hidden, weight_hidden)
        if t:
            gates = gates + linear(stack[:, 0], weight_reading)
        enter, forget, candidate, show = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows, dim=1) if rows else inputs.new_zeros(B, 0, h)


class _SuperpositionLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight_reading, weight_hidden, map, bias):
        layout = _Layout(weight_reading, weight_hidden)
        weight = layout.gate_weights(weight_reading, weight_hidden)  # (m + h, 4 h), padded
        choice = layout.map_weights(map)  # (h, 8 + m), padded
        saved = network.lstm(
            layout.gates(inputs), weight, choice, layout.map_bias(bias), layout.value_size, layout.value
        )
        ctx.save_for_backward(inputs, weight_reading, weight_hidden, map, bias, weight, choice, *saved)
        ctx.layout = layout
        return layout.hidden(saved[0]).contiguous()

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        *arguments, weight, choice, x, gates, cells, actions, stacks = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradients is wanted, for a second derivative
            wanted = [x for x in arguments if x.requires_grad]
            found = iter(torch.autograd.grad(reference(*arguments), wanted, grad, create_graph=True))
            return tuple(next(found) if x.requires_grad else None for x in arguments)
        layout, saved = ctx.layout, (x, gates, cells, actions, stacks)
        padded = pad(grad, (0, layout.hidden_padded - layout.h)).transpose(0, 1).contiguous()  # (T, B, h)
        grads = network.lstm_backward(saved, layout.value_size, weight.T.contiguous(), choice.T.contiguous(), padded)
        return layout.gradients(*(y.flatten(0, 1) for y in (*grads, x[:-1])), grads[0])


class _Layout:
    """Tensors as the kernel wants them: sizes padded to multiples of 8, time first."""

    def __init__(self, weight_reading: Tensor, weight_hidden: Tensor):
        self.h, self.value_size = weight_hidden.shape[1], weight_reading.shape[1]
        self.hidden_padded, self.value = (-(-n // 8) * 8 for n in (self.h, self.value_size))

    def gates(self, inputs: Tensor) -> Tensor:
        """(B, T, 4 h) -> (T, B, 4 h)"""
        x = inputs.unflatten(-1, (4, self.h)).transpose(0, 1)
        return pad(x, (0, self.hidden_padded - self.h)).flatten(2).contiguous()

    def gate_weights(self, reading: Tensor, hidden: Tensor) -> Tensor:
        weight = hidden.new_zeros(self.value + self.hidden_padded, 4, self.hidden_padded)
        weight[: self.value_size, :, : self.h] = reading.unflatten(0, (4, self.h)).permute(2, 0, 1)
        weight[self.value : self.value + self.h, :, : self.h] = hidden.unflatten(0, (4, self.h)).permute(2, 0, 1)
        return weight.flatten(1)

    def map_weights(self, map: Tensor) -> Tensor:
        weight = map.new_zeros(self.hidden_padded, 8 + self.value)
        weight[: self.h, :3] = map[:3].T
        weight[: self.h, 8 : 8 + self.value_size] = map[3:].T
        return weight

    def map_bias(self, bias: Tensor) -> Tensor:
        return torch.cat([pad(bias[:3], (0, 5)), pad(bias[3:], (0, self.value - self.value_size))])

    def hidden(self, x: Tensor) -> Tensor:
        """The inputs of all steps, (T + 1, B, m + h) -> hidden states (B, T, h)"""
        return x[1:, :, self.value : self.value + self.h].transpose(0, 1)

    def gradients(self, gates: Tensor, actions: Tensor, x: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        """From rows of all steps and sequences; `steps` are the gates (T, B, 4 h)."""
        h, m = self.h, self.value_size
        inputs = steps.unflatten(-1, (4, self.hidden_padded))[..., :h].flatten(2).transpose(0, 1)
        weight = (gates.T @ x).unflatten(0, (4, self.hidden_padded))[:, :h].flatten(0, 1)  # (4 h, m + h)
        map = actions.T @ x[:, self.value : self.value + h]  # (8 + m, h)
        bias = actions.sum(0)
        both = (torch.cat([y[:3], y[8 : 8 + m]]) for y in (map, bias))
        return inputs, weight[:, :m], weight[:, self.value : self.value + h], *both
