"""Length generalisation: validity of the best run and of all restarts, up to five times the training lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.figures import new_figure, save_figure
from ..training.cfl import evaluate_run
from ..training.sweep import best_of
from .cells import Cell
from .figure_2 import LONGEST_SEEN
from .measurements import measured_once
from .names import ALL_LABELS, LIMITED
from .tables import publish

LENGTHS, STEP, STRINGS = (40, 400), 60, 30  # lengths 40, 100, 160, ..., 400, with 30 strings of each
FILE = "validity.json"


@dataclass(frozen=True)
class Curves:
    """Validity of all restarts of one cell."""

    cell: Cell
    best: list[dict[str, Any]]
    """Results by length of the best run by validation."""
    restarts: list[list[dict[str, Any]]]
    """Results by length of every restart that has any."""


def show(cells: Sequence[Cell], out: Path, name: str = "validity") -> int:
    """Print the table, write it to `out`, and draw it there as a PNG and an SVG file.

    Args:
        cells: the cells of the table.
        out: folder of the files.
        name: name of the files, without suffix.

    Returns:
        An exit code: 1 if no model can be measured.
    """
    found = [curves for cell in cells if (curves := _measured(cell)) is not None]
    lengths = _lengths()
    header = ["task", "model", "finished", *(str(length) for length in lengths), f"restarts at {lengths[-1]}"]
    notes = (
        f"Validity and share of flawless strings by length (rounded up to a possible one), {STRINGS} strings "
        "each, of the best run by validation; in the last column, validity of every restart at the last length. "
        f"Training strings have at most {LONGEST_SEEN} symbols; docs/training.md defines both figures."
    )
    rows = [
        [curves.cell.task, ALL_LABELS[curves.cell.model], curves.cell.finished]
        + [f"{row['validity']:.4f}, {row['flawless']:.2f}" for row in curves.best]
        + [", ".join(f"{restart[-1]['validity']:.4f}" for restart in curves.restarts)]
        for curves in found
    ]
    if code := publish(name, header, rows, notes, out):
        return code
    for path in draw(found, out / name):
        print(f"written to {path}")
    return 0


def show_limited(cells: Sequence[Cell], out: Path) -> int:
    """Like `show`, for stacks with a window or a limited depth; the files are named `long`."""
    return show(cells, out, "long")


def _measured(cell: Cell) -> Curves | None:
    """The results of a cell by length, measured now if necessary; None if there are none for its best run."""
    if (best := best_of(cell.folders)) is None:
        return None
    found = {folder: measured_once(folder, FILE, _measure).get("lengths", []) for folder in cell.folders}
    return Curves(cell, found[best[0]], [rows for rows in found.values() if rows]) if found[best[0]] else None


def _measure(folder: Path) -> dict[str, Any]:
    lengths = _lengths()
    # The range extends past the last length: a language may have no strings of exactly that length, only longer ones.
    return evaluate_run(folder, (lengths[0], lengths[-1] + STEP - 1), STRINGS, step=STEP)


def _lengths() -> list[int]:
    return list(range(LENGTHS[0], LENGTHS[1] + 1, STEP))


def draw(found: Sequence[Curves], path: Path) -> list[Path]:
    """Draw validity (left) and the share of flawless strings (right) by length, one row of axes per task.

    The best run of each cell is a thick line; the other restarts are thin, faint lines.

    Args:
        found: cells and their results by length.
        path: path of the files, without suffix.

    Returns:
        The files written: a PNG and an SVG.
    """
    tasks = list(dict.fromkeys(curves.cell.task for curves in found))
    figure = new_figure(7.5, 2.1 * len(tasks) + 0.7)
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    exact = [model for model in ALL_LABELS if model not in LIMITED]
    styles = {model: (f"C{i}", "--" if model.startswith("lstm") else "-") for i, model in enumerate(exact)}
    for model in LIMITED:  # the colour of the exact model
        styles[model] = styles[model.rpartition("-")[0]][0], "-." if model.endswith("64") else ":"
    for pair, task in zip(axes, tasks, strict=True):
        for curves in (curves for curves in found if curves.cell.task == task):
            colour, line = styles[curves.cell.model]
            for axis, name in zip(pair, ("validity", "flawless"), strict=True):
                for rows in curves.restarts:
                    axis.plot(*_points(rows, name), line, color=colour, linewidth=0.6, alpha=0.4)
                label = ALL_LABELS[curves.cell.model]
                axis.plot(*_points(curves.best, name), line, color=colour, linewidth=1.2, label=label)
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


def _points(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    return [row["length"] for row in rows], [row[name] for row in rows]
