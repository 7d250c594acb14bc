"""The paper's tables on language modelling, from existing runs: perplexity (Table 2) and cost (Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..training import TrainingRun
from ..training.lm import evaluate_run
from ..training.sweep import best_of
from .cells import Cell
from .measurements import results_of_test
from .models import paper_count
from .names import LABELS
from .tables import number, publish


class Paper(NamedTuple):
    """The paper's results for a model on the Penn Treebank."""

    parameters: int
    validation: float  # perplexity
    test: float  # perplexity
    speed: float  # examples per second, on an NVIDIA TITAN Xp
    minutes: float  # per epoch
    memory: float  # MB, on the GPU


PAPER = {
    ("ptb", "tf"): Paper(paper_count("ptb", "Tf"), 115.11, 92.84, 859, 0.8, 394),
    ("ptb", "tf-sup"): Paper(paper_count("ptb", "Tf+Sup"), 122.94, 98.67, 345, 1.9, 397),
    ("ptb", "tf-nd"): Paper(paper_count("ptb", "Tf+Nd"), 110.59, 88.54, 27, 24.3, 1910),
}
"""By task and model."""


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print Table 2, write it to `out` as `table-2`, and return an exit code: 1 if no run has been evaluated."""
    header = ["task", "model", "source", "params", "val.", "test", "runs", "rate", "batch"]
    rows = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        test, config = results_of_test(folder, write_test), TrainingRun(folder).config()
        ours = _perplexities(test.get("parameters"), best["perplexity"], test.get("perplexity"))
        rate, batch = f"{config['training']['learning_rate']:.2g}", str(config["data"]["batch_tokens"])
        rows.append([cell.task, LABELS[cell.model], "ours", *ours, str(cell.evaluated), rate, batch])
        if paper := PAPER.get((cell.task, cell.model)):
            theirs = _perplexities(paper.parameters, paper.validation, paper.test)
            rows.append([cell.task, LABELS[cell.model], "paper", *theirs, "20", "", ""])
    notes = "Perplexities of the best run by validation, EOS counted, with its learning rate and its tokens per batch."
    return publish("table-2", header, rows, notes, out)


def _perplexities(parameters: int | None, validation: float | None, test: float | None) -> list[str]:
    return [number(parameters, ","), number(validation, ".2f"), number(test, ".2f")]


def show_cost(cells: Sequence[Cell], out: Path) -> int:
    """Print Table 6, write it to `out` as `table-ptb-cost`, and return an exit code: 1 if no run has been evaluated.

    Like the paper, it shows the fastest run of each model. Evaluations and checkpoints are not timed.
    """
    header = ["task", "model", "source", "examples/s", "min./epoch", "memory, MB", "threads", "batch"]
    rows, machines = [], set()
    for cell in cells:
        ends = [(folder, metrics[-1]) for folder in cell.folders if (metrics := TrainingRun(folder).metrics())]
        if not ends:
            continue
        folder, last = max(ends, key=lambda end: end[1]["examples"] / end[1]["train_seconds"])
        speed = last["examples"] / last["train_seconds"]
        environment = TrainingRun(folder).environment()
        machines.add(f"{environment['processor']}, {environment['cores']} cores")
        minutes, memory = last["examples_per_epoch"] / speed / 60, last["memory"] and last["memory"] / 1e6
        batch = str(TrainingRun(folder).config()["data"]["batch_tokens"])
        threads = str(environment["threads"])
        rows.append([cell.task, LABELS[cell.model], "ours", *_costs(speed, minutes, memory), threads, batch])
        if paper := PAPER.get((cell.task, cell.model)):
            theirs = _costs(paper.speed, paper.minutes, paper.memory)
            rows.append([cell.task, LABELS[cell.model], "paper", *theirs, "", ""])
    notes = (
        f"The fastest run of each model, without evaluations, on: {'; '.join(sorted(machines))}. Our memory is that of "
        "the whole process. The paper measured time and memory on an NVIDIA TITAN Xp."
    )
    return publish("table-ptb-cost", header, rows, notes, out)


def _costs(speed: float | None, minutes: float | None, memory: float | None) -> list[str]:
    return [number(speed, ".1f"), number(minutes, ".1f"), number(memory, ",.0f")]


def write_test(folder: Path) -> None:
    """Evaluate the best model of a run on the test set, and write the results to the folder of the run."""
    TrainingRun(folder).write_test(evaluate_run(folder))
