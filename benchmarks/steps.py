"""The operations that the benchmarks measure; nothing is timed here.

A `Step` is one measured operation: a forward pass and, optionally, a backward pass. Functions that take a `Shape` set
one up on random inputs, in float32 unless stated otherwise.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention
from torch.nn.functional import dropout as torch_dropout
from torch.nn.functional import linear as torch_linear

from stackattn import (
    NondeterministicState,
    SuperpositionState,
    nondeterministic_readings,
    nondeterministic_weights,
    superposition_weights,
)
from stackattn.ops import causal_attention
from stackattn.ops.dropout import dropout
from stackattn.ops.linear import linear


class Shape(NamedTuple):
    """The sizes on which a step depends."""

    B: int = 10  # sequences
    T: int = 60  # steps
    Q: int = 3  # states
    S: int = 3  # stack symbols
    m: int = 32  # size of the pushed vectors

    def label(self, letters: str) -> str:
        return " ".join(f"{letter}={getattr(self, letter)}" for letter in letters)


class Step(NamedTuple):
    """What is measured: a forward pass and, optionally, a backward pass."""

    forward: Callable[[], Sequence[Any]]
    backward: Callable[[Sequence[Any]], Sequence[Tensor]] | None = None  # from the outputs of forward to gradients


def differentiated(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], *output_shapes: tuple[int, ...]
) -> Step:
    """The function, and the gradients of its inputs for a random gradient of its outputs."""
    inputs = [x.requires_grad_() for x in inputs]
    upstream = [torch.randn(shape) for shape in output_shapes]
    return Step(lambda: function(*inputs), lambda outputs: torch.autograd.grad(outputs, inputs, upstream))


def _stepwise(empty: Callable[[], Any], inputs: list[Tensor], row_shapes: list[tuple[int, ...]]) -> Step:
    """Extend a state one step at a time; each step has its own input tensors, as with a recurrent controller."""

    def function(*pieces: Tensor) -> list[Tensor]:
        state, rows = empty(), []
        for at in range(0, len(pieces), len(inputs)):
            weights, state = state.extend(*pieces[at : at + len(inputs)])
            rows.append(weights)
        return rows

    pieces = [x[:, t : t + 1].clone() for t in range(len(row_shapes)) for x in inputs]
    return differentiated(function, pieces, *row_shapes)


def training_step(model: nn.Module, loss: Callable[[], Tensor], clip: float = 5.0) -> Step:
    """The loss, then gradients, clipping and a step of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def forward() -> tuple[Tensor]:
        optimizer.zero_grad()
        return (loss(),)

    def backward(outputs: Sequence[Tensor]) -> tuple[()]:
        outputs[0].backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return ()

    return Step(forward, backward)


def _transitions(shape: Shape, scale: float = 1.0) -> list[Tensor]:
    B, T, Q, S, _ = shape
    return [torch.randn(B, T, Q, S, *to).mul_(scale) for to in ((Q, S), (Q, S), (Q,))]


def _actions(shape: Shape) -> Tensor:
    return torch.randn(shape.B, shape.T, 3).softmax(-1)


def nondeterministic(shape: Shape, backend: str, scale: float = 1.0) -> Step:
    B, T, Q, S, _ = shape
    function = nondeterministic_weights
    return differentiated(lambda *x: (function(*x, backend=backend),), _transitions(shape, scale), (B, T, T + 1, Q, S))


def nondeterministic_steps(shape: Shape, backend: str) -> Step:
    B, T, Q, S, _ = shape
    empty = partial(NondeterministicState.empty, B, Q, S, backend=backend)
    return _stepwise(empty, _transitions(shape), [(B, 1, t + 2, Q, S) for t in range(T)])


def superposition(shape: Shape, backend: str) -> Step:
    """Readings of the superposition stack, as weights times the pushed vectors."""
    B, T, _, _, m = shape

    def function(actions: Tensor, values: Tensor) -> tuple[Tensor]:
        return (superposition_weights(actions, backend=backend) @ values,)

    return differentiated(function, [_actions(shape), torch.randn(B, T, m)], (B, T, m))


def readings(shape: Shape, fused: bool) -> Step:
    """Readings of the nondeterministic stack: by `nondeterministic_readings`, or as weights times values."""
    B, T, Q, S, m = shape

    def function(push: Tensor, replace: Tensor, pop: Tensor, values: Tensor) -> tuple[Tensor]:
        if fused:
            return (nondeterministic_readings(push, replace, pop, values),)
        weights = nondeterministic_weights(push, replace, pop)
        rows = weights.flatten(3).mT.flatten(1, 2)  # (B, T * Q * S, T + 1)
        return ((rows @ values).reshape(B, T, Q, S, m),)

    return differentiated(function, [*_transitions(shape), torch.randn(B, T + 1, m)], (B, T, Q, S, m))


def causal_softmax_attention(shape: Shape, backend: str, dropout: float) -> Step:
    """Four heads of m numbers each."""
    B, T, m = shape.B, shape.T, shape.m
    return differentiated(
        lambda packed: (causal_attention(packed, 4, dropout=dropout, backend=backend),),
        [torch.randn(B, T, 3 * 4 * m)],
        (B, T, 4 * m),
    )


def pytorch_attention(shape: Shape, dropout: float) -> Step:
    """PyTorch's attention on the packed input of `causal_softmax_attention`."""
    B, T, m = shape.B, shape.T, shape.m

    def function(packed: Tensor) -> tuple[Tensor]:
        parts = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in packed.chunk(3, dim=-1))
        return (scaled_dot_product_attention(*parts, dropout_p=dropout, is_causal=True).transpose(1, 2).flatten(2),)

    return differentiated(function, [torch.randn(B, T, 3 * 4 * m)], (B, T, 4 * m))


