"""Cost of the paper's whole protocol: `python -m benchmarks.plan` measures every cell and simulates the queue of runs.

Each cell (a model on a task) is measured in its own process with one thread: training steps on batches of typical
lengths, and evaluation. The number of epochs of a cell is the mean over its finished runs, in the folders that
`stackattn reproduce` writes, or the assumption in EPOCHS if there are none. Runs shortened by `--set
training.max_epochs` make that mean too low. The simulation gives each core the next run as soon as the core is free, in
the order of `stackattn reproduce`: restart 0 of every cell, then restart 1, and so on.
"""

import argparse
import heapq
import json
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional

from stackattn.files import write_json, write_text
from stackattn.models import build_model
from stackattn.ops.cross_entropy import cross_entropy
from stackattn.paper.models import LANGUAGES, paper_config, paper_models
from stackattn.paper.names import SLUGS
from stackattn.training.environment import describe_environment, keep_freed_memory, peak_memory
from stackattn.training.run import TrainingRun
from stackattn.training.run_files import RESULT

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
RESTARTS = {"cfl": 10, "ptb": 20, "mt": 5}  # in the paper
EPOCHS = {"cfl": 60, "ptb": 12, "mt": 20}  # assumed if there are no finished runs
CORES = (2, 64, 1000)
LENGTHS = (40, 50, 60, 70, 80)  # training lengths are uniform from 40 to 80
SENTENCES, SENTENCE = 39_831, 24  # number and mean length of the Penn Treebank's training sentences
PAIRS, PAIR = 100_000, 27  # number of sentence pairs for translation, and assumed tokens on each side
REPEATS = 3
BATCH_TOKENS = 2048  # tokens of a batch for translation, on each side
LABEL_SMOOTHING = 0.1  # of translation


def kind(task: str) -> str:
    """The experiment of a task: `cfl`, `ptb` or `mt`."""
    return "cfl" if task in LANGUAGES else task.partition("-")[0]


def cells() -> list[tuple[str, str]]:
    """Task and label of each of the paper's models."""
    return [(task, label) for _, task, label, _ in paper_models()]


def finished_epochs(folder: Path) -> dict[tuple[str, str], list[int]]:
    """Epochs of the finished runs of each cell, from all run folders .../TASK/MODEL/00 in a folder."""
    names = {
        (task.removeprefix("mt-"), SLUGS[label]): (task, label)  # folders are called 160 and tf-nd
        for task, label in cells()
    }
    found: dict[tuple[str, str], list[int]] = {}
    for result in sorted(folder.rglob(RESULT)):
        run = TrainingRun(result.parent)
        if (cell := names.get(run.folder.parts[-3:-1])) and (metrics := run.metrics()):
            found.setdefault(cell, []).append(metrics[-1]["epoch"])
    return found


def with_epochs(rows: list[dict], finished: dict[tuple[str, str], list[int]]) -> list[dict]:
    """The rows with the number of epochs for the plan, and the number of finished runs over which it is averaged."""
    return [
        {
            **row,
            "epochs": statistics.mean(epochs) if epochs else EPOCHS[kind(row["task"])],
            "finished_runs": len(epochs),
        }
        for row in rows
        for epochs in [finished.get((row["task"], row["model"]), [])]
    ]


def measure(cell: tuple[str, str]) -> dict[str, float | str | int | None]:
    """Seconds per epoch and peak memory of a cell; must be called in a new process, whose memory is measured."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as in every training run
    task, architecture = cell
    config = paper_config(task, architecture, published=True)
    model = build_model(config)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def text(size: int, length: int) -> Tensor:
        return torch.randint(config.output_size, (size, length + 1))

    if kind(task) == "cfl":
        batches = [(text(10, length),) for length in LENGTHS]
        steps, checks = (
            1000 / len(batches),
            1000 / (10 * len(batches)),
        )  # 1,000 training batches, 1,000 validation strings
    elif kind(task) == "ptb":
        batches = [(text(320 // SENTENCE, SENTENCE),)]  # restarts draw batches of 128 to 512 tokens, 320 on average
        # two evaluations per epoch, on 1,346 sentences
        steps, checks = SENTENCES / (320 // SENTENCE), 2 * 1346 / (320 // SENTENCE)
    else:
        size = BATCH_TOKENS // (PAIR + 1)
        batches = [(text(size, PAIR), text(size, PAIR))]
        steps, checks = PAIRS / size, 2 * 2000 / size  # two evaluations per epoch, on about 2,000 pairs
    model.train()
    step = min(sum(_step(model, optimizer, batch, kind(task)) for batch in batches) for _ in range(REPEATS + 1))
    model.eval()
    with torch.no_grad():
        check = min(sum(_seconds(lambda batch=batch: model(*batch)) for batch in batches) for _ in range(REPEATS))
    return {
        "task": task,
        "model": architecture,
        "seconds_per_epoch": steps * step + checks * check,
        "memory": peak_memory(),
    }


def _loss(logits: Tensor, targets: Tensor, experiment: str) -> Tensor:
    """The loss of the experiment's training: summed over a string, averaged over strings."""
    if experiment == "cfl":
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    else:
        losses = cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING if experiment == "mt" else 0.0)
    return losses.sum() / len(targets)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Tensor], experiment: str) -> float:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        _loss(model(*batch), batch[-1], experiment).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return _seconds(step)


