"""Select sentences of a corpus, and trace language models and translation models on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..text.pieces import PieceTokenizer
from ..text.vocabulary import Vocabulary
from .strings import TracedStack, traced_stacks
from .traces import trace_forward

LONGEST = 60  # maximum number of tokens of a selected sentence; the figures of longer ones are too large to read
SAMPLES = 2
LIKELY = 6  # number of the most likely next tokens that are kept for each step


@dataclass(frozen=True)
class SelectedSentence:
    """A sentence to step through, as token ids without BOS and EOS."""

    target: list[int]
    """The tokens that the model predicts."""
    origin: str
    """Where the sentence comes from."""
    source: list[int] | None = None
    """For translation, the tokens that the encoder reads."""


@dataclass(frozen=True)
class TracedSentence:
    """The tokens that a language model, an encoder or a decoder reads, with its stacks and predictions."""

    origin: str
    """Where the sentence comes from."""
    tokens: list[str]
    """All tokens that are read, including BOS (language model, decoder) or EOS (encoder)."""
    stacks: list[TracedStack]
    likely: list[list[tuple[str, float]]]
    """The most likely next tokens after each step with their probabilities; empty for an encoder."""
    following: list[tuple[str, float]]
    """The token that follows each step, and its probability; empty for an encoder."""

    real: ClassVar[None] = None
    """The stack of a hand-written automaton is known for strings of some formal languages only."""


def sample_sentences(
    count: int | None, total: int, length: Callable[[int], int], seed: int, where: str
) -> list[tuple[int, str]]:
    """Draw sentences of at most `LONGEST` tokens.

    Args:
        count: number of sentences (default: `SAMPLES`).
        total: number of sentences of the split.
        length: returns the number of tokens of the sentence with a given index.
        seed: seed of the draw.
        where: name of the split, for the origin of a sentence and for errors.

    Returns:
        Index and origin of each sentence.

    Raises:
        ValueError: the split has no sentence that is short enough.
    """
    order = np.random.default_rng(seed).permutation(total).tolist()
    chosen: list[tuple[int, str]] = []
    for i in order:
        if len(chosen) == (SAMPLES if count is None else count):
            break
        if 1 <= length(i) <= LONGEST:
            chosen.append((i, f"{where}, line {i + 1}"))
    if not chosen:
        raise ValueError(f"{where}: expected a sentence of 1 to {LONGEST} tokens, found none; pass --string")
    return chosen


def trace_sentence(
    model: nn.Module, vocabulary: Vocabulary, sentence: SelectedSentence, *, names: Sequence[str], seed: int = 0
) -> list[TracedSentence]:
    """Run a language model on a sentence and trace the stacks with the given names."""
    tokens = vocabulary.token_names
    read = [vocabulary.bos, *sentence.target]
    logits, traces = trace_forward(model, torch.tensor([read]))  # (1, n + 1, types and EOS)
    stacks = traced_stacks(traces, names, seed)
    return [_traced(sentence.origin, read, [*sentence.target, vocabulary.eos], tokens, logits, stacks)]


def trace_translation(
    model: nn.Module, tokenizer: PieceTokenizer, sentence: SelectedSentence, *, names: Sequence[str], seed: int = 0
) -> list[TracedSentence]:
    """Run a translation model on a pair of sentences and trace its encoder and its decoder."""
    tokens = tokenizer.token_names
    assert sentence.source is not None
    source, read = [*sentence.source, tokenizer.eos], [tokenizer.bos, *sentence.target]
    logits, traces = trace_forward(model, torch.tensor([source]), torch.tensor([read]))
    encoder, decoder = (
        traced_stacks(traces, [name for name in names if name.startswith(part)], seed)
        for part in ("encoder", "decoder")
    )
    following = [*sentence.target, tokenizer.eos]
    return [
        TracedSentence(f"source, {sentence.origin}", [tokens[i] for i in source], encoder, [], []),
        _traced(f"target, {sentence.origin}", read, following, tokens, logits, decoder),
    ]


def _traced(
    origin: str, read: list[int], following: list[int], tokens: list[str], logits: Tensor, stacks: list[TracedStack]
) -> TracedSentence:
    probabilities = logits[0].double().softmax(-1).cpu()  # (n + 1, outputs)
    best = probabilities.topk(min(LIKELY, probabilities.shape[-1]))
    after = probabilities.gather(-1, torch.tensor(following)[:, None])[:, 0].tolist()
    return TracedSentence(
        origin=origin,
        tokens=[tokens[i] for i in read],
        stacks=stacks,
        likely=[
            [(tokens[i], p) for i, p in zip(row, values, strict=True)]
            for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        following=[(tokens[i], p) for i, p in zip(following, after, strict=True)],
    )
