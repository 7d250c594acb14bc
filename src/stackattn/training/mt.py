"""Translation as a training task: sentence pairs batched by tokens, scored by the cross-entropy of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..config import require
from ..models import Seq2SeqArchitecture
from ..ops.cross_entropy import cross_entropy
from ..text.batching import pad, token_batches
from ..text.bitext_corpus import BitextCorpus
from ..text.pieces import PieceTokenizer
from .metrics import perplexity
from .run import config_of
from .sentences import IGNORED, SentenceConfig, SentenceDataOptions, SentenceTask, SentenceTraining


@dataclass(frozen=True)
class MTDataOptions(SentenceDataOptions):
    """The corpus and how its sentence pairs are batched."""

    CORPUS = BitextCorpus

    folder: str
    """Folder of the corpus, created by `stackattn mt prepare`."""
    batch_tokens: int = 2048
    """Maximum number of tokens on either side of a batch, including padding and BOS or EOS."""
    label_smoothing: float = 0.1
    """Label smoothing of the training loss, at least 0 and less than 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        smoothing = self.label_smoothing
        require(0 <= smoothing < 1, "label_smoothing", "a number from 0 to less than 1", smoothing)


@dataclass(frozen=True)
class MTTraining(SentenceTraining):
    """Training options whose defaults are the paper's for translation."""

    learning_rate: float = 3e-4
    learning_rates: tuple[float, float] = (1e-5, 1e-3)
    max_epochs: int = 100
    evaluate_every: int | None = 50_000


class Pairs:
    """Sentences and their translations as token ids."""

    def __init__(self, tokenizer: PieceTokenizer, source: Sequence[str], target: Sequence[str]):
        self.tokenizer = tokenizer
        self.source, self.target = tokenizer.encode_source(source), tokenizer.encode_target(target)

    def batches(self, budget: int, generator: torch.Generator | None = None) -> list[list[int]]:
        """Return the indices of pairs in batches of at most `budget` tokens on either side; see `token_batches`."""
        sizes = [(len(a), len(b)) for a, b in zip(self.source, self.target, strict=True)]
        lengths, costs = [a + b for a, b in sizes], [max(a, b) + 1 for a, b in sizes]
        return token_batches(lengths, costs, budget, generator)

    def loss(self, model: nn.Module, batch: Sequence[int], label_smoothing: float = 0.0) -> Tensor:
        """Return the negative log-likelihood of the targets in nats, including EOS, summed over the batch.

        With `label_smoothing`, return the label-smoothed cross-entropy instead.
        """
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        targets = [self.target[i].tolist() for i in batch]
        source, source_lengths = pad([[*self.source[i].tolist(), eos] for i in batch], self.tokenizer.pad)
        read, read_lengths = pad([[bos, *target] for target in targets], self.tokenizer.pad)
        predicted, _ = pad([[*target, eos] for target in targets], IGNORED)
        device = next(model.parameters(), source).device
        inputs = (x.to(device, non_blocking=True) for x in (source, read, source_lengths, read_lengths))
        logits, predicted = (
            model(*inputs),
            predicted.to(device, non_blocking=True),
        )  # (B, U, outputs) and (B, U), U target steps
        return cross_entropy(logits, predicted, ignore_index=IGNORED, label_smoothing=label_smoothing).sum()

    def cross_entropy(self, model: nn.Module, budget: int) -> float:
        """Return the cross-entropy in nats per target token, including EOS; `budget` is that of `batches`."""
        total = sum(self.loss(model, batch).item() for batch in self.batches(budget))
        return total / int(np.sum([len(target) + 1 for target in self.target]))


class MTTask(SentenceTask):
    """The training task of an `MTConfig`; see `training.loop.Task`."""

    tokenizer: PieceTokenizer

    def __init__(self, options: MTDataOptions):
        corpus = BitextCorpus(options.folder)
        corpus.check_fingerprint(options.fingerprint)
        self.options = options
        self.tokenizer = corpus.tokenizer()
        self.training = Pairs(self.tokenizer, *corpus.read_split("train"))
        self.validation = Pairs(self.tokenizer, *corpus.read_split("validation"))

    def epoch(self, generator: torch.Generator) -> Sequence[list[int]]:
        return self.training.batches(self.options.batch_tokens, generator)

    def loss(self, model: nn.Module, batch: list[int]) -> Tensor:
        """Return the label-smoothed cross-entropy in nats, summed over each sentence and averaged over sentences."""
        return self.training.loss(model, batch, self.options.label_smoothing) / len(batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        found = self.validation.cross_entropy(model, self.options.batch_tokens)
        return {"score": found, "cross_entropy": found, "perplexity": perplexity(found)}


@dataclass(frozen=True)
class MTConfig(SentenceConfig):
    """Configuration of `stackattn mt`: the corpus, the model and the training options."""

    TASK = MTTask

    data: MTDataOptions
    model: Seq2SeqArchitecture = field(default_factory=Seq2SeqArchitecture)
    training: MTTraining = field(default_factory=MTTraining)


def read_sentence_pairs(run: str | Path, split: str = "test", folder: str | None = None) -> tuple[list[str], list[str]]:
    """Return the sources and references of a split of the corpus that a run was trained on.

    Args:
        run: folder of the run.
        split: `train`, `validation` or `test`.
        folder: folder of the corpus, if it has moved since training.
    """
    options = config_of(MTConfig, run).data
    corpus = BitextCorpus(folder or options.folder)
    corpus.check_fingerprint(options.fingerprint)
    return corpus.read_split(split)
