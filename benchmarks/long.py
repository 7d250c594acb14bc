"""Layers on long sequences: stack attention with a limit, compared with a transformer layer of PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stackattn.nn import StackAttention, StackSpec, parse_layers

from .steps import Shape, Step, differentiated

D_MODEL = 64


def transformer_layer(shape: Shape) -> Step:
    layer = nn.TransformerEncoderLayer(D_MODEL, 4, 4 * D_MODEL, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(shape.T)
    return _training(layer, shape, lambda x: layer(x, src_mask=mask, is_causal=True))


def stack_layer(shape: Shape, notation: str) -> Step:
    layer = _stack_layer(notation)
    return _training(layer, shape, layer)


def by_weights(shape: Shape, notation: str) -> Step:
    """The layer of `stack_layer`, computed from all attention weights (`return_weights=True`)."""
    layer = _stack_layer(notation)
    return _training(layer, shape, lambda x: layer(x, return_weights=True)[0])


def forward_pass(shape: Shape, notation: str) -> Step:
    layer, x = _stack_layer(notation).requires_grad_(False), torch.randn(shape.B, shape.T, D_MODEL)
    return Step(lambda: (layer(x),))


def decoding(shape: Shape, notation: str) -> Step:
    """One more step after T to T + 9 steps; after every tenth call, the state is reset to T steps."""
    layer, x = _stack_layer(notation).requires_grad_(False), torch.randn(shape.B, shape.T + 10, D_MODEL)
    _, start = layer.extend(x[:, : shape.T], layer.initial_state(shape.B))
    state, taken = start, 0

    def forward() -> Sequence[Any]:
        nonlocal state, taken
        if taken == 10:
            state, taken = start, 0
        y, state = layer.extend(x[:, shape.T + taken : shape.T + taken + 1], state)
        taken += 1
        return (y,)

    return Step(forward)


def _stack_layer(notation: str) -> StackAttention:
    (spec,) = parse_layers(notation)
    assert isinstance(spec, StackSpec)
    return spec.build(D_MODEL)


def _training(layer: nn.Module, shape: Shape, function: Any) -> Step:
    """The layer, and the gradients of its input and parameters."""
    size = (shape.B, shape.T, D_MODEL)

    def run(x: Tensor, *_: Tensor) -> tuple[Tensor]:
        return (function(x),)

    return differentiated(run, [torch.randn(size), *layer.parameters()], size)
