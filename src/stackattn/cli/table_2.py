"""The paper's tables of language modelling from the runs that exist, beside the paper's numbers: perplexities and cost.

Each is printed, and written as Markdown into the folder of the runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..files import write_json, write_text
from ..models.paper import ARCHITECTURES, COUNTS
from ..training import Run
from ..training.lm import evaluate_run
from ..training.sweep import best_of
from .reproduce import Cell


class Paper(NamedTuple):
    """What the paper says of a model on the Penn Treebank."""

    parameters: int | None = None
    validation: float | None = None
    test: float | None = None
    speed: float | None = None  # examples per second, on an NVIDIA TITAN Xp
    minutes: float | None = None  # for an epoch
    memory: float | None = None  # MB, on the GPU


NAMES = {"tf": "Tf", "tf-sup": "Tf+Sup", "tf-nd": "Tf+Nd"}
PARAMETERS = dict(zip(ARCHITECTURES, COUNTS["ptb"], strict=True))
PAPER = {
    ("ptb", "tf"): Paper(PARAMETERS["Tf"], 115.11, 92.84, 859, 0.8, 394),
    ("ptb", "tf-sup"): Paper(PARAMETERS["Tf+Sup"], 122.94, 98.67, 345, 1.9, 397),
    ("ptb", "tf-nd"): Paper(PARAMETERS["Tf+Nd"], 110.59, 88.54, 27, 24.3, 1910),
}


def show(cells: Sequence[Cell], out: Path) -> int:
    header = ["task", "model", "restarts", "params", "paper", "val.", "paper", "test", "paper", "rate", "batch"]
    rows = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        test = _tested(folder)
        paper = PAPER.get((cell.task, cell.model), Paper())
        rows.append(
            [
                cell.task,
                NAMES[cell.model],
                str(sum(bool(Run(folder).metrics()) for folder in cell.folders)),
                _number(test.get("parameters"), ","),
                _number(paper.parameters, ","),
                _number(best["perplexity"], ".2f"),
                _number(paper.validation, ".2f"),
                _number(test.get("perplexity"), ".2f"),
                _number(paper.test, ".2f"),
                f"{Run(folder).config()['training']['learning_rate']:.2g}",
                str(Run(folder).config()["data"]["batch_tokens"]),
            ]
        )
    notes = "Perplexities of the best restart by validation, EOS counted; rate and tokens of a batch are that run's."
    return _publish("table-2", header, rows, notes, out)


def show_cost(cells: Sequence[Cell], out: Path) -> int:
    """Of the fastest restart of each model, as in the paper; time for evaluations and checkpoints is not counted."""
    header = ["task", "model", "examples/s", "paper", "min./epoch", "paper", "memory, MB", "paper", "threads", "batch"]
    rows, machines = [], set()
    for cell in cells:
        speeds = []
        for folder in cell.folders:
            if metrics := Run(folder).metrics():
                speeds.append((metrics[-1]["examples"] / metrics[-1]["train_seconds"], folder, metrics[-1]))
        if not speeds:
            continue
        speed, folder, last = max(speeds, key=lambda x: x[0])
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        machines.add(f"{environment['processor']}, {environment['cores']} cores")
        paper = PAPER.get((cell.task, cell.model), Paper())
        rows.append(
            [
                cell.task,
                NAMES[cell.model],
                _number(speed, ".1f"),
                _number(paper.speed, ",.0f"),
                _number(last["examples_per_epoch"] / speed / 60, ".1f"),
                _number(paper.minutes, ".1f"),
                _number(last["memory"] and last["memory"] / 1e6, ",.0f"),
                _number(paper.memory, ",.0f"),
                str(environment["threads"]),
                str(Run(folder).config()["data"]["batch_tokens"]),
            ]
        )
    notes = (
        f"The fastest restart of each, training only, on: {'; '.join(sorted(machines))}. The paper's: NVIDIA TITAN Xp, "
        "memory allocated on the GPU; ours is all that the process holds."
    )
    return _publish("table-ptb-cost", header, rows, notes, out)


def _tested(folder: Path) -> dict[str, Any]:
    """The test of the best model of a run, which is kept in `test.json`.

    Without its model, what was measured before is kept; without the data there is no test.
    """
    test, model = folder / "test.json", folder / "best/model.safetensors"
    if model.exists() and (not test.exists() or test.stat().st_mtime < model.stat().st_mtime):
        try:
            write_json(test, evaluate_run(folder))
        except FileNotFoundError as error:
            print(f"no test: {error}", file=sys.stderr)
            return {}
    return json.loads(test.read_text(encoding="utf-8")) if test.exists() else {}


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _publish(name: str, header: list[str], rows: list[list[str]], notes: str, out: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("no run has come to its first evaluation yet", file=sys.stderr)
        return 1
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print(notes)
    lines = [header, ["---", "---", *["---:"] * (len(header) - 2)], *rows]
    path = out / f"{name}.md"
    write_text(path, "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{notes}\n")
    print(f"written to {path}")
    return 0
