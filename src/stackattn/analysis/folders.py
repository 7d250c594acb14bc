"""Run folders as the report sees them: one run, or all runs below a folder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..languages import Language
from ..models.saving import load
from ..training.architectures import LSTMOptions
from ..training.cfl import CFLConfig, evaluate_run
from ..training.experiment import config_of, model_folder
from ..training.run import RunError, TrainingRun


@dataclass(frozen=True)
class RunFolder:
    """A run: its configuration, what it measured, and its best model."""

    folder: Path
    name: str
    """Its path below the folder that was asked for; of a single run, the folder's own name."""
    config: CFLConfig
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path, name: str) -> RunFolder:
        run = TrainingRun(folder)
        if "format_version" in run.config():
            raise RunError(f"{folder}: this is a saved model; analyse the folder of its run, {folder.resolve().parent}")
        if not _of_language(folder):
            raise RunError(f"{folder}: not a run of `stackattn cfl`, the only ones that can be analysed")
        return cls(folder, name, config_of(CFLConfig, folder), run.metrics())

    @cached_property
    def language(self) -> Language:
        return self.config.language.make()

    @cached_property
    def model(self) -> nn.Module:
        """The best model so far."""
        return load(model_folder(self.folder))

    @property
    def has_model(self) -> bool:
        return not self.without_model

    @property
    def without_model(self) -> str:
        """Why there is no best model; empty if there is one."""
        return TrainingRun(self.folder).without_model

    @property
    def task(self) -> tuple[str, str, str | None, tuple[int, int]]:
        """What makes runs comparable: the language, as it was made, and the training lengths."""
        language = self.config.language
        return language.name, json.dumps(language.parameters, sort_keys=True), language.grammar, language.lengths

    @property
    def layers(self) -> str:
        options = self.config.model
        return (options.stack or "") if isinstance(options, LSTMOptions) else options.layers

    @property
    def label(self) -> str:
        """As the paper names its models: Tf, Tf+Sup, Tf+Nd, LSTM, ..."""
        base = "LSTM" if isinstance(self.config.model, LSTMOptions) else "Tf"
        kinds = (("superposition", "+Sup"), ("nondeterministic", "+Nd"))
        return base + "".join(short for kind, short in kinds if kind in self.layers)

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation with the best score."""
        finite = [values for values in self.metrics if math.isfinite(values["score"])]
        return min(finite, key=lambda values: values["score"]) if finite else None

    @property
    def state(self) -> str:
        """How the run ended, or that it did not."""
        if not TrainingRun(self.folder).finished:
            return "not finished"
        stopped = str(TrainingRun(self.folder).result()["stopped"])
        return "all epochs done" if stopped == "max_epochs" else stopped

    def test(self, per_length: int) -> dict[str, Any]:
        """Results by length: the saved ones, or new ones of so many strings of each length."""
        return TrainingRun(self.folder).test() or evaluate_run(self.folder, per_length=per_length)


def find_runs(folder: str | Path) -> list[RunFolder]:
    """The run in a folder, or all runs below it, by name. RunError if there are none."""
    folder = Path(folder)
    if folder.is_file():
        raise RunError(f"{folder}: expected the folder of a run, got a file; its folder is {folder.parent}")
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if (folder / "config.json").exists():
        return [RunFolder.read(folder, folder.resolve().name)]
    measured = {path.parent for name in ("metrics.jsonl", "test.json") for path in folder.rglob(name)}
    found = sorted(path for path in measured if (path / "config.json").exists() and _of_language(path))
    if not found:
        raise RunError(
            f"{folder}: neither a run of `stackattn cfl` (with config.json and metrics.jsonl or test.json) nor are "
            "there any below"
        )
    return [RunFolder.read(path, path.relative_to(folder).as_posix()) for path in found]


def _of_language(folder: Path) -> bool:
    """Not of a corpus: those of `stackattn lm` and `mt` have no grammar to compare with."""
    return "language" in TrainingRun(folder).config()


def best_of_each(runs: list[RunFolder]) -> list[RunFolder]:
    """Of the runs of one model on one task that have their best model, the one with the lowest difference."""
    best: dict[Any, RunFolder] = {}
    for run in runs:
        if run.best is None or not run.has_model:
            continue
        cell = run.task, run.label, run.layers
        known = best.get(cell)
        if known is None or run.best["cross_entropy_difference"] < known.best["cross_entropy_difference"]:  # pyright: ignore
            best[cell] = run
    return list(best.values())
