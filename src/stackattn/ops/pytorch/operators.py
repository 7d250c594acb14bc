"""The operators and their backward passes in plain PyTorch, for any device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..immediate import reads_values
from ..lengths import length_mask, without_padding
from . import chart as plain
from .chart import Number, Steps
from .extended import Extended
from .steps import action_gradients, action_steps, log_gradients, neutral, scaled_steps

# Smallest mass of all runs for which float64 is accurate enough. A weight that underflows (below 1e-308) can
# later grow in relative size by at most 1 / mass. While no mass is below e^-600, lost weights cannot matter.
SMALLEST_MASS = 2.6e-261


Chart = Any  # `charts.Chart`, where `charts` is pytorch/chart.py or another module with the same functions


def kept_size(T: int, B: int, Q: int, S: int) -> int:
    """How many numbers the forward pass keeps for the backward pass."""
    return plain.Chart.size(T, B, Q, S)


def nondeterministic(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None, charts: ModuleType = plain
) -> tuple[Tensor, Tensor]:
    """Attention weights (B, T, T + 1, Q, S) in float64, and the memory of the charts for the backward pass."""
    Q = log_push.shape[2]
    inputs = neutral(log_push, log_replace, log_pop, lengths)
    chart = charts.fill(scaled_steps(*inputs, extended=False), Q)
    weights = _normalise(chart)[0]
    if reads_values(weights.device):
        for b in _out_of_range(chart, lengths):
            exact = plain.fill(scaled_steps(*(x[b : b + 1] for x in inputs), extended=True), Q)
            weights[..., b : b + 1, :] = _normalise(exact)[0]
    else:
        weights = _marked(weights, chart, inputs, lengths)
    return without_padding(weights.permute(3, 0, 4, 1, 2), lengths), chart.memory


def nondeterministic_backward(
    grad: Tensor,
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    lengths: Tensor | None,
    memory: Tensor,
    charts: ModuleType = plain,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the log weights in float64, from `grad` with respect to the attention weights.

    `memory` comes from the forward pass; if it is empty, the charts are computed again.
    """

    def gradients(steps: Steps, chart: Chart, grad: Number) -> tuple[Tensor, Tensor, Tensor]:
        weights, mass, alive = _normalise(chart)
        grad = grad.permute(1, 3, 4, 0, 2).contiguous()
        # the second term is the derivative of the normalisation
        grad = (grad - (grad * weights).sum((1, 2, 4), keepdim=True)).where(alive, 0.0)
        if not reads_values(grad.device):
            grad = _marked(grad, chart, inputs, lengths)
        dF = chart.F.new_zeros(*chart.F.shape)
        if isinstance(mass, Extended):
            grad = Extended.of(grad)
        dF[1:, ..., 1:] = grad / mass
        walk_back = plain.walk_back if isinstance(mass, Extended) else charts.walk_back
        return log_gradients(steps, walk_back(steps, chart, dF), Q)

    B, T, Q, S = log_push.shape[:4]
    inputs = neutral(log_push, log_replace, log_pop, lengths)
    grad = without_padding(grad.double(), lengths)
    steps = scaled_steps(*inputs, extended=False)
    chart = charts.Chart(memory, T, B, Q, S) if memory.numel() else charts.fill(steps, Q)
    results = gradients(steps, chart, grad)
    for b in _out_of_range(chart, lengths) if reads_values(grad.device) else []:
        steps = scaled_steps(*(x[b : b + 1] for x in inputs), extended=True)
        for result, exact in zip(results, gradients(steps, plain.fill(steps, Q), grad[b : b + 1]), strict=True):
            result[b] = exact[0]
    return results


def _normalise(chart: Chart) -> tuple[Tensor, Number, Tensor]:
    """Attention weights (n, Q, S, B, n + 1), the mass of all runs of each row, and which rows have any run.

    The mass of a row without runs is replaced with a positive number to allow division.
    """
    F, mass = chart.F[1:, ..., 1:], _mass(chart)[:, None, None, :, None]
    if not isinstance(mass, Extended):
        alive = mass > 0
        mass = mass.where(alive, 1.0)
        return F / mass, mass, alive
    alive = mass.mantissa > 0
    mass.mantissa = mass.mantissa.where(alive, 1.0)
    return (F / mass).to_tensor(), mass, alive


def _mass(chart: Chart) -> Number:
    """(n, B): the total weight of all runs after each step."""
    return chart.F[1:, ..., 0].sum((1, 2))


def _out_of_range(chart: Chart, lengths: Tensor | None) -> list[int]:
    """The sequences for which the range of float64 does not suffice."""
    good = _mass(chart) >= SMALLEST_MASS  # (n, B)
    if lengths is not None:
        good |= ~length_mask(lengths, good.shape[0]).T
    return (~good.all(0)).nonzero()[:, 0].tolist()


def _marked(rows: Tensor, chart: Chart, inputs: list[Tensor], lengths: Tensor | None) -> Tensor:
    """`rows` (n, Q, S, B, n + 1) with nan where the range of float64 may not suffice; computed without reading values.

    A mass of zero can also mean that a row has no runs. This is certain after a step that forbids all transitions.
    """
    forbidden = torch.stack([(x == -torch.inf).flatten(2).all(2) for x in inputs]).all(0)  # (B, n)
    ended = (forbidden.cumsum(1) > 0).T  # (n, B)
    rows = rows.where(~ended[:, None, None, :, None], 0.0)
    good = (_mass(chart) >= SMALLEST_MASS) | ended
    if lengths is not None:
        good |= ~length_mask(lengths, good.shape[0]).T
    return rows.where(good[:, None, None, :, None], torch.nan)


def superposition(actions: Tensor, lengths: Tensor | None, charts: ModuleType = plain) -> Tensor:
    chart = charts.fill(action_steps(actions, lengths), 1, superposition=True)
    weights = chart.F[1:, 0, 0, :, 2:].transpose(0, 1)  # (B, T, T)
    return without_padding(weights, lengths)


def superposition_backward(grad: Tensor, actions: Tensor, lengths: Tensor | None, charts: ModuleType = plain) -> Tensor:
    steps = action_steps(actions, lengths)
    chart = charts.fill(steps, 1, superposition=True)
    dF = torch.zeros_like(chart.F)
    dF[1:, 0, 0, :, 2:] = without_padding(grad.double(), lengths).transpose(0, 1)
    return action_gradients(charts.walk_back(steps, chart, dF, superposition=True))
