"""The paper's Figure 2 from the runs that exist, and a table of its lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..analysis.curves import LABELS
from ..cli.reproduce import Cell
from ..files import write_json
from ..training import TrainingRun
from ..training.cfl import CFLConfig, evaluate_run
from ..training.experiment import config_of
from ..training.sweep import best_of
from .tables import measured, number, publish

TEST_LENGTHS = (40, 100)
TEST_STRINGS = 100  # of each length


def show(cells: Sequence[Cell], out: Path) -> int:
    lines = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        run = TrainingRun(folder)
        test = measured(folder, _measure, _of_the_figure(folder))
        line = {"task": cell.task, "model": cell.model, "run": run, "best": best, "restarts": cell.begun}
        lines.append({**line, "test": test.get("lengths", [])})
    header = ["task", "model", "runs", "validation", "test, seen lengths", "longer", "epoch", "rate", "minutes"]
    notes = (
        "Cross-entropy differences in nats, of the best run by validation, and that run's epoch, learning rate and "
        "time up to then. On test as published: a perfect model does not reach 0 there (docs/training.md)."
    )
    return publish("figure-2", header, [_row(line) for line in lines], notes, out) or _draw(lines, out / "figure-2")


def _of_the_figure(folder: Path) -> Callable[[dict[str, Any]], bool]:
    """Whether a test is of these lengths, as many strings and this seed."""
    lengths = config_of(CFLConfig, folder).language.make().valid_lengths(*TEST_LENGTHS).tolist()

    def usable(test: dict[str, Any]) -> bool:
        found = [row["length"] for row in test["lengths"]]
        return (test["seed"], test["per_length"], found) == (0, TEST_STRINGS, lengths)

    return usable


def _measure(folder: Path) -> None:
    write_json(folder / "test.json", evaluate_run(folder, TEST_LENGTHS, TEST_STRINGS))


def _row(line: dict[str, Any]) -> list[str]:
    best, longest = line["best"], line["run"].config()["language"]["lengths"][1]
    seen = [row["difference"] for row in line["test"] if row["length"] <= longest]
    longer = [row["difference"] for row in line["test"] if row["length"] > longest]
    differences = best["cross_entropy_difference"], *(sum(x) / len(x) if x else None for x in (seen, longer))
    return [
        line["task"],
        LABELS[line["model"]],
        str(line["restarts"]),
        *(number(x, ".4f") for x in differences),
        str(best["epoch"]),
        f"{best['learning_rate']:.2g}",
        f"{best['seconds'] / 60:.1f}",
    ]


def _draw(lines: list[dict[str, Any]], path: Path) -> int:
    from ..analysis.curves import draw_figure_2

    try:
        for made in draw_figure_2(lines, path):
            print(f"written to {made}")
    except ModuleNotFoundError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    return 0
