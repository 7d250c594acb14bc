"""Runs read from their folders for analysis: one class for each kind of task, and the search for run folders.

A `LoadedRun` has the configuration, the results and the best model of a run. It selects the strings or sentences to
step through and traces the model on them; a `LanguageRun` also evaluates its model by length.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..config import FieldError, from_values
from ..languages import Language
from ..models import LSTMArchitecture
from ..models.saving import load
from ..nn.kinds import STACK_KINDS
from ..nn.specs import SoftmaxSpec, StackSpec, parse_layers
from ..text.bitext_corpus import BitextCorpus
from ..text.monolingual_corpus import MonolingualCorpus
from ..text.vocabulary import Vocabulary
from ..training.cfl import evaluate_by_length
from ..training.experiment import config_class, training_command
from ..training.metrics import DIFFERENCE, PERPLEXITY, Metric
from ..training.run import TrainingRun, best_of_evaluations, ending, model_folder
from ..training.run_files import CONFIG, METRICS, TEST, RunError
from ..training.translator import Translator
from .sentences import SelectedSentence, TracedSentence, sample_sentences, trace_sentence, trace_translation
from .strings import SelectedString, TracedString, select_strings, trace_string

NOT_FINISHED = "not finished"


@dataclass(frozen=True)
class LoadedRun(ABC):
    """A run read from its folder: its configuration, results and best model."""

    folder: Path
    name: str
    """Path relative to the folder under study, or the name of that folder if it is the run itself."""
    config: Any
    """The configuration: a `CFLConfig`, `LMConfig` or `MTConfig`."""
    metrics: list[dict[str, Any]]
    best_evaluation: dict[str, Any] | None
    ending: str
    """How the run ended, or `NOT_FINISHED`."""
    without_model: str
    """Why there is no best model; empty if there is one."""
    saved_test: dict[str, Any] | None
    """Results from test.json; None if there are none or they belong to another model."""

    METRIC: ClassVar[Metric]
    """The metric by which runs are compared; lower is better."""
    CURVE: ClassVar[Metric]
    """The metric of learning curves."""

    @cached_property
    def model(self) -> nn.Module:
        """The best model so far."""
        return load(model_folder(self.folder))

    @property
    def has_model(self) -> bool:
        return not self.without_model

    @property
    def finished(self) -> bool:
        return self.ending != NOT_FINISHED

    @property
    def score(self) -> float | None:
        """`METRIC` of the best evaluation; None if there is none."""
        return None if self.best_evaluation is None else self.best_evaluation[self.METRIC.key]

    @property
    def layers(self) -> str:
        """The layers of a transformer, or the stack of an LSTM, as in the configuration."""
        options = self.config.model
        return (options.stack or "") if isinstance(options, LSTMArchitecture) else str(options.layers)

    @property
    def label(self) -> str:
        """The paper's name for the model: Tf, Tf+Sup, Tf+Nd, LSTM, ...; Nd or Sup if it has only stack layers."""
        specs = parse_layers(self.layers) if self.layers else []
        kinds = {spec.kind for spec in specs if isinstance(spec, StackSpec)}
        stacks = [kind.abbreviation for name, kind in STACK_KINDS.items() if name in kinds]
        if isinstance(self.config.model, LSTMArchitecture):
            return "+".join(["LSTM", *stacks])
        softmax = any(isinstance(spec, SoftmaxSpec) for spec in specs)
        return "+".join([*(["Tf"] if softmax else []), *stacks])

    @property
    @abstractmethod
    def task(self) -> tuple[Any, ...]:
        """Key that is equal for comparable runs."""

    @property
    @abstractmethod
    def data_name(self) -> str:
        """Name of the language or corpus."""

    @property
    def task_details(self) -> list[str]:
        """What distinguishes runs with the same `data_name` that are not comparable."""
        return []

    @property
    @abstractmethod
    def trained_on(self) -> str:
        """The training data, in words that can follow “trained on”."""

    @abstractmethod
    def select(self, texts: Sequence[str], samples: int | None, seed: int) -> list[Any]:
        """Select the strings or sentences to step through: `texts` or, if it is empty, `samples` drawn ones.

        If `samples` is None, the number is the default of `select_strings` or `sample_sentences`.
        """

    @abstractmethod
    def trace(self, selected: Any, names: Sequence[str], seed: int) -> Sequence[TracedString | TracedSentence]:
        """Run the model on one of the results of `select`, and trace the stacks with the given names."""


