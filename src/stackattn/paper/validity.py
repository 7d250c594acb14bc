"""Length generalisation: validity of the best run of each cell, up to five times the training lengths."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.figures import new_figure, save_figure
from ..files import write_json
from ..lines import read_json_object
from ..training import RunError, TrainingRun
from ..training.cfl import evaluate_run
from ..training.sweep import best_of
from .cells import Cell
from .figure_2 import LONGEST_SEEN
from .names import LABELS, STACKS_ALONE
from .tables import publish

LENGTHS, STEP, STRINGS = (40, 400), 60, 30  # 40, 100, 160, ..., 400, and 30 strings of each
FILE = "validity.json"
ALL_LABELS = {**LABELS, **STACKS_ALONE}


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the table, write it to `out` as `validity.md`, and draw `validity.png` and `.svg`.

    Returns:
        An exit code: 1 if no model can be measured.
    """
    found = [(cell, rows) for cell in cells if (rows := _measured(cell))]
    lengths = [LENGTHS[0] + STEP * i for i in range((LENGTHS[1] - LENGTHS[0]) // STEP + 1)]
    header = ["task", "model", "finished", *(str(length) for length in lengths)]
    notes = (
        f"Validity and share of flawless strings by length (rounded up to a possible one), {STRINGS} strings "
        f"each, of the best run by validation. Training strings have at most {LONGEST_SEEN} symbols; docs/training.md "
        "defines both figures."
    )
    rows = [
        [cell.task, ALL_LABELS[cell.model], cell.finished]
        + [f"{row['validity']:.4f}, {row['flawless']:.2f}" for row in by_length]
        for cell, by_length in found
    ]
    if code := publish("validity", header, rows, notes, out):
        return code
    for path in draw(found, out / "validity"):
        print(f"written to {path}")
    return 0


def _measured(cell: Cell) -> list[dict[str, Any]]:
    """The results of the cell's best run by length, measured now if necessary; empty if there is no model."""
    if (best := best_of(cell.folders)) is None:
        return []
    folder = best[0]
    path = folder / FILE
    checksum = TrainingRun(folder).model_checksum()
    stored = read_json_object(path) if path.exists() else {}
    if checksum is not None and stored.get("model") != checksum:
        try:
            stored = evaluate_run(folder, LENGTHS, STRINGS, step=STEP)
        except (RunError, ValueError, OSError) as error:
            print(f"no validity of {folder}: {error}", file=sys.stderr)
            return []
        write_json(path, stored)
    return stored.get("lengths", [])


def draw(found: Sequence[tuple[Cell, list[dict[str, Any]]]], path: Path) -> list[Path]:
    """Draw validity (left) and the share of flawless strings (right) by length, one row of axes per task.

    Args:
        found: cells and their results by length.
        path: where to write, without suffix.
    """
    tasks = list(dict.fromkeys(cell.task for cell, _ in found))
    figure = new_figure(7.5, 2.1 * len(tasks) + 0.7)
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    styles = {model: (f"C{i}", "--" if model.startswith("lstm") else "-") for i, model in enumerate(ALL_LABELS)}
    for pair, task in zip(axes, tasks, strict=True):
        for cell, rows in found:
            if cell.task != task:
                continue
            colour, line = styles[cell.model]
            for axis, name in zip(pair, ("validity", "flawless"), strict=True):
                values = [row[name] for row in rows]
                label = ALL_LABELS[cell.model]
                axis.plot([row["length"] for row in rows], values, line, color=colour, linewidth=1.2, label=label)
        for axis in pair:
            axis.axvline(LONGEST_SEEN, color="0.4", linestyle=":", linewidth=1)
            axis.set_ylim(-0.03, 1.03)
            axis.tick_params(labelsize=7)
        pair[0].set_ylabel(task, fontsize=9)
        pair[0].legend(fontsize=6)
    axes[0][0].set_title("probability of possible symbols", fontsize=9)
    axes[0][1].set_title("share of flawless strings", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("length", fontsize=9)
    return save_figure(figure, path.with_suffix(".png"), path.with_suffix(".svg"))