def _seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def makespan(seconds: Sequence[float], cores: int) -> float:
    """Time at which the last run ends if each core takes the next run as soon as the core is free."""
    free = [0.0] * cores
    for duration in seconds:
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


def plan(rows: list[dict], cores: Sequence[int] = CORES) -> list[dict]:
    """Number of runs, core hours and hours of each experiment, and of all together."""
    runs = {
        name: [
            row["seconds_per_epoch"] * row["epochs"]
            for _ in range(RESTARTS[name])
            for row in rows
            if kind(row["task"]) == name
        ]
        for name in RESTARTS
    }
    runs["all"] = [seconds for name in RESTARTS for seconds in runs[name]]
    return [
        {
            "experiment": name,
            "runs": len(seconds),
            "core_hours": sum(seconds) / 3600,
            "hours": {str(count): makespan(seconds, count) / 3600 for count in cores},
        }
        for name, seconds in runs.items()
    ]


def report(rows: list[dict], planned: list[dict], about: str) -> str:
    """The plan and the measurements as Markdown; `about` describes the machine."""
    lines = [
        "# What the paper's protocol costs",
        "",
        f"Made by `python -m benchmarks.plan`. {about}",
        "",
        f"| experiment | restarts | runs | core hours | {' | '.join(f'{n} cores' for n in CORES)} |",
        f"|---|---|---|---|{'---|' * len(CORES)}",
    ]
    for row in planned:
        name = row["experiment"]
        hours = " | ".join(f"{row['hours'][str(n)]:,.1f} h" for n in CORES)
        lines.append(f"| {name} | {RESTARTS.get(name, '')} | {row['runs']} | {row['core_hours']:,.1f} | {hours} |")
    lines += ["", "| task | model | seconds per epoch | epochs | from | memory |", "|---|---|---|---|---|---|"]
    for row in rows:
        memory = "" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f} MB"
        count = row["finished_runs"]
        source = f"{count} finished run{'s' * (count > 1)}" if count else "assumed"
        figures = f"{row['seconds_per_epoch']:,.1f} | {row['epochs']:g} | {source}"
        lines.append(f"| {row['task']} | {row['model']} | {figures} | {memory} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.plan", description=__doc__)
    parser.add_argument(
        "--output",
        default="plan",
        metavar="NAME",
        help="write benchmarks/results/NAME.json and NAME.md (default: %(default)s)",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="use the measurements in benchmarks/results/NAME.json instead of measuring",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=ROOT / "experiments/results",
        metavar="FOLDER",
        help="folder of finished runs, for their numbers of epochs (default: experiments/results)",
    )
    args = parser.parse_args(argv)
    path = RESULTS / f"{args.output}.json"
    if args.simulate:
        if not path.exists():
            parser.error(f"--simulate: expected measurements in {path}, found no such file; omit --simulate to measure")
        found = json.loads(path.read_text(encoding="utf-8"))
    else:
        rows = []
        for cell in track(cells(), "measuring"):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a process per cell, to measure its memory
                rows.append(pool.submit(measure, cell).result())
        found = {"environment": describe_environment(), "cells": rows}
    found["cells"] = with_epochs(found["cells"], finished_epochs(args.runs))
    found["plan"] = plan(found["cells"])
    write_json(path, found)
    made_with = found["environment"]
    about = f"One thread of {made_with['processor'] or platform.machine()}, torch {made_with['torch']}."
    text = report(found["cells"], found["plan"], about)
    write_text(path.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
