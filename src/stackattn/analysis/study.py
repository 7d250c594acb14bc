"""Studies of runs: agreement of their stacks and, for the best runs, results by length and traces of some strings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import FieldError
from ..training.run_files import RunError
from .labelled_strings import LabelledStrings, label_strings
from .loaded_runs import LanguageRun, LoadedRun, find_runs, load_run
from .real_stack import DETERMINISTIC, Agreement
from .sentences import TracedSentence
from .strings import TracedString
from .traces import stack_names

TEST_STRINGS = 20  # strings of each length, if a run has no test.json
MAX_FULL = 4  # with more models than this, only the first string of each is traced


@dataclass
class StudiedRun:
    """A run and the results of its analysis."""

    run: LoadedRun
    parameters: int | None = None
    """Number of parameters; None if there is no model."""
    stacks: list[str] = field(default_factory=list)
    """Names of the stacks under study."""
    agreement: dict[str, Agreement] = field(default_factory=dict)
    """Agreement of each stack with a real stack; empty if the language is not in `DETERMINISTIC`."""
    derivation: dict[str, Agreement] = field(default_factory=dict)
    """Agreement of each stack's best runs with the most probable derivations; empty without a grammar."""
    test: dict[str, Any] | None = None
    """Results by length of a best run on a language, or the stored ones of a run without a model; otherwise None."""
    strings: list[TracedString | TracedSentence] = field(default_factory=list)
    """Traces of the strings or sentences to step through."""


@dataclass
class Study:
    """The runs in a folder and the results of their analysis."""

    folder: Path
    seed: int
    runs: list[StudiedRun]
    best: list[StudiedRun]
    """The best run of each model on each task; only these runs have traced strings."""
    damaged: dict[str, str]
    """Runs that could not be read, or whose corpus could not be read, by name, with the reason."""
    strings_per_run: int
    """Largest number of strings selected for a run; with more than `MAX_FULL` models, only the first is traced."""

    @property
    def single(self) -> bool:
        """Whether there is only one run."""
        return len(self.runs) == 1

    @property
    def full(self) -> bool:
        """Whether all strings were traced."""
        return len(self.best) <= MAX_FULL

    @property
    def omitted(self) -> str:
        """A note on what is omitted because there are many models; empty if nothing is omitted."""
        if self.full:
            return ""
        what = f"only the first of {self.strings_per_run} strings" if self.strings_per_run > 1 else "the string"
        return (
            f"There are {len(self.best)} models, more than {MAX_FULL}, so {what} is shown for each, without maps of "
            "single states and stack symbols. Analyse the folder of one run to see everything."
        )

    def task_name(self, run: LoadedRun) -> str:
        """The name of the language or corpus, with details if its runs are not all comparable."""
        if len(self._tasks[run.data_name]) == 1:
            return run.data_name
        return ", ".join([run.data_name, *run.task_details])

    @cached_property
    def _tasks(self) -> dict[str, set[Any]]:
        """The tasks of the runs on each language or corpus."""
        tasks: dict[str, set[Any]] = {}
        for studied in self.runs:
            tasks.setdefault(studied.run.data_name, set()).add(studied.run.task)
        return tasks

    @property
    def without_real_stack(self) -> str:
        """A sentence on the languages without a real stack; empty if all languages have one."""
        runs = (studied.run for studied in self.runs if studied.stacks)
        names = {run.language.name for run in runs if isinstance(run, LanguageRun)}
        names, known = sorted(names.difference(DETERMINISTIC)), " and ".join(DETERMINISTIC)
        return f"Empty for {', '.join(names)}: the top of a real stack is known for {known} only." if names else ""

    @cached_property
    def best_runs(self) -> dict[str, LoadedRun]:
        """The run with the lowest score on each task, by the name of the task; tasks without a score are left out."""
        best: dict[str, tuple[float, LoadedRun]] = {}
        for run in (studied.run for studied in self.runs):
            task, score = self.task_name(run), run.score
            if score is not None and (task not in best or score < best[task][0]):
                best[task] = score, run
        return {task: run for task, (_, run) in best.items()}

    def baselines(self) -> list[tuple[str, str, float | None, float | None]]:
        """Shares of the stacks of `Agreement.baselines`: (task, stack, real top, best run)."""
        found: dict[tuple[str, str], list[float | None]] = {}
        for studied in self.runs:
            for place, agreements in enumerate((studied.agreement, studied.derivation)):
                for agreement in agreements.values():
                    for name, share in agreement.baselines.items():
                        found.setdefault((self.task_name(studied.run), name), [None, None])[place] = share
        return [(task, name, real, derived) for (task, name), (real, derived) in found.items()]


