"""A run under study: its best model on some strings, its agreement with a real stack, its results by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..languages import sample_batches
from .folders import RunFolder, best_of_each, find_runs
from .real_stack import Agreement, agreement, derivation_tops, real_tops
from .strings import ChosenString, choose_strings, describe_string, with_bos
from .traces import watch_stacks

AGREEMENT_BATCHES = 10  # of ten strings of one length each
DERIVED_STRINGS = 10  # whose best run is compared with their derivation, which is slower
TEST_STRINGS = 20  # of each length, where a run has no test.json
FEW = 4  # models that can be looked at in full; of more than that, only what is quick and small


@dataclass
class StudiedRun:
    run: RunFolder
    parameters: int | None = None
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
    """Those whose models were looked at: the best one of each model on each language."""

    @property
    def single(self) -> bool:
        return len(self.runs) == 1


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
            The strings to step through: see `choose_strings`. Where there are many models, each gets the first one.
        seed:
            Of sampled strings and runs.
        stack:
            Only this one of a model's stacks, counted from 1; all of them if not given.
        report:
            Told what is being done.
    """
    folder = Path(folder)
    found = [StudiedRun(run) for run in find_runs(folder)]
    runs = [studied.run for studied in found]
    chosen = best_of_each(runs)
    best = [studied for studied in found if studied.run in chosen]
    few = len(best) <= FEW
    for studied in best:
        run = studied.run
        report(f"{run.label} on {run.language.name}: {run.name}")
        studied.parameters = sum(x.numel() for x in run.model.parameters())
        studied.test = run.test(TEST_STRINGS) if few else run.saved_test()
        lengths = run.config.language.lengths
        studied.chosen = choose_strings(run.language, lengths, texts, samples, seed)[: None if few else 1]
        for string in studied.chosen:
            one = describe_string(run.model, run.language, lengths, string, seed=seed, split=few)
            one["stacks"] = one["stacks"] if stack is None else one["stacks"][_index(stack, len(one["stacks"]))]
            studied.strings.append(one)
        studied.agreement = measure_agreement(run, seed)
        if few:
            studied.derivation = measure_derivation(run, seed)
    return Study(folder, seed, found, best)


def _index(stack: int, count: int) -> slice:
    if not 1 <= stack <= count:
        raise ValueError(f"stack: expected a number from 1 to {count}, as this model has {count} stacks, got {stack}")
    return slice(stack - 1, stack)


def measure_agreement(run: RunFolder, seed: int = 0) -> dict[str, Agreement]:
    """Of each stack's most weighted elements with a real stack, over strings of the training lengths."""
    tops, traces = [], []
    for batch in _strings(run, AGREEMENT_BATCHES, 10, seed):
        real = [real_tops(run.language, string.tolist()) for string in batch]
        if any(row is None for row in real):
            return {}
        tops.append(real)
        traces.append(watch_stacks(run.model, with_bos(run.language, torch.from_numpy(batch))))
    return agreement(traces, tops)


def measure_derivation(run: RunFolder, seed: int = 0) -> dict[str, Agreement]:
    """Of each stack's best runs with the most probable derivations, over strings of the training lengths."""
    tops, traces = [], []
    for batch in _strings(run, DERIVED_STRINGS, 1, seed):
        found = watch_stacks(run.model, with_bos(run.language, torch.from_numpy(batch)))
        derived = derivation_tops(run.language, batch[0].tolist()) if found else None
        if derived is None:
            return {}
        tops.append([derived])
        traces.append(found)
    return agreement(traces, tops, best_run=True)


def _strings(run: RunFolder, batches: int, batch_size: int, seed: int) -> list[np.ndarray]:
    lengths = run.config.language.lengths
    return sample_batches(run.language, lengths, batches, batch_size, np.random.default_rng(seed)).batches
