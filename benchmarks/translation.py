"""Steps of the paper's smallest translation models: B sentences of T tokens, translated into T tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from stackattn.models import Seq2SeqTransformer, build_model
from stackattn.models.generation import beam_search
from stackattn.paper.models import paper_config

from .steps import Shape, Step, training_step

TASK = "mt-160"
BEAM = 4


def _model(architecture: str) -> Seq2SeqTransformer:
    model = build_model(paper_config(TASK, architecture, published=True))
    assert isinstance(model, Seq2SeqTransformer)
    return model


def training(shape: Shape, architecture: str) -> Step:
    """A training step with label smoothing: loss, gradients, clipping, Adam."""
    model = _model(architecture).train()
    source, target = torch.randint(model.config.output_size, (2, shape.B, shape.T))

    def loss() -> torch.Tensor:
        logits = model(source, target).flatten(0, 1)
        return cross_entropy(logits, target.flatten(), label_smoothing=0.1, reduction="sum") / shape.B

    return training_step(model, loss)


def translating(shape: Shape, architecture: str) -> Step:
    """Translation of the sentences, from tokens to tokens, with the paper's beam size."""
    model = _model(architecture).eval()
    eos = model.config.output_size - 1
    with torch.no_grad():
        # An untrained model may predict EOS at any step. Make EOS so improbable that all translations have T tokens.
        row = model.embedding.table.weight[eos]
        model.decoder.norm.bias.copy_(-50 * row / row.square().sum())
    source = torch.randint(eos, (shape.B, shape.T))
    bos = torch.full((shape.B, 1), eos + 1)

    def forward() -> Sequence[Any]:
        with torch.no_grad():
            state = model.initial_state(source)
        return beam_search(model, bos, state, eos=eos, beam_size=BEAM, max_new_tokens=shape.T)

    return Step(forward)
