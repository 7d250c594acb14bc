"""Agreement of each run's stack with a real stack, against the run's cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..analysis.figures import new_figure, save_figure
from ..analysis.labelled_strings import LabelledStrings, label_strings
from ..analysis.loaded_runs import LanguageRun, LoadedRun, load_run
from ..analysis.real_stack import Agreement
from ..analysis.traces import stack_names
from .cells import Cell
from .measurements import measured_once
from .names import ALL_LABELS
from .tables import number, publish

FILE = "agreement.json"
REAL, DERIVED = "real top", "best run"
"""Agreement of the weights with a real stack (deterministic languages), and of the best run with a derivation."""


@dataclass(frozen=True)
class Point:
    """A run and the agreement of its stack."""

    cell: Cell
    run: LoadedRun
    agreement: dict[str, Agreement]
    """By `REAL` and `DERIVED`; of the stack with the highest share, if the model has several."""


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the agreement of all runs, write it to `out` as `agreement`, and draw `agreement.png` and `.svg`.

    Returns:
        An exit code: 1 if no run has a stack that can be measured.
    """
    points = measure(cells)
    agreements = [title for name in (REAL, DERIVED) for title in (name, f"{name}, baseline")]
    header = ["task", "model", "run", "ended", "validation", *agreements]
    notes = (
        "Validation: cross-entropy difference in nats. Real top: share of steps at which the token with the most "
        "weight is on top of the real stack. Best run: share of steps at which the run with the largest weight has the "
        "token of the most probable derivation on top. Baseline: the better of a stack that only pushes and a stack "
        "that stays empty."
    )
    rows = []
    for point in points:
        found = [point.agreement.get(name) for name in (REAL, DERIVED)]
        shares = [
            number(value, ".3f")
            for one in found
            for value in ((one.share, max(one.baselines.values())) if one is not None else (None, None))
        ]
        label = ALL_LABELS[point.cell.model]
        rows.append([point.cell.task, label, point.run.name, point.run.ending, number(point.run.score, ".4f"), *shares])
    if code := publish("agreement", header, rows, notes, out):
        return code
    for path in draw(points, out / "agreement"):
        print(f"written to {path}")
    return 0


def measure(cells: Sequence[Cell]) -> list[Point]:
    """The agreement of each run that has a stack, on the same strings for all runs of a task; measured if necessary."""
    labelled: dict[Any, LabelledStrings] = {}

    def measure_run(folder: Path) -> dict[str, Any]:
        run = load_run(folder, folder.name)
        assert isinstance(run, LanguageRun)
        if not stack_names(run.model):
            return {}
        if run.task not in labelled:
            labelled[run.task] = label_strings(run.language, run.config.language.lengths)
        strings = labelled[run.task]
        found = {REAL: strings.compare_weights(run.model), DERIVED: strings.compare_best_runs(run.model)}
        best = {name: max(stacks.values(), key=lambda one: one.share) for name, stacks in found.items() if stacks}
        return {name: asdict(agreement) for name, agreement in best.items()}

    points = []
    for cell in cells:
        for folder in cell.folders:
            found = measured_once(folder, FILE, measure_run)
            agreement = {name: Agreement(**found[name]) for name in (REAL, DERIVED) if name in found}
            if agreement:
                points.append(Point(cell, load_run(folder, folder.name), agreement))
    return points


def draw(points: Sequence[Point], path: Path) -> list[Path]:
    """Draw agreement against validation difference: with real stacks (left) and with derivations (right).

    Args:
        points: the runs.
        path: where to write, without suffix.

    Returns:
        The files written: a PNG and an SVG.
    """
    figure = new_figure(7.5, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    tasks = list(dict.fromkeys(point.cell.task for point in points))
    models = [model for model in ALL_LABELS if any(point.cell.model == model for point in points)]
    markers = dict(zip(models, "osD^vP", strict=False))
    colours = {task: f"C{i}" for i, task in enumerate(tasks)}
    for axis, name in zip(axes, (REAL, DERIVED), strict=True):
        for point in points:
            if name in point.agreement:
                marker, colour = markers[point.cell.model], colours[point.cell.task]
                share = point.agreement[name].share
                face = colour if point.run.finished else "none"
                axis.plot(point.run.score, share, marker, color=colour, markerfacecolor=face, markersize=5)
        axis.set_xlabel("validation: nats above the true distribution", fontsize=8)
        axis.set_ylim(-0.03, 1.03)
        axis.tick_params(labelsize=7)
    axes[0].set_title("most weighted token and a real stack", fontsize=9)
    axes[1].set_title("best run and the most probable derivation", fontsize=9)
    axes[0].set_ylabel("share of steps that agree", fontsize=8)
    for task, colour in colours.items():
        axes[1].plot([], [], "s", color=colour, markersize=4, label=task)
    for model, marker in markers.items():
        axes[1].plot([], [], marker, color="0.3", markersize=4, label=ALL_LABELS[model])
    axes[1].legend(fontsize=6, title="hollow: not finished", title_fontsize=6)
    return save_figure(figure, path.with_suffix(".png"), path.with_suffix(".svg"))
