"""Speed of this commit and of another one: `python -m benchmarks.compare FOLDER` measures both alternately.

FOLDER is a checkout of the other commit that is installed in FOLDER/.venv. Each checkout measures a cell (a model on a
task) with its own `benchmarks.plan.measure`: seconds per epoch on one thread, training and evaluation. The best of all
rounds counts.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stackattn.files import write_json, write_text
from stackattn.ops.dispatch import kernel
from stackattn.paper.models import TABLE_3
from stackattn.training.environment import describe_environment

from .plan import EPOCHS, REPEATS, RESTARTS, RESULTS, ROOT, cells, kind

SMALL = "mt-small"
"""A task with the model sizes and the batches (1,024 tokens) of the configurations table-3/small."""

_MEASURE = """
import inspect, json, sys
from dataclasses import fields, replace
from functools import partial
from benchmarks import plan

def smaller(layers):
    return {"5": "3"}.get(layers, f"1{layers[1:-1]}1".replace("-160", "-128"))

def small_config(task, label, **options):  # the names of the fields differ between commits
    config = paper_config("mt-160", label, **options)
    names = [field.name for field in fields(config) if "layers" in field.name and getattr(config, field.name)]
    layers = {name: smaller(getattr(config, name)) for name in names}
    return replace(config, d_model=128, hidden_size=512, dropout=0.0, init_range=0.1, **layers)

plan.REPEATS = int(sys.argv[2])
paper_config = plan.paper_config
source, loss = inspect.getsource(plan.measure), plan.cross_entropy
found = []
for task, label in json.loads(sys.argv[1]):
    small = task == "mt-small"
    plan.paper_config = small_config if small else paper_config
    if hasattr(plan, "BATCH_TOKENS"):
        plan.BATCH_TOKENS = 1024 if small else 2048
    else:  # an earlier commit: change its source to use the batches, Adam and label smoothing of training
        changed = source.replace("parameters())", "parameters(), fused=True)")
        exec(changed.replace("2048", "1024") if small else changed, vars(plan))
        plan.cross_entropy = partial(loss, label_smoothing=0.1) if task.startswith("mt-") else loss
    found.append(plan.measure((task, label)))
print("CELLS", json.dumps(found))
"""

Seconds = dict[tuple[str, str], float]  # (task, model): seconds per epoch


def measured(folder: Path, chosen: Sequence[tuple[str, str]], repeats: int = REPEATS) -> Seconds:
    """Measure cells in a new process of the checkout in a folder: the best of several repetitions."""
    own = folder == ROOT
    python = sys.executable if own else str(folder / ".venv/bin/python")
    command = [python, "-c", _MEASURE, json.dumps(chosen), str(repeats)]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    rows = json.loads(output.split("CELLS", 1)[1])
    return {(row["task"], row["model"]): row["seconds_per_epoch"] for row in rows}


def commit(folder: Path) -> str:
    """Short hash of a checkout's commit."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def core_hours(seconds: Seconds) -> dict[str, float]:
    """Core hours of the paper's experiments: all restarts, and as many epochs as the plan assumes."""
    hours = dict.fromkeys(RESTARTS, 0.0)
    for (task, _), found in seconds.items():
        if task == SMALL:
            continue
        hours[kind(task)] += found * EPOCHS[kind(task)] * RESTARTS[kind(task)] / 3600
    return {name: value for name, value in hours.items() if value}


def report(before: Seconds, after: Seconds, about: str) -> str:
    """The results as Markdown; `about` describes how they were measured."""
    lines = ["# Seconds per epoch of two commits", "", about, "", "| | before | after | ratio |", "|---|---|---|---|"]
    old, new = core_hours(before), core_hours(after)
    for name, hours in old.items():
        lines.append(f"| {name}, core hours | {hours:,.1f} | {new[name]:,.1f} | {new[name] / hours:.2f} |")
    lines += ["", "| task | model | before | after | ratio |", "|---|---|---|---|---|"]
    for cell, seconds in before.items():
        lines.append(f"| {cell[0]} | {cell[1]} | {seconds:,.1f} | {after[cell]:,.1f} | {after[cell] / seconds:.2f} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="checkout of the other commit, installed in FOLDER/.venv"
    )
    tasks, models = (list(dict.fromkeys(names)) for names in zip(*cells(), strict=True))
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=[*tasks, SMALL],
        metavar="TASK",
        help=f"tasks to measure: {', '.join(tasks)} or {SMALL} (default: all but {SMALL})",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=models,
        metavar="MODEL",
        help=f"models to measure: {', '.join(models)} (default: all)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=REPEATS,
        help="repetitions of a cell in each round; fast models need more of them (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds over all cells (default: %(default)s)")
    parser.add_argument(
        "--output",
        default="commits",
        metavar="NAME",
        help="write benchmarks/results/NAME.json and NAME.md (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    chosen = [
        (task, model)
        for task, model in [*cells(), *((SMALL, label) for label in TABLE_3["mt-160"])]
        if (task != SMALL if args.tasks is None else task in args.tasks)
        and (args.models is None or model in args.models)
    ]
    found: dict[Path, Seconds] = {args.folder.resolve(): {}, ROOT: {}}
    for _ in range(args.rounds):
        for folder, best in found.items():
            for cell, seconds in measured(folder, chosen, args.repeats).items():
                best[cell] = min(seconds, best.get(cell, seconds))
    before, after = found.values()
    commits, made_with = [commit(folder) for folder in found], describe_environment()
    rows = [{"task": t, "model": m, "before": before[t, m], "after": after[t, m]} for t, m in chosen]
    path = RESULTS / f"{args.output}.json"
    write_json(
        path,
        {"environment": made_with, "rounds": args.rounds, "repeats": args.repeats, "commits": commits, "cells": rows},
    )
    machine = f"one thread of {made_with['processor']}, torch {made_with['torch']}"
    rounds = f"best of {args.rounds} alternating rounds" if args.rounds > 1 else "one round"
    about = (
        f"Made by `python -m benchmarks.compare`: commit {commits[0]} before, {commits[1]} after, {machine}, "
        f"kernel {kernel.name() if kernel else 'none'}, {rounds}, "
        f"with {args.repeats} repetitions of each cell."
    )
    text = report(before, after, about)
    write_text(path.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