def study(
    folder: str | Path,
    *,
    texts: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    stack: int | None = None,
    progress: Callable[[str], object] = lambda message: None,
) -> Study:
    """Study the run in a folder, or all runs below it.

    Args:
        folder: folder of a run, or a folder with runs below it.
        texts, samples: the strings or sentences to step through; see `LoadedRun.select`. With more than `MAX_FULL`
            models, only the first one is traced for each model.
        seed: seed of sampled strings and runs.
        stack: number of the only stack to study, counted from 1 (default: all stacks of each model).
        progress: called with a message before each step.

    Raises:
        RunError: there are no runs, or none can be read, or the corpus of the only run cannot be read. If some runs can
            be read, the others are in `Study.damaged`.
        ValueError: an argument does not fit the runs, or a file of the only run is invalid.
    """
    folder = Path(folder)
    runs, damaged = _read_runs(folder)
    if stack is not None:
        _select_stack([studied for studied in runs if studied.run.has_model], stack)
    best = _best_of_each(runs)
    selected = []
    for studied in best:
        try:
            selected.append(_select_strings(studied.run, texts, samples, seed))
        except RunError as error:  # the corpus of the run cannot be read
            if len(runs) == 1:
                raise
            damaged[studied.run.name] = str(error)
            selected.append([])
    found = Study(folder, seed, runs, best, damaged, max(map(len, selected), default=0))
    for studied, strings in zip(best, selected, strict=True):
        run = studied.run
        progress(f"{run.label} on {run.data_name}: {run.name}")
        if isinstance(run, LanguageRun):
            studied.test = run.test_by_length(TEST_STRINGS)
        shown = strings if found.full else strings[:1]
        studied.strings = [traced for string in shown for traced in run.trace(string, studied.stacks, seed)]
    _compare_with_real_stacks(runs, seed, progress)
    return found


def _read_runs(folder: Path) -> tuple[list[StudiedRun], dict[str, str]]:
    """Read all runs with their models. Also return the errors of those that cannot be read, by name."""
    runs, damaged = [], {}
    paths = find_runs(folder)
    for name, path in paths.items():
        try:
            runs.append(_read_run(path, name))
        except (RunError, ValueError, OSError) as error:
            if path == folder:
                raise
            damaged[name] = str(error)
    if not runs:
        name, reason = next(iter(damaged.items()))
        raise RunError(f"{folder}: expected readable runs, found none ({len(damaged)} damaged); {name}: {reason}")
    return runs, damaged


def _read_run(path: Path, name: str) -> StudiedRun:
    run = load_run(path, name)
    if not run.has_model:
        return StudiedRun(run, test=run.saved_test if isinstance(run, LanguageRun) else None)
    parameters = sum(x.numel() for x in run.model.parameters())
    return StudiedRun(run, parameters, stack_names(run.model))


def _best_of_each(runs: list[StudiedRun]) -> list[StudiedRun]:
    """The run with the lowest score for each model and task, among the runs that have a best model."""
    scores: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    for number, run in enumerate(studied.run for studied in runs):
        if run.score is not None and run.has_model:
            scores[run.task, run.label, run.layers].append((run.score, number))
    return [runs[number] for number in sorted(min(found)[1] for found in scores.values())]


def _select_strings(run: LoadedRun, texts: Sequence[str], samples: int | None, seed: int) -> list[Any]:
    try:
        return run.select(texts, samples, seed)
    except ValueError as error:
        where = f"run {run.name}, {run.data_name}"  # the runs of a sweep may have different languages and corpora
        if not texts:
            raise ValueError(f"{where}: {error}") from error
        reason = error.message if isinstance(error, FieldError) else error
        raise FieldError("texts", f"{reason} ({where})") from error


def _select_stack(runs: list[StudiedRun], stack: int) -> None:
    """Keep only one stack of each run. At least one run must have it."""
    most = max((studied.stacks for studied in runs), key=len, default=[])
    if runs and not 1 <= stack <= len(most):
        if not most:
            raise ValueError("stack: expected a model with a stack, found none; omit this argument")
        expected = " or ".join(f"{number} ({name})" for number, name in enumerate(most, 1))
        raise ValueError(f"stack: expected {expected}, got {stack}")
    for studied in runs:
        studied.stacks = studied.stacks[stack - 1 : stack]


def _compare_with_real_stacks(runs: list[StudiedRun], seed: int, progress: Callable[[str], object]) -> None:
    """Measure the agreement of all stacks, on the same strings for all runs of a task."""
    labelled: dict[Any, LabelledStrings] = {}
    for number, studied in enumerate(runs, 1):
        run = studied.run
        if not studied.stacks or not isinstance(run, LanguageRun):
            continue
        progress(f"stacks of run {number} of {len(runs)}: {run.name}")
        if run.task not in labelled:
            labelled[run.task] = label_strings(run.language, run.config.language.lengths, seed)
        studied.agreement = labelled[run.task].compare_weights(run.model, studied.stacks)
        studied.derivation = labelled[run.task].compare_best_runs(run.model, studied.stacks)
