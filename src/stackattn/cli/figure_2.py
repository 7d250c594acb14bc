"""The paper's Figure 2 from the runs that exist, and a table of its lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_json
from ..training.cfl import evaluate_run
from ..training.sweep import best_of
from .reproduce import Cell, tested

TEST_LENGTHS = (40, 100)
TEST_STRINGS = 100  # of each length


def show(cells: Sequence[Cell], out: Path) -> int:
    lines = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        if not tested(folder) or _of_other_strings(folder):
            write_json(folder / "test.json", evaluate_run(folder, TEST_LENGTHS, TEST_STRINGS))
        lines.append({"task": cell.task, "model": cell.model, "run": folder, "best": best, "restarts": cell.begun})
    if not lines:
        print("no run has come to its first evaluation yet", file=sys.stderr)
        return 1
    _table(lines)
    return _draw(lines, out / "figure-2")


def _of_other_strings(folder: Path) -> bool:
    """Whether a test was made with another number of strings, and its model is there to repeat it."""
    test = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    return test["per_length"] != TEST_STRINGS and (folder / "best/model.safetensors").exists()


def _table(lines: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The best restart of each, by validation", title_justify="left")
    for name in ("task", "model", "restarts", "difference", "epoch", "rate", "minutes"):
        table.add_column(name, no_wrap=True)
    for line in lines:
        best = line["best"]
        numbers = f"{best['cross_entropy_difference']:.4f}", str(best["epoch"]), f"{best['learning_rate']:.2g}"
        table.add_row(line["task"], line["model"], str(line["restarts"]), *numbers, f"{best['seconds'] / 60:.1f}")
    Console().print(table)


def _draw(lines: list[dict[str, Any]], path: Path) -> int:
    from ..analysis.curves import draw_figure_2

    try:
        for made in draw_figure_2(lines, path):
            print(f"written to {made}")
    except ModuleNotFoundError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    return 0
