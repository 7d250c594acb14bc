"""Language modelling as a training task: sentences in padded batches, or documents that share rows of equal length."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import kinds, require
from ..models import TransformerArchitecture, TransformerLM
from ..models.saving import load
from ..ops.cross_entropy import cross_entropy
from ..text.batching import pad, token_batches
from ..text.monolingual_corpus import MonolingualCorpus
from ..text.packing import PackedRows, pack_documents
from ..text.subject_verb import minimal_pairs
from ..text.vocabulary import FILE, Vocabulary
from .devices import find_device
from .metrics import perplexity
from .run import TrainingRun, config_of, model_folder
from .sentences import IGNORED, SentenceConfig, SentenceDataOptions, SentenceTask, SentenceTraining

EVALUATION_TOKENS = 1024  # tokens per batch in evaluation; larger batches are slower for the paper's models


@dataclass(frozen=True)
class LMDataOptions(SentenceDataOptions):
    """The corpus and how its sentences are batched."""

    CORPUS = MonolingualCorpus

    folder: str
    """Folder of the corpus, created by `stackattn lm prepare` or `stackattn lm prepare-ptb`."""
    batch_tokens: int = 256
    """Maximum size of a batch in tokens: number of sentences times the length of the longest one."""
    batch_tokens_range: tuple[int, int] = (128, 512)
    """Range from which each random restart draws `batch_tokens`."""
    count_bos: bool = True
    """Whether BOS counts towards `batch_tokens`."""
    row_tokens: int | None = None
    """Number of tokens per row. Documents (lines of the corpus) share rows, but each is read as if it were alone; a
    document that does not fit continues in the next row. A batch has at least one row. Default: one sentence per
    row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.row_tokens
        require(size is None or size >= 1, "row_tokens", "at least 1", size)
        low, high = self.batch_tokens_range
        require(1 <= low <= high, "batch_tokens_range", "two numbers of at least 1, the smaller first", [low, high])


@dataclass(frozen=True, kw_only=True)
class LMArchitecture(TransformerArchitecture):
    """A transformer whose default sizes are the paper's for the Penn Treebank."""

    d_model: int = 256
    heads: int = 8
    hidden_size: int | None = None
    """Size of the hidden layer of the feed-forward networks; default: 4 times `d_model`."""
    init_range: float = 0.01
    tied: bool = True

    def __post_init__(self) -> None:
        if self.hidden_size is None:
            object.__setattr__(self, "hidden_size", 4 * self.d_model)
        super().__post_init__()


@dataclass(frozen=True)
class LMTraining(SentenceTraining):
    """Training options whose defaults are the paper's for the Penn Treebank."""

    learning_rate: float = 1e-4
    learning_rates: tuple[float, float] = (1e-6, 1e-4)
    max_epochs: int = 10_000
    evaluate_every: int | None = 20_000


