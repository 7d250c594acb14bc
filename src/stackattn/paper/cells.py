"""The cells of a figure or table: the runs of one model on one task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..training import TrainingRun
from ..training.run_files import METRICS


@dataclass(frozen=True)
class Cell:
    """The restarts of one model on one task."""

    task: str
    model: str
    """Slug of the model."""
    folders: list[Path]
    """Run folders, one per restart."""

    @property
    def evaluated(self) -> int:
        """Number of restarts that have been evaluated at least once."""
        return sum(bool(TrainingRun(folder).metrics()) for folder in self.folders)

    @property
    def finished(self) -> str:
        """How many evaluated restarts have ended by early stopping or at the last epoch, such as `1 of 3`."""
        return f"{sum(TrainingRun(folder).finished for folder in self.folders)} of {self.evaluated}"

    def restarts(self, figure: str, form: str) -> list[str]:
        """Best, median and worst value of the evaluated restarts, and a list of all: "rate: value, epochs; ...".

        An asterisk marks a restart that is not finished. The result is empty if no restart has been evaluated.

        Args:
            figure: key of the value in the metrics; lower values are better.
            form: format of the value, such as `.4f`.
        """
        evaluated = [(run, run.best_evaluation()) for run in map(TrainingRun, self.folders)]
        found = [(best[figure], run) for run, best in evaluated if best is not None]
        if not found:
            return []
        values = sorted(value for value, _ in found)
        each = "; ".join(
            f"{run.config()['training']['learning_rate']:.2g}: {value:{form}}, {run.metrics()[-1]['epoch']}"
            + "*" * (not run.finished)
            for value, run in found
        )
        return [*(format(x, form) for x in (values[0], statistics.median(values), values[-1])), each]


def find_cells(tasks: Sequence[str], models: Sequence[str], out: Path) -> list[Cell]:
    """All cells that have at least one run in `out`; run folders are OUT/TASK/MODEL/00, 01, ..."""
    return [
        Cell(task, model, folders)
        for task in tasks
        for model in models
        if (folders := sorted(path.parent for path in (out / task / model).glob(f"*/{METRICS}")))
    ]
