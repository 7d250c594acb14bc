"""Runs under study: how well their stacks do, and of the best ones results by length and some strings in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..training.run import TrainingRun
from .folders import RunFolder, best_of_each, find_runs
from .quality import Yardstick, make_yardstick
from .real_stack import DETERMINISTIC, Agreement
from .strings import ChosenString, choose_strings, describe_string
from .traces import watch_stacks

TEST_STRINGS = 20  # of each length, where a run has no test.json
FEW = 4  # models that can be looked at in full; of more than that, only what is quick and small


@dataclass
class StudiedRun:
    run: RunFolder
    parameters: int | None = None
    stacks: list[str] = field(default_factory=list)
    """The names of the stacks that are looked at."""
    agreement: dict[str, Agreement] = field(default_factory=dict)
    """Of each stack, by name, with a real stack; empty where the language has no deterministic automaton."""
    derivation: dict[str, Agreement] = field(default_factory=dict)
    """Of each stack's best runs with the most probable derivations; empty where the language has no grammar."""
    test: dict[str, Any] | None = None
    chosen: list[ChosenString] = field(default_factory=list)
    strings: list[dict[str, Any]] = field(default_factory=list)
    """What `describe_string` says of each chosen string."""


@dataclass
class Study:
    folder: Path
    seed: int
    runs: list[StudiedRun]
    best: list[StudiedRun]
    """Those that are shown in full: the best one of each model on each language and its lengths."""
    left_out: str = ""
    """What is not shown of them, as they are many."""

    @property
    def single(self) -> bool:
        return len(self.runs) == 1

    def task_name(self, run: RunFolder) -> str:
        """The language, and more where runs on the same language differ by lengths or parameters."""
        name, (shortest, longest) = run.config.language.name, run.config.language.lengths
        if len({studied.run.task for studied in self.runs if studied.run.config.language.name == name}) == 1:
            return name
        parameters = (f"{key} {value}" for key, value in run.config.language.parameters.items())
        return ", ".join([name, f"{shortest} to {longest} symbols", *parameters])

    @property
    def without_real_stack(self) -> str:
        """Why some runs with stacks have no agreement with a real one; empty if all have."""
        names = {studied.run.language.name for studied in self.runs if studied.stacks}
        names, known = sorted(names.difference(DETERMINISTIC)), " and ".join(DETERMINISTIC)
        return f"Empty for {', '.join(names)}: the top of a real stack is known for {known} only." if names else ""

    def best_on(self, task: str) -> RunFolder | None:
        """The run with the lowest cross-entropy difference on a task, of this name."""
        of = [
            (studied.run.best["cross_entropy_difference"], number)
            for number, studied in enumerate(self.runs)
            if studied.run.best and self.task_name(studied.run) == task
        ]
        return self.runs[min(of)[1]].run if of else None

    def baselines(self) -> list[tuple[str, str, float | None, float | None]]:
        """For each task what stacks would score that know nothing: task, what they do, real top, best run."""
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
    report: Callable[[str], object] = lambda message: None,
) -> Study:
    """Look at the run in a folder, or at all runs below it.

    Args:
        texts, samples:
            The strings to step through: see `choose_strings`. Where there are many models, each gets the first one,
            and `Study.left_out` says so.
        seed:
            Of sampled strings and runs.
        stack:
            Only this one of a model's stacks, counted from 1; all of them if not given.
        report:
            Told what is being done.
    """
    folder = Path(folder)
    found = [StudiedRun(run) for run in find_runs(folder)]
    chosen = {run.folder for run in best_of_each([studied.run for studied in found])}
    best = [studied for studied in found if studied.run.folder in chosen]
    _choose_stacks([studied for studied in found if studied.run.has_model], stack)
    for studied in best:
        studied.chosen = _choose_strings(studied.run, texts, samples, seed)
    few, most = len(best) <= FEW, max((len(studied.chosen) for studied in best), default=0)
    for studied in best:
        run = studied.run
        report(f"{run.label} on {run.language.name}: {run.name}")
        studied.test = run.test(TEST_STRINGS)
        studied.chosen = studied.chosen if few else studied.chosen[:1]
        _describe(studied, seed, split=few)
    yardsticks: dict[Any, Yardstick] = {}
    for number, studied in enumerate(found, 1):
        run = studied.run
        if not run.has_model:
            studied.test = TrainingRun(run.folder).test()
            continue
        report(f"stacks of run {number} of {len(found)}: {run.name}")
        if studied.stacks and run.task not in yardsticks:
            yardsticks[run.task] = make_yardstick(run.language, run.config.language.lengths, seed)
        studied.parameters = sum(x.numel() for x in run.model.parameters())
        if studied.stacks:
            yardstick = yardsticks[run.task]
            studied.agreement = _only(studied.stacks, yardstick.agreement(run.model))
            studied.derivation = _only(studied.stacks, yardstick.derivation(run.model))
    return Study(folder, seed, found, best, "" if few else _left_out(len(best), most))


def _choose_strings(run: RunFolder, texts: Sequence[str], samples: int | None, seed: int) -> list[ChosenString]:
    try:
        return choose_strings(run.language, run.config.language.lengths, texts, samples, seed)
    except ValueError as error:  # a sweep may be of several languages
        raise ValueError(f"{run.name}, of language {run.language.name}: {error}") from error


def _describe(studied: StudiedRun, seed: int, split: bool) -> None:
    run = studied.run
    for string in studied.chosen:
        one = describe_string(run.model, run.language, run.config.language.lengths, string, seed=seed, split=split)
        one["stacks"] = [stack for stack in one["stacks"] if stack["name"] in studied.stacks]
        studied.strings.append(one)


def _left_out(models: int, strings: int) -> str:
    what = f"only the first of {strings} strings" if strings > 1 else "the string"
    return (
        f"As there are {models} models, more than {FEW}, {what} is shown for each, and no maps of single states and "
        "stack symbols: analyse the folder of one run to see everything."
    )


def _choose_stacks(runs: list[StudiedRun], stack: int | None) -> None:
    """Give each run the names of its stacks, or of the one that is asked for, which some run must have."""
    most: list[str] = []
    for studied in runs:
        any_string = torch.zeros(1, 2, dtype=torch.long)
        names = [trace.name for trace in watch_stacks(studied.run.model, any_string)]
        studied.stacks = names if stack is None else names[stack - 1 : stack]
        most = max(most, names, key=len)
    if stack is not None and runs and not 1 <= stack <= len(most):
        if not most:
            raise ValueError(f"stack: expected none, as no model here has a stack, got {stack}")
        raise ValueError(f"stack: expected a number from 1 to {len(most)} ({'; '.join(most)}), got {stack}")


def _only(names: list[str], found: dict[str, Agreement]) -> dict[str, Agreement]:
    return {name: found[name] for name in names if name in found}
