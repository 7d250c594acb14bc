"""Finds run folders, and reads their configurations, results and models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..languages import Language
from ..models import LSTMArchitecture
from ..models.saving import load
from ..nn.kinds import STACK_KINDS
from ..nn.specs import StackSpec, parse_layers
from ..training.cfl import CFLConfig, evaluate_by_length
from ..training.experiment import config_of, model_folder
from ..training.run import RunError, TrainingRun
from ..training.run_files import CONFIG, METRICS, TEST


@dataclass(frozen=True)
class RunFolder:
    """A run of `stackattn cfl`: its configuration, its results and its best model."""

    folder: Path
    name: str
    """Path relative to the folder under study; for a single run, the name of its folder."""
    config: CFLConfig
    metrics: list[dict[str, Any]]
    best: dict[str, Any] | None
    """The evaluation with the best score."""
    ending: str
    """How the run ended, or "not finished"."""
    without_model: str
    """Why there is no best model; empty if there is one."""
    saved_test: dict[str, Any] | None
    """Results by length from test.json, if they belong to the best model."""

    @classmethod
    def read(cls, folder: Path, name: str) -> RunFolder:
        """Read everything but the model. Raises RunError, ValueError or OSError if a file is missing or damaged."""
        run = TrainingRun(folder)
        values = run.config()
        if "format_version" in values:
            raise RunError(f"{folder}: this is a saved model; analyse the folder of its run, {folder.resolve().parent}")
        if "language" not in values:
            raise RunError(f"{folder}: expected a run of `stackattn cfl`; other runs cannot be analysed")
        config = config_of(CFLConfig, folder, values)
        metrics = run.metrics()
        for number, row in enumerate(metrics, 1):
            if row.get("cross_entropy_difference") is None:
                raise RunError(f"{folder / METRICS}, line {number}: missing key 'cross_entropy_difference'")
        stopped = run.result()["stopped"] if run.finished else "not finished"
        ending = "all epochs done" if stopped == "max_epochs" else stopped
        test = run.test()
        if test is not None and "per_length" not in test:
            raise RunError(f"{folder / TEST}: missing key 'per_length'")
        return cls(folder, name, config, metrics, run.best_evaluation(), ending, run.without_model, test)

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
    def task(self) -> tuple[str, str, str | None, tuple[int, int]]:
        """Key that is equal for comparable runs: the language with its parameters, and the training lengths."""
        language = self.config.language
        return language.name, json.dumps(language.parameters, sort_keys=True), language.grammar, language.lengths

    @property
    def layers(self) -> str:
        options = self.config.model
        return (options.stack or "") if isinstance(options, LSTMArchitecture) else str(options.layers)

    @property
    def label(self) -> str:
        """The paper's name of the model: Tf, Tf+Sup, Tf+Nd, LSTM, ..."""
        base = "LSTM" if isinstance(self.config.model, LSTMArchitecture) else "Tf"
        specs = parse_layers(self.layers) if self.layers else []
        kinds = {spec.kind for spec in specs if isinstance(spec, StackSpec)}
        return "+".join([base, *(kind.abbreviation for name, kind in STACK_KINDS.items() if name in kinds)])

    def test_by_length(self, per_length: int) -> dict[str, Any]:
        """Results by length: the saved ones, or new ones on `per_length` strings of each length."""
        if self.saved_test:
            return self.saved_test
        return evaluate_by_length(self.model, self.language, self.config.language.lengths, per_length=per_length)


def find_runs(folder: str | Path) -> dict[str, Path]:
    """Return the folders of runs by name: the given folder if it is a run, otherwise all runs below it.

    Raises:
        RunError: there are no runs of `stackattn cfl`.
    """
    folder = Path(folder)
    if folder.is_file():
        raise RunError(f"{folder}: expected the folder of a run, got a file; its folder is {folder.parent}")
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if TrainingRun(folder).begun:
        return {folder.resolve().name: folder}
    measured = {path.parent for name in (METRICS, TEST) for path in folder.rglob(name)}
    found = sorted(path for path in measured if TrainingRun(path).begun and _is_cfl(path))
    if not found:
        raise RunError(
            f"{folder}: expected a run of `stackattn cfl` (with {CONFIG} and {METRICS} or {TEST}), or a "
            "folder with such runs below it; found none"
        )
    return {path.relative_to(folder).as_posix(): path for path in found}


def best_of_each(runs: list[RunFolder]) -> list[RunFolder]:
    """The run with the lowest difference for each model and task, among the runs that have a best model."""
    best: dict[Any, RunFolder] = {}
    for run in runs:
        if run.best is None or not run.has_model:
            continue
        cell = run.task, run.label, run.layers
        known = best.get(cell)
        if known is None or run.best["cross_entropy_difference"] < known.best["cross_entropy_difference"]:  # pyright: ignore
            best[cell] = run
    return list(best.values())


def _is_cfl(folder: Path) -> bool:
    """Whether a run was trained on a formal language, not on a corpus. True for damaged runs: they are reported."""
    try:
        return "language" in TrainingRun(folder).config()
    except (RunError, ValueError, TypeError):
        return True