@dataclass(frozen=True)
class LanguageRun(LoadedRun):
    """A run of `stackattn cfl`."""

    METRIC: ClassVar[Metric] = DIFFERENCE
    CURVE: ClassVar[Metric] = Metric(DIFFERENCE.key, "nats above the language")

    @cached_property
    def language(self) -> Language:
        """The language of the run."""
        return self.config.language.make()

    @property
    def task(self) -> tuple[Any, ...]:
        language = self.config.language
        return language.name, json.dumps(language.parameters, sort_keys=True), language.grammar, language.lengths

    @property
    def data_name(self) -> str:
        return self.config.language.name

    @property
    def task_details(self) -> list[str]:
        shortest, longest = self.config.language.lengths
        parameters = (f"{key} {value}" for key, value in self.config.language.parameters.items())
        return [f"{shortest} to {longest} symbols", *parameters]

    @property
    def trained_on(self) -> str:
        shortest, longest = self.config.language.lengths
        return f"strings of {shortest} to {longest} symbols"

    def select(self, texts: Sequence[str], samples: int | None, seed: int) -> list[SelectedString]:
        return select_strings(self.language, self.config.language.lengths, texts, samples, seed)

    def trace(self, selected: SelectedString, names: Sequence[str], seed: int) -> list[TracedString]:
        lengths = self.config.language.lengths
        return [trace_string(self.model, self.language, lengths, selected, names=names, seed=seed)]

    def test_by_length(self, per_length: int) -> dict[str, Any]:
        """Results by length: the saved ones, or new ones on `per_length` strings of each length."""
        if self.saved_test:
            return self.saved_test
        return evaluate_by_length(self.model, self.language, self.config.language.lengths, per_length=per_length)


@dataclass(frozen=True)
class SentenceRun(LoadedRun):
    """A run of `stackattn lm`."""

    METRIC: ClassVar[Metric] = PERPLEXITY
    CURVE: ClassVar[Metric] = Metric("cross_entropy", "nats per token")

    @property
    def task(self) -> tuple[Any, ...]:
        return type(self).__name__, self.config.data.fingerprint or self.config.data.folder

    @property
    def data_name(self) -> str:
        return Path(self.config.data.folder).name

    @property
    def task_details(self) -> list[str]:
        return [f"fingerprint {(self.config.data.fingerprint or 'unknown')[:8]}"]

    @property
    def trained_on(self) -> str:
        return f"sentences of the corpus {self.data_name}"

    def select(self, texts: Sequence[str], samples: int | None, seed: int) -> list[SelectedSentence]:
        if texts:
            encode, split = self._vocabulary.encode, self._vocabulary.split
            return [SelectedSentence(_filled(encode(split(text))), "given") for text in texts]
        sentences = self._corpus(MonolingualCorpus).encode_split("validation", self._vocabulary)
        chosen = sample_sentences(samples, len(sentences), lambda i: len(sentences[i]), seed, "validation")
        return [SelectedSentence(sentences[i], origin) for i, origin in chosen]

    def trace(self, selected: SelectedSentence, names: Sequence[str], seed: int) -> list[TracedSentence]:
        return trace_sentence(self.model, self._vocabulary, selected, names=names, seed=seed)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(model_folder(self.folder))

    def _corpus(self, cls: type[Any]) -> Any:
        """Open the corpus of the run, from which sentences are drawn."""
        try:
            corpus = cls(self.config.data.folder)
            corpus.check_fingerprint(self.config.data.fingerprint)
        except (ValueError, OSError) as error:
            raise RunError(
                f"cannot read the corpus of the run, from which sentences are drawn: {error}; pass --string to analyse "
                "other sentences"
            ) from error
        return corpus


