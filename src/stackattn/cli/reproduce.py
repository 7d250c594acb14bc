"""Reproduce a figure or table of the paper: train what is missing, skip what is done, draw what there is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TASKS = ("marked-reversal", "unmarked-reversal", "padded-reversal", "dyck", "hardest-cfl")
MODELS = ("lstm", "lstm-sup", "lstm-nd", "tf", "tf-sup", "tf-nd")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["figure-2"], help="figure-2: cross-entropy differences on five languages")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument(
        "--restarts", type=int, default=10, help="runs of each model on each task (default: %(default)s)"
    )
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="stop training after so long; 0: only draw")
    parser.add_argument("--minutes-each", type=float, metavar="MINUTES", help="the most that one run may take")
    parser.add_argument("--processes", type=int, help="runs at once, one thread each (default: one for each core)")
    parser.add_argument(
        "--configs", default="experiments/cfl", help="folder of the configurations (default: %(default)s)"
    )
    parser.add_argument("--out", default="out/figure-2", help="folder of the runs (default: %(default)s)")
    parser.add_argument(
        "--test", type=int, default=100, metavar="N", help="test strings of each length (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    from ..files import write_json
    from ..training import Run, RunError, load_config
    from ..training.cfl import CFLConfig, evaluate_run
    from ..training.sweep import best_of, restart, run_all
    from .progress import Watchers, outcome

    out, configs = Path(args.out), Path(args.configs)
    cells = [(task, model) for task in args.tasks for model in args.models]
    try:
        jobs = []
        for number in range(args.restarts):  # first one run of everything, then the second ones
            for task, model in cells:
                config = load_config(CFLConfig, configs / task / f"{model}.yaml")
                jobs.append((out / task / model / f"{number:02d}", restart(config, number)))
        if args.budget != 0:
            missing = sum(not Run(folder).finished for folder, _ in jobs)
            print(f"{len(jobs) - missing} of {len(jobs)} runs are finished; training the others", flush=True)
            with Watchers() as watch:
                run_all(
                    jobs,
                    args.processes,
                    args.budget,
                    args.minutes_each,
                    lambda folder, result: watch.done(str(folder), outcome(folder, result)),
                    # where there are no bars, a line for each run will do
                    lambda folder: watch(str(folder)) if watch.progress else None,
                )
        figures = []
        for task, model in cells:
            found = best_of([folder for folder, _ in jobs if folder.parent == out / task / model])
            if found is None:
                continue
            folder, best = found
            test = folder / "test.json"
            if not _tested(test, args.test, folder / "best/model.safetensors"):
                write_json(test, evaluate_run(folder, (40, 100), args.test, 0))
            restarts = sum(bool(Run(f).metrics()) for f, _ in jobs if f.parent == folder.parent)
            figures.append({"task": task, "model": model, "run": folder, "best": best, "restarts": restarts})
    except (ValueError, RunError, OSError) as error:
        print(f"stackattn reproduce: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if not figures:
        print("there are no runs to draw yet", file=sys.stderr)
        return 1
    _table(figures)
    return _draw(figures, out / "figure-2")


def _tested(path: Path, per_length: int, model: Path) -> bool:
    """Whether the test was made of this model and with as many strings. Without its model it is kept as it is."""
    import json

    if not path.exists():
        return False
    same = json.loads(path.read_text(encoding="utf-8"))["per_length"] == per_length
    return not model.exists() or (same and model.stat().st_mtime <= path.stat().st_mtime)


def _table(figures: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The best restart of each, by validation", title_justify="left")
    for name in ("task", "model", "restarts", "difference", "epoch", "rate", "minutes"):
        table.add_column(name, no_wrap=True)
    for row in figures:
        best = row["best"]
        numbers = f"{best['cross_entropy_difference']:.4f}", str(best["epoch"]), f"{best['learning_rate']:.2g}"
        table.add_row(row["task"], row["model"], str(row["restarts"]), *numbers, f"{best['seconds'] / 60:.1f}")
    Console().print(table)


def _draw(figures: list[dict], path: Path) -> int:
    from ..analysis.curves import draw_figure_2

    try:
        for made in draw_figure_2(figures, path):
            print(f"written to {made}")
    except ModuleNotFoundError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    return 0
