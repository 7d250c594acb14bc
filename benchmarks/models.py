"""Steps of whole models at the paper's sizes for the hardest context-free language."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stackattn.models import build_model
from stackattn.paper.models import paper_config

from .steps import Shape, Step, training_step

TASK = "hardest-cfl"


def _loss(logits: Tensor, text: Tensor) -> Tensor:
    """Cross-entropy, summed over a string and averaged over strings, as in the paper."""
    return cross_entropy(logits.flatten(0, 1), text.flatten(), reduction="sum") / len(text)


def training(shape: Shape, architecture: str, **changes: Any) -> Step:
    """A training step on strings of T symbols (T + 1 tokens with BOS): loss, gradients, clipping, Adam."""
    config = replace(paper_config(TASK, architecture, published=True), **changes)
    model = build_model(config).train()
    text = torch.randint(config.output_size, (shape.B, shape.T + 1))
    text[:, 0] = config.input_size - 1
    return training_step(model, lambda: _loss(model(text), text))


class _TheirTransformer(nn.Module):
    """nn.TransformerEncoder as a language model of the same shape as Tf, embeddings and positions included."""

    def __init__(self, tokens: int, d_model: int, heads: int, hidden_size: int, length: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d_model, heads, hidden_size, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 5, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.embedding, self.output = nn.Embedding(tokens, d_model), nn.Linear(d_model, tokens)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        self.register_buffer("positions", torch.randn(length, d_model))

    def forward(self, text: Tensor) -> Tensor:
        x = self.dropout(self.embedding(text) * self.embedding.embedding_dim**0.5 + self.positions)
        return self.output(self.encoder(x, mask=self.mask, is_causal=True))


def transformer_encoder(shape: Shape) -> Step:
    config = paper_config(TASK, "Tf")
    sizes = (config.input_size, config.d_model, config.heads, config.hidden_size)  # pyright: ignore
    model = _TheirTransformer(*sizes, shape.T + 1)
    text = torch.randint(config.output_size, (shape.B, shape.T + 1))
    return training_step(model, lambda: _loss(model(text), text))


class _LoopOverCells(nn.Module):
    """nn.LSTMCell, one call for each token, with as many hidden units and inputs as LSTM+Sup."""

    def __init__(self, tokens: int, input_size: int, hidden_size: int):
        super().__init__()
        self.cell, self.output = nn.LSTMCell(input_size, hidden_size), nn.Linear(hidden_size, tokens)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.cell.hidden_size)
        rows = [h]
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            rows.append(h)
        return self.output(torch.stack(rows, dim=1))


def loop_over_cells(shape: Shape) -> Step:
    config = paper_config(TASK, "LSTM+Sup")
    model = _LoopOverCells(config.output_size, config.input_size - 1 + 10, config.hidden_size)
    text = torch.randint(config.output_size, (shape.B, shape.T + 1))
    x = torch.randn(shape.B, shape.T, config.input_size - 1 + 10)
    return training_step(model, lambda: _loss(model(x), text))


def decoding(shape: Shape, architecture: str) -> Step:
    """One more token after T to T + 9 tokens; after every tenth call, the state is reset to T tokens."""
    config = paper_config(TASK, architecture, published=True)
    model: Any = build_model(config).eval()
    text = torch.randint(config.input_size - 1, (shape.B, shape.T + 1))
    text[:, 0] = config.input_size - 1
    with torch.no_grad():
        _, start = model.extend(text[:, :-1], model.initial_state(shape.B))
    state, read = start, 0

    def forward() -> Sequence[Any]:
        nonlocal state, read
        if read == 10:
            state, read = start, 0
        with torch.no_grad():
            logits, state = model.extend(text[:, -1:], state)
        read += 1
        return (logits,)

    return Step(forward)