@dataclass(frozen=True)
class TranslationRun(SentenceRun):
    """A run of `stackattn mt`."""

    @property
    def trained_on(self) -> str:
        return f"pairs of sentences of the corpus {self.data_name}"

    def select(self, texts: Sequence[str], samples: int | None, seed: int) -> list[SelectedSentence]:
        """Select pairs of sentences; the targets of given texts are the model's translations, not references."""
        if texts:
            sources, targets = list(texts), self._translator.translate(list(texts))
            chosen = [(i, "given, with the model’s translation") for i in range(len(texts))]
        else:
            sources, targets = self._corpus(BitextCorpus).read_split("validation")
            chosen = sample_sentences(
                samples, len(sources), lambda i: len(self._encode(sources[i])), seed, "validation"
            )
        return [
            SelectedSentence(
                self._translator.tokenizer.encode_target([targets[i]])[0].tolist(),
                origin,
                _filled(self._encode(sources[i])),
            )
            for i, origin in chosen
        ]

    def trace(self, selected: SelectedSentence, names: Sequence[str], seed: int) -> list[TracedSentence]:
        return trace_translation(self.model, self._translator.tokenizer, selected, names=names, seed=seed)

    @cached_property
    def model(self) -> nn.Module:
        return self._translator.model

    @cached_property
    def _translator(self) -> Translator:
        return Translator.load(self.folder)

    def _encode(self, source: str) -> list[int]:
        return self._translator.tokenizer.encode_source([source])[0].tolist()


RUN_CLASSES: dict[str, type[LoadedRun]] = {"cfl": LanguageRun, "lm": SentenceRun, "mt": TranslationRun}
"""Classes of runs by the command that trains them."""


def load_run(folder: Path, name: str) -> LoadedRun:
    """Read everything except the model; raise RunError, ValueError or OSError if a file is missing or damaged."""
    run = TrainingRun(folder)
    values = run.config()
    if "format_version" in values:
        parent = folder.resolve().parent
        raise RunError(f"{folder}: expected the folder of a run, got a saved model; pass its run, {parent}")
    command = training_command(values)
    cls = RUN_CLASSES[command]
    config = from_values(config_class(command), values, source=str(folder / CONFIG))
    metrics = run.metrics()
    for number, row in enumerate(metrics, 1):
        for key in (cls.METRIC.key, cls.CURVE.key):
            if row.get(key) is None:
                raise RunError(f"{folder / METRICS}, line {number}: missing key {key!r}")
    ended = ending(run.result()) if run.finished else NOT_FINISHED
    return cls(folder, name, config, metrics, best_of_evaluations(metrics), ended, run.without_model, run.test())


def find_runs(folder: str | Path) -> dict[str, Path]:
    """Return the folders of runs by name: the given folder if it is a run, otherwise all runs below it.

    Raises:
        RunError: there are no runs.
    """
    folder = Path(folder)
    if folder.is_file():
        raise RunError(f"{folder}: expected the folder of a run, got a file; pass its folder, {folder.parent}")
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; expected a run, or a folder with runs below it")
    if TrainingRun(folder).begun:
        return {folder.resolve().name: folder}
    measured = {path.parent for name in (METRICS, TEST) for path in folder.rglob(name)}
    found = sorted(path for path in measured if TrainingRun(path).begun)
    if not found:
        raise RunError(
            f"{folder}: expected a run (with {CONFIG} and {METRICS} or {TEST}), or a folder with runs below it; "
            "found none"
        )
    return {path.relative_to(folder).as_posix(): path for path in found}


def _filled(tokens: list[int]) -> list[int]:
    if not tokens:
        raise FieldError("texts", "expected at least one token, got an empty sentence")
    return tokens