class LMTask(SentenceTask):
    """The training task of an `LMConfig`; see `training.loop.Task`."""

    tokenizer: Vocabulary

    def __init__(self, options: LMDataOptions):
        self.options = options
        corpus = MonolingualCorpus(options.folder)
        corpus.check_fingerprint(options.fingerprint)
        self.tokenizer = corpus.tokenizer()
        self.training = corpus.encode_split("train", self.tokenizer)
        self.validation = corpus.encode_split("validation", self.tokenizer)
        self._lengths = [len(sentence) for sentence in self.training]
        self._costs = [length + options.count_bos for length in self._lengths]
        self._rows = self._validation_rows = None
        if options.row_tokens is not None:
            self._rows = pack_documents(self.training, options.row_tokens, self.tokenizer, IGNORED)
            self._validation_rows = pack_documents(self.validation, options.row_tokens, self.tokenizer, IGNORED)

    def epoch(self, generator: torch.Generator) -> Sequence[list[int]]:
        """Return batches of indices of sentences, or of rows if several documents share a row."""
        if self._rows is not None:
            rows = torch.randperm(len(self._rows), generator=generator)
            count = max(1, self.options.batch_tokens // self._rows.inputs.shape[1])
            return [batch.tolist() for batch in rows.split(count)]
        return token_batches(self._lengths, self._costs, self.options.batch_tokens, generator)

    def loss(self, model: nn.Module, batch: list[int]) -> Tensor:
        """Return the negative log-likelihood in nats, summed over each sentence or row and averaged over the batch."""
        if self._rows is not None:
            return row_log_likelihood(model, self._rows.select(batch)).neg() / len(batch)
        nats = negative_log_likelihood(model, [self.training[i] for i in batch], self.tokenizer)
        return nats.sum() / len(batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self._validation_rows is None:
            found = evaluate_sentences(model, self.validation, self.tokenizer)
        else:
            found = evaluate_rows(model, self._validation_rows)
        return {
            "score": found["cross_entropy"],
            "cross_entropy": found["cross_entropy"],
            "perplexity": found["perplexity"],
            "examples_per_epoch": len(self.training if self._rows is None else self._rows),
        }


@dataclass(frozen=True)
class LMConfig(SentenceConfig):
    """Configuration of `stackattn lm`: the corpus, the model and the training options."""

    TASK = LMTask

    data: LMDataOptions
    model: LMArchitecture = field(default_factory=LMArchitecture, metadata=kinds(transformer=LMArchitecture))
    training: LMTraining = field(default_factory=LMTraining)

    def redraw(self, seed: int) -> LMConfig:
        """Return the configuration with a batch size drawn from `batch_tokens_range`; the corpus stays the same."""
        tokens = random.Random(seed).randint(*self.data.batch_tokens_range)
        return replace(self, data=replace(self.data, batch_tokens=tokens))


def negative_log_likelihood(model: nn.Module, sentences: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Tensor:
    """(B, longest sentence + 1): negative log-likelihood in nats of each token and of EOS; zero after EOS."""
    inputs, lengths = pad([[vocabulary.bos, *sentence] for sentence in sentences], vocabulary.pad)
    targets, _ = pad([[*sentence, vocabulary.eos] for sentence in sentences], IGNORED)
    device = next(model.parameters(), inputs).device
    inputs, lengths, targets = (x.to(device, non_blocking=True) for x in (inputs, lengths, targets))
    logits = model(inputs, lengths)  # (B, longest + 1, types and EOS)
    return cross_entropy(logits, targets, ignore_index=IGNORED)


def row_log_likelihood(model: nn.Module, rows: PackedRows) -> Tensor:
    """Return the sum of the log-likelihoods of all targets, in nats."""
    full = bool((rows.lengths == rows.inputs.shape[1]).all())
    rows = rows.to(next(model.parameters(), rows.inputs).device)
    logits = model(rows.inputs, None if full else rows.lengths, rows.starts)  # (B, T, types and EOS)
    return -cross_entropy(logits, rows.targets, ignore_index=IGNORED).sum()


def evaluate_rows(model: nn.Module, rows: PackedRows) -> dict[str, Any]:
    """Return what `evaluate_sentences` returns, for documents that share rows; `sentences` counts the documents."""
    model.eval()
    batches = torch.arange(len(rows)).split(max(1, EVALUATION_TOKENS // rows.inputs.shape[1]))
    with torch.no_grad():
        total = math.fsum(row_log_likelihood(model, rows.select(batch.tolist())).item() for batch in batches)
    tokens = int(rows.lengths.sum())
    return _summary(int(rows.starts.sum()), tokens, total)


def score_sentences(
    model: nn.Module, sentences: Sequence[Sequence[int]], vocabulary: Vocabulary
) -> Iterator[tuple[int, list[float]]]:
    """Yield the index of each sentence and the log-probabilities of its tokens and of EOS, batch by batch."""
    model.eval()
    lengths = [len(sentence) for sentence in sentences]
    for batch in token_batches(lengths, [length + 1 for length in lengths], EVALUATION_TOKENS):
        with torch.no_grad():
            nats = negative_log_likelihood(model, [sentences[i] for i in batch], vocabulary).double()
        for i, row in zip(batch, (-nats).tolist(), strict=True):
            yield i, row[: lengths[i] + 1]


def subject_verb_agreement(
    model: nn.Module, vocabulary: Vocabulary, number: int = 200, seed: int = 0
) -> list[dict[str, Any]]:
    """Measure how often the verb that agrees with the subject is more probable, for each condition of the test.

    Args:
        model: a language model.
        vocabulary: its vocabulary; a vocabulary of words restricts the sentences to known words.
        number: number of minimal pairs for each condition; see `text.subject_verb.minimal_pairs`.
        seed: seed for drawing the sentences.

    Returns:
        One row per condition: `attractors`, `misleading`, `sentences`, `accuracy`, and `margin`, the mean difference
        between the log-probabilities of the two verbs.
    """
    words = vocabulary.pieces_model is None
    pairs = minimal_pairs(number, seed=seed, known=lambda word: not words or word in vocabulary)
    sentences = [
        vocabulary.encode(vocabulary.split(f"{pair.beginning} {verb}"))
        for pair in pairs
        for verb in (pair.right, pair.wrong)
    ]
    totals = [0.0] * len(sentences)
    for i, row in score_sentences(model, sentences, vocabulary):
        totals[i] = math.fsum(row[:-1])  # without EOS; the beginnings are equal
    conditions: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for pair, right, wrong in zip(pairs, totals[::2], totals[1::2], strict=True):
        conditions[pair.attractors, pair.misleading].append(right - wrong)
    return [
        {
            "attractors": attractors,
            "misleading": misleading,
            "sentences": len(margins),
            "accuracy": sum(margin > 0 for margin in margins) / len(margins),
            "margin": math.fsum(margins) / len(margins),
        }
        for (attractors, misleading), margins in conditions.items()
    ]


def evaluate_sentences(
    model: nn.Module,
    sentences: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    """Return the numbers of `sentences` and `tokens`, the `cross_entropy` in nats per token and the `perplexity`.

    EOS counts as a token.
    """
    total = math.fsum(x for _, row in score_sentences(model, sentences, vocabulary) for x in row)
    return _summary(len(sentences), sum(map(len, sentences)) + len(sentences), total)


def _summary(sentences: int, tokens: int, log_likelihood: float) -> dict[str, Any]:
    found = -log_likelihood / tokens
    return {"sentences": sentences, "tokens": tokens, "cross_entropy": found, "perplexity": perplexity(found)}


def load_language_model(folder: str | Path, device: str = "cpu") -> tuple[TransformerLM, Vocabulary]:
    """Load a model and its vocabulary.

    Args:
        folder: folder of a saved model, or of a run, whose best model is loaded.
        device: a PyTorch device.

    Raises:
        FileNotFoundError: there is no model, or it has no vocabulary.
        RunError: the run has no best model.
        ValueError: the model is not a language model with this vocabulary, or the device is not available.
    """
    folder = model_folder(folder)
    model = load(folder)
    if not (folder / FILE).exists():
        raise FileNotFoundError(f"{folder}: expected a model trained by `stackattn lm train`, found no {FILE}")
    vocabulary = Vocabulary.load(folder)
    if not isinstance(model, TransformerLM) or model.config.output_size != vocabulary.output_size:
        expected = f"a TransformerLM with {vocabulary.output_size} outputs, the size of its vocabulary"
        found = f"a {type(model).__name__} with {getattr(model.config, 'output_size', None)} outputs"
        raise ValueError(f"{folder}: expected {expected}, got {found}")
    return model.to(find_device(device)), vocabulary


def evaluate_run(
    folder: str | Path, split: str = "test", data: str | Path | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Evaluate the best model of a run on a split of its corpus, or of the corpus in the folder `data`.

    Returns:
        The values of `evaluate_sentences`, `split`, the fingerprint of the `corpus`, the checksum of the `model` and
        its number of `parameters`.
    """
    options = config_of(LMConfig, folder).data
    corpus = MonolingualCorpus(data or options.folder)
    if data is None:
        corpus.check_fingerprint(options.fingerprint)
    model, vocabulary = load_language_model(folder, device)
    sentences = corpus.encode_split(split, vocabulary)
    if options.row_tokens is None:
        found = evaluate_sentences(model, sentences, vocabulary)
    else:
        found = evaluate_rows(model, pack_documents(sentences, options.row_tokens, vocabulary, IGNORED))
    return {
        "split": split,
        "corpus": corpus.fingerprint,
        "model": TrainingRun(folder).model_checksum(),
        **found,
        "parameters": sum(x.numel() for x in model.parameters()),
    }
