"""Context-free languages as a training task: batches of strings of equal length."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ..config import FieldError, in_section, kinds, require
from ..languages import PCFG, Dataset, Language, evaluation_set, get_language, is_grammar_file, training_sets
from ..lines import read_text
from ..models import LSTMLM, LSTMArchitecture, TransformerArchitecture, TransformerLM, build_model
from ..models.saving import load, save
from .devices import find_device
from .metrics import perplexity
from .options import TrainingConfig
from .run import TrainingRun, config_of, model_folder

TESTED_AT_A_TIME = 20  # strings; limits the memory that stacks use on long strings
VALIDATED_AT_A_TIME = 100  # strings; limits the memory for large validation sets; larger batches are hardly faster


@dataclass(frozen=True)
class LanguageOptions:
    """The language and the data sets that are sampled from it."""

    name: str
    """Name of a built-in language, or path of a grammar file."""
    grammar: str | None = None
    """Text of the grammar; default: read from the grammar file. Runs store it, so they do not depend on the file."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of a built-in language, such as `k: 3` for dyck."""
    lengths: tuple[int, int] = (40, 80)
    """Minimum and maximum length of the strings of the training and validation sets, in symbols."""
    train_batches: int = 1000
    """Number of batches in the training set."""
    validation_batches: int = 100
    """Number of batches in the validation set."""
    batch_size: int = 10
    """Strings per batch; the strings of a batch have the same length."""
    seed: int = 0
    """Seed for sampling the strings."""

    def __post_init__(self) -> None:
        for name in ("train_batches", "validation_batches", "batch_size"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        low, high = self.lengths
        require(0 <= low <= high, "lengths", "two lengths of at least 0, the smaller first", [low, high])
        if self.grammar is None and is_grammar_file(self.name):
            try:
                object.__setattr__(self, "grammar", read_text(self.name))
            except OSError as error:
                expected = "expected a built-in language, or a grammar file that can be read"
                raise FieldError("name", f"{expected}, got {self.name[:80]!r}: {error.strerror}") from None

    def make(self) -> Language:
        """Return the language."""
        if self.grammar is None:
            return get_language(self.name, **self.parameters)
        if self.parameters:
            raise FieldError("parameters", f"expected none for a grammar file, got {self.parameters}")
        source = self.name if is_grammar_file(self.name) else "grammar"
        return PCFG.from_text(self.grammar, name=Path(self.name).stem, source=source)


@dataclass(frozen=True)
class CFLConfig:
    """Configuration of `stackattn cfl`: the language, the model and the training options."""

    language: LanguageOptions
    model: TransformerArchitecture | LSTMArchitecture = field(
        default_factory=TransformerArchitecture,
        metadata=kinds(transformer=TransformerArchitecture, lstm=LSTMArchitecture),
    )
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def make(self) -> tuple[CFLTask, TransformerLM | LSTMLM]:
        """Return the task and an untrained model."""
        task = in_section("language", CFLTask, self)
        return task, in_section("model", self.build_model, len(task.language.symbols))

    def build_model(self, alphabet_size: int) -> TransformerLM | LSTMLM:
        """Return the untrained model for an alphabet.

        Token ids are those of the symbols, followed by one id that is BOS in inputs and EOS in outputs.
        """
        torch.manual_seed(self.training.init_seed)
        return build_model(self.model.for_vocabulary(alphabet_size + 1, alphabet_size + 1))

    def redraw(self, seed: int) -> CFLConfig:
        """Return the configuration with data sets that are sampled with another seed."""
        return replace(self, language=replace(self.language, seed=seed))


class CFLTask:
    """The training task of a `CFLConfig`; see `training.loop.Task`."""

    def __init__(self, config: CFLConfig):
        options = config.language
        self.scored_by_perplexity = config.training.plateau == "pytorch"
        self.language = options.make()
        training, self.validation = training_sets(
            self.language,
            options.seed,
            options.lengths,
            options.train_batches,
            options.validation_batches,
            options.batch_size,
        )
        self._batches = [torch.from_numpy(batch) for batch in training.batches]
        groups = by_length(self.validation).values()
        self._validation = [part for strings in groups for part in strings.split(VALIDATED_AT_A_TIME)]
        self.lower_bound = self.validation.lower_bound()

    def epoch(self, generator: torch.Generator) -> Sequence[Tensor]:
        order = torch.randperm(len(self._batches), generator=generator).tolist()
        return [self._batches[i] for i in order]

    def size(self, batch: Tensor) -> int:
        return len(batch)

    def share(self, batch: Tensor, rank: int, count: int) -> Tensor:
        return batch[rank::count]

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the negative log-likelihood in nats, summed over each string and averaged over the strings."""
        return negative_log_likelihood(model, self.language, batch).sum() / len(batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        total = sum(negative_log_likelihood(model, self.language, x).sum().item() for x in self._validation)
        symbols = sum(x.numel() + len(x) for x in self._validation)
        found = total / symbols
        return {
            "score": perplexity(found) if self.scored_by_perplexity else found,
            "cross_entropy": found,
            "cross_entropy_difference": found - self.lower_bound,
        }

    def save(self, model: nn.Module, folder: Path) -> None:
        save(model, folder)


def with_bos(language: Language, strings: Tensor) -> Tensor:
    """Prepend BOS, whose id follows those of the symbols: (B, n) -> (B, n + 1)."""
    return pad(strings, (1, 0), value=len(language.symbols))


def with_eos(language: Language, strings: Tensor) -> Tensor:
    """Append EOS, which has the same id in outputs as BOS has in inputs: (B, n) -> (B, n + 1)."""
    return pad(strings, (0, 1), value=len(language.symbols))


def negative_log_likelihood(model: nn.Module, language: Language, strings: Tensor) -> Tensor:
    """(B, n) -> (B, n + 1): negative log-likelihood in nats of each symbol and of EOS, given the symbols before it."""
    strings = strings.to(next(model.parameters(), strings).device, non_blocking=True)
    logits = model(with_bos(language, strings))  # (B, n + 1, symbols and EOS)
    return cross_entropy(logits.transpose(1, 2), with_eos(language, strings), reduction="none")


def next_log_probs(model: nn.Module, language: Language, strings: Tensor) -> Tensor:
    """(B, n) -> (B, n + 1, symbols and EOS): log-probabilities of the next symbol after each prefix, in float64."""
    strings = strings.to(next(model.parameters(), strings).device, non_blocking=True)
    return model(with_bos(language, strings)).double().log_softmax(2)


def by_length(data: Dataset) -> dict[int, Tensor]:
    """Return all strings of each length as one tensor, because larger batches are faster."""
    groups: dict[int, list[np.ndarray]] = defaultdict(list)
    for batch in data.batches:
        groups[batch.shape[1]].append(batch)
    return {length: torch.from_numpy(np.concatenate(groups[length])) for length in sorted(groups)}


def evaluate_by_length(
    model: nn.Module,
    language: Language,
    training_lengths: tuple[int, int],
    lengths: tuple[int, int] | None = None,
    per_length: int = 100,
    seed: int = 0,
    step: int = 1,
) -> dict[str, Any]:
    """Measure the cross-entropy and the validity of a model on test strings of each length.

    Args:
        model: a model of the language.
        language: the language of the test strings.
        training_lengths: the range of lengths of the training set.
        lengths: the range of test lengths; default: the training lengths, with the maximum increased by a quarter.
        per_length: number of strings of each length.
        seed: seed for sampling the strings.
        step: test one length out of every `step`.

    Returns:
        `seed`, `per_length` and `lengths`: a list with a dictionary for each length, which contains `length` and the
        metrics below, with `cross_entropy` and `lower_bound` in nats per symbol.

    `difference` follows the published convention: the lower bound for each length assumes that the length is known, but
    the model has to predict it, so a perfect model of the training distribution does not reach 0.
    `difference_from_floor`, for the lengths of the training set, subtracts the cost of predicting the length:
    ln(number of lengths) / (length + 1).

    `validity` is the total probability of the symbols, EOS included, that can follow the prefix in a string of the
    language of any length, averaged over the positions. `flawless` is the share of strings in which the most likely
    next symbol is possible at every position.
    """
    model.eval()
    lengths = lengths or (training_lengths[0], training_lengths[1] * 5 // 4)
    test = evaluation_set(language, seed, lengths, per_length, step)
    bounds = test.lower_bounds_by_length()
    trained = len(language.valid_lengths(*training_lengths))
    rows = []
    for length, strings in by_length(test).items():
        found, validity, flawless = _measure(model, language, strings)
        difference = found - bounds[length]
        seen = training_lengths[0] <= length <= training_lengths[1]
        floor = math.log(trained) / (length + 1)
        rows.append(
            {
                "length": length,
                "cross_entropy": found,
                "lower_bound": bounds[length],
                "difference": difference,
                "difference_from_floor": difference - floor if seen else None,
                "validity": validity,
                "flawless": flawless,
            }
        )
    return {"seed": seed, "per_length": per_length, "lengths": rows}


def _measure(model: nn.Module, language: Language, strings: Tensor) -> tuple[float, float, float]:
    """Return cross-entropy, validity and share of flawless strings of (B, n) strings; see `evaluate_by_length`."""
    total = valid = flawless = 0.0
    with torch.no_grad():
        for part in strings.split(TESTED_AT_A_TIME):
            log_probs = next_log_probs(model, language, part).cpu()  # (B, n + 1, symbols and EOS)
            possible = torch.from_numpy(np.stack(language.possible_next_symbols(list(part.numpy()))))
            total -= log_probs.gather(2, with_eos(language, part)[:, :, None]).sum().item()
            valid += log_probs.exp().masked_fill(~possible, 0).sum().item()
            best = log_probs.argmax(2, keepdim=True)
            flawless += possible.gather(2, best).all(dim=1).sum().item()
    positions = strings.numel() + len(strings)
    return total / positions, valid / positions, flawless / len(strings)


def evaluate_run(
    folder: str | Path,
    lengths: tuple[int, int] | None = None,
    per_length: int = 100,
    seed: int = 0,
    device: str = "cpu",
    step: int = 1,
) -> dict[str, Any]:
    """Apply `evaluate_by_length` to the best model of a run; `model` in the result is the checksum of the model."""
    options = config_of(CFLConfig, folder).language
    model = load(model_folder(folder)).to(find_device(device))
    found = evaluate_by_length(model, options.make(), options.lengths, lengths, per_length, seed, step)
    return {"model": TrainingRun(folder).model_checksum(), **found}
