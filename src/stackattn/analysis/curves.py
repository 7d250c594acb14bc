"""Curves of training runs: differences by epoch and by length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .figures import new_figure, save_figure

LABELS = {
    "lstm": "LSTM",
    "lstm-sup": "LSTM+Sup",
    "lstm-nd": "LSTM+Nd",
    "tf": "Tf",
    "tf-sup": "Tf+Sup",
    "tf-nd": "Tf+Nd",
}


def draw_figure_2(figures: list[dict[str, Any]], path: Path) -> list[Path]:
    """The paper's Figure 2 from the best run of each cell: validation by epoch (left), test by length (right)."""
    tasks = list(dict.fromkeys(row["task"] for row in figures))
    figure = new_figure(7.5, 2.1 * len(tasks) + 0.7)
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    styles = {model: (f"C{i}", ("-", "--")[i < 3]) for i, model in enumerate(LABELS)}
    for (left, right), task in zip(axes, tasks, strict=True):
        for row in (row for row in figures if row["task"] == task):
            colour, line = styles[row["model"]]
            label = f"{LABELS[row['model']]} ({row['restarts']})"
            metrics = row["run"].metrics()
            epochs, differences = zip(*((m["epoch"], m["cross_entropy_difference"]) for m in metrics), strict=True)
            left.plot(epochs, differences, line, color=colour, linewidth=1.2, label=label)
            lengths = [r["length"] for r in row["test"]]
            right.plot(lengths, [r["difference"] for r in row["test"]], line, color=colour, linewidth=1.2)
        left.set_ylabel(task, fontsize=9)
        right.axvline(80, color="0.4", linestyle=":", linewidth=1)
        left.legend(fontsize=6, title="(restarts)", title_fontsize=6)
        for axis in (left, right):
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=7)
    axes[0][0].set_title("validation: nats above the true distribution", fontsize=9)
    axes[0][1].set_title("test, by length", fontsize=9)
    axes[-1][0].set_xlabel("epoch", fontsize=9)
    axes[-1][1].set_xlabel("length", fontsize=9)
    return [save_figure(figure, path.with_suffix(suffix)) for suffix in (".png", ".svg")]
