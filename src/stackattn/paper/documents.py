"""Language models of long documents: perplexity and speed of the runs that exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..training import TrainingRun
from ..training.sweep import best_of
from .cells import Cell
from .measurements import results_of_test
from .names import ALL_LABELS
from .table_2 import write_test
from .tables import number, publish


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the table, write it to `out` as `documents`, and return an exit code: 1 if no run has been evaluated."""
    header = ["task", "model", "finished", "params", "tokens", "val.", "test", "tokens/s", "tokens/CPU s", "memory, MB"]
    rows = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        test, size = results_of_test(folder, write_test), TrainingRun(folder).config()["data"]["row_tokens"]
        tokens = best["examples"] * size
        speeds = [
            number(tokens / best[key] if best.get(key) else None, ",.0f") for key in ("train_seconds", "cpu_seconds")
        ]
        perplexities = [number(best["perplexity"], ".2f"), number(test.get("perplexity"), ".2f")]
        memory = number(best["memory"] and best["memory"] / 1e6, ",.0f")
        parameters = number(test.get("parameters"), ",")
        label = ALL_LABELS[cell.model]
        rows.append([cell.task, label, cell.finished, parameters, f"{tokens:,}", *perplexities, *speeds, memory])
    notes = (
        "Perplexities of the best evaluation of the best run, EOS counted, and the number of training tokens up to "
        "then. Seconds include training only, CPU seconds also the evaluations. Memory is that of the whole process."
    )
    return publish("documents", header, rows, notes, out)
