"""The paper's Figure 2 and a table of its curves, from the runs that exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.figures import new_figure, save_figure
from ..training import TrainingRun
from ..training.cfl import CFLConfig, evaluate_run
from ..training.run import config_of
from ..training.sweep import best_of
from .cells import Cell
from .measurements import results_of_test
from .names import LABELS
from .tables import number, publish

TEST_LENGTHS = (40, 100)
TEST_STRINGS = 100  # per length
LONGEST_SEEN = 80  # training strings have 40 to 80 symbols


@dataclass(frozen=True)
class Curve:
    """The best run of one cell."""

    cell: Cell
    run: TrainingRun
    best: dict[str, Any]
    """The evaluation with the lowest cross-entropy difference."""
    test: list[dict[str, Any]]
    """Test results, one row per length; empty if there are none."""


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the table, write it to `out` as `figure-2`, and draw `figure-2.png` and `.svg`.

    Returns:
        An exit code: 1 if no run has been evaluated.
    """
    curves = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        curves.append(Curve(cell, TrainingRun(folder), best, test_by_length(folder)))
    header = ["task", "model", "finished", "validation", "test, seen lengths", "longer", "epoch", "rate", "minutes"]
    notes = (
        "Cross-entropy differences in nats, of the best run by validation, and that run's epoch, learning rate and "
        "time up to then. `Finished` counts the runs that ended by early stopping or at the last epoch. Test "
        "differences follow the published convention, in which a perfect model does not reach 0 (docs/training.md)."
    )
    if code := publish("figure-2", header, [_row(curve) for curve in curves], notes, out):
        return code
    if any(cell.evaluated > 1 for cell in cells):
        show_restarts(cells, out)
    for path in draw(curves, out / "figure-2"):
        print(f"written to {path}")
    return 0


def show_restarts(cells: Sequence[Cell], out: Path) -> int:
    """Print all restarts of each cell, write them to `out` as `figure-2-restarts`, and return an exit code."""
    header = ["task", "model", "finished", "best", "median", "worst", "restarts (rate: difference, epochs)"]
    notes = (
        "Lowest validation differences of the restarts, in nats, with the initial learning rate and the number of "
        "epochs. An asterisk marks a run that is not finished."
    )
    rows = [
        [cell.task, LABELS[cell.model], cell.finished, *figures]
        for cell in cells
        if (figures := cell.restarts("cross_entropy_difference", ".4f"))
    ]
    return publish("figure-2-restarts", header, rows, notes, out)


def test_by_length(folder: Path) -> list[dict[str, Any]]:
    """The test results of a run at the lengths of the figure, measured now if necessary."""
    return results_of_test(folder, _measure, _has_test_lengths(folder)).get("lengths", [])


def _has_test_lengths(folder: Path) -> Callable[[dict[str, Any]], bool]:
    """A function that checks whether stored test results have the lengths, number of strings and seed of the figure."""
    lengths = config_of(CFLConfig, folder).language.make().valid_lengths(*TEST_LENGTHS).tolist()

    def usable(test: dict[str, Any]) -> bool:
        found = [row["length"] for row in test["lengths"]]
        return (test["seed"], test["per_length"], found) == (0, TEST_STRINGS, lengths)

    return usable


def _measure(folder: Path) -> None:
    TrainingRun(folder).write_test(evaluate_run(folder, TEST_LENGTHS, TEST_STRINGS))


def _row(curve: Curve) -> list[str]:
    longest = curve.run.config()["language"]["lengths"][1]
    seen = [row["difference"] for row in curve.test if row["length"] <= longest]
    longer = [row["difference"] for row in curve.test if row["length"] > longest]
    means = (sum(x) / len(x) if x else None for x in (seen, longer))
    return [
        curve.cell.task,
        LABELS[curve.cell.model],
        curve.cell.finished,
        *(number(x, ".4f") for x in (curve.best["cross_entropy_difference"], *means)),
        str(curve.best["epoch"]),
        f"{curve.best['learning_rate']:.2g}",
        f"{curve.best['seconds'] / 60:.1f}",
    ]


def draw(curves: Sequence[Curve], path: Path) -> list[Path]:
    """Draw validation by epoch (left) and test by length (right), one row of axes per task.

    Args:
        curves: the best run of each cell.
        path: where to write, without suffix.

    Returns:
        The files written: a PNG and an SVG.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    tasks = list(dict.fromkeys(curve.cell.task for curve in curves))
    figure = new_figure(7.5, 2.1 * len(tasks) + 0.7)
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    styles = {model: (f"C{i}", ("-", "--")[i < 3]) for i, model in enumerate(LABELS)}
    for (left, right), task in zip(axes, tasks, strict=True):
        for curve in (curve for curve in curves if curve.cell.task == task):
            colour, line = styles[curve.cell.model]
            label = f"{LABELS[curve.cell.model]} ({curve.cell.finished})"
            metrics = curve.run.metrics()
            epochs, differences = zip(*((m["epoch"], m["cross_entropy_difference"]) for m in metrics), strict=True)
            left.plot(epochs, differences, line, color=colour, linewidth=1.2, label=label)
            lengths = [row["length"] for row in curve.test]
            right.plot(lengths, [row["difference"] for row in curve.test], line, color=colour, linewidth=1.2)
        left.set_ylabel(task, fontsize=9)
        right.axvline(LONGEST_SEEN, color="0.4", linestyle=":", linewidth=1)
        left.legend(fontsize=6, title="(finished runs)", title_fontsize=6)
        for axis in (left, right):
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=7)
    axes[0][0].set_title("validation: nats above the true distribution", fontsize=9)
    axes[0][1].set_title("test, by length", fontsize=9)
    axes[-1][0].set_xlabel("epoch", fontsize=9)
    axes[-1][1].set_xlabel("length", fontsize=9)
    return save_figure(figure, path.with_suffix(".png"), path.with_suffix(".svg"))