def dropout_step(shape: Shape, kind: str, fused: bool) -> Step:
    """Dropout of B T vectors of m numbers: "alone", with a "residual" addition, or after a "relu"."""
    B, T, m = shape.B, shape.T, shape.m

    def function(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor]:
        if fused:
            return (dropout(x, 0.1, residual=residual, relu=kind == "relu"),)
        y = torch_dropout(x.relu() if kind == "relu" else x, 0.1)
        return (y if residual is None else residual + y,)

    count = 2 if kind == "residual" else 1
    return differentiated(function, [torch.randn(B, T, m) for _ in range(count)], (B, T, m))


def linear_step(shape: Shape, outputs: int, fast: bool) -> Step:
    """A linear map of B T vectors of m numbers."""
    B, T, m = shape.B, shape.T, shape.m
    function = linear if fast else torch_linear
    inputs = [torch.randn(B, T, m), torch.randn(outputs, m), torch.randn(outputs)]
    return differentiated(lambda *x: (function(*x),), inputs, (B, T, outputs))


def superposition_full(shape: Shape, backend: str) -> Step:
    """The weights alone, which `superposition_steps` computes step by step."""
    B, T = shape[:2]
    return differentiated(lambda x: (superposition_weights(x, backend=backend),), [_actions(shape)], (B, T, T))


def superposition_steps(shape: Shape, backend: str) -> Step:
    empty = partial(SuperpositionState.empty, shape.B, backend=backend)
    return _stepwise(empty, [_actions(shape)], [(shape.B, 1, t + 1) for t in range(shape.T)])


def superposition_vectors(shape: Shape) -> Step:
    """The readings of `superposition`, computed by the recurrence on a stack of vectors in plain PyTorch."""
    B, T, _, _, m = shape

    def function(actions: Tensor, values: Tensor) -> tuple[Tensor]:
        stack, readings = values.new_zeros(B, 1, m), []  # top first, with a zero vector at the bottom
        for action, value in zip(actions.unbind(1), values.unbind(1), strict=True):
            push, noop, pop = action[..., None, None].unbind(1)
            above, below = torch.cat([value[:, None], stack], dim=1), pad(stack[:, 1:], (0, 0, 0, 2))
            stack = push * above + noop * pad(stack, (0, 0, 0, 1)) + pop * below
            readings.append(stack[:, 0])
        return (torch.stack(readings, dim=1),)

    return differentiated(function, [_actions(shape), torch.randn(B, T, m)], (B, T, m))


class _SuperpositionLayer(nn.Module):
    def __init__(self, m: int, backend: str):
        super().__init__()
        self.actions, self.values, self.output = nn.Linear(m, 3), nn.Linear(m, m), nn.Linear(m, m)
        self.backend = backend

    def forward(self, x: Tensor) -> Tensor:
        weights = superposition_weights(self.actions(x).softmax(-1), backend=self.backend)
        return self.output(weights @ self.values(x).sigmoid())


def superposition_training(shape: Shape, backend: str) -> Step:
    """A training step of one layer with d_model = m: its three maps, the stack, a squared loss, clipping and Adam."""
    model, x = _SuperpositionLayer(shape.m, backend), torch.randn(shape.B, shape.T, shape.m)
    return training_step(model, lambda: (model(x) - x).square().mean())


def attention(shape: Shape, d_model: int = 32, heads: int = 4) -> Step:
    """One layer of causal softmax attention on B sequences of T vectors of size `d_model`.

    The gradients are those of its input and parameters.
    """
    layer, T = nn.MultiheadAttention(d_model, heads, batch_first=True), shape.T
    mask = nn.Transformer.generate_square_subsequent_mask(T)

    def function(x: Tensor, *_: Tensor) -> tuple[Tensor]:
        return (layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0],)

    return differentiated(function, [torch.randn(shape.B, T, d_model), *layer.parameters()], (shape.B, T, d_model))


def transformer(shape: Shape, d_model: int = 32, heads: int = 4, tokens: int = 16) -> Step:
    """A training step of a five-layer pre-norm transformer language model on T + 1 tokens."""
    layer = nn.TransformerEncoderLayer(d_model, heads, 2 * d_model, dropout=0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 5, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
    embed, unembed = nn.Embedding(tokens, d_model), nn.Linear(d_model, tokens)
    mask = nn.Transformer.generate_square_subsequent_mask(shape.T + 1)
    text = torch.randint(tokens, (shape.B, shape.T + 1))

    def loss() -> Tensor:
        logits = unembed(encoder(embed(text), mask=mask, is_causal=True))
        return cross_entropy(logits.flatten(0, 1), text.flatten())

    return training_step(nn.ModuleList([embed, encoder, unembed]), loss)


def matrix_product(shape: Shape, n: int = 2048) -> Step:
    """A float64 matrix product, to measure the machine's peak float64 rate; the shape is ignored."""
    a, b, c = (torch.randn(n, n, dtype=torch.float64) for _ in range(3))
    return Step(lambda: (torch.mm(a, b, out=c),))


def runs(shape: Shape, name: str, **options: int) -> Step:
    function, inputs = getattr(import_module("stackattn.ops.runs"), name), _transitions(shape)
    return Step(lambda: function(*inputs, **options))
