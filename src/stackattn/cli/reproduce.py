"""Reproduce a figure or table of the paper: train what is missing, skip what is done, show what there is.

A cell is a model on a task; its configuration is CONFIGS/TASK/MODEL.yaml and its restarts are OUT/TASK/MODEL/00, 01...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiments import add_set_argument, add_sweep_arguments, named, run_jobs

TRANSFORMERS = ("tf", "tf-sup", "tf-nd")


@dataclass(frozen=True)
class Target:
    """A figure or table, and the experiments it is made of."""

    summary: str
    tasks: tuple[str, ...]
    models: tuple[str, ...]
    restarts: int
    """Of each cell, in the paper."""
    configs: str
    experiment: str
    """Module and class of the configurations."""
    show: str
    """Module and function that shows the cells."""
    out: str
    """Where the runs are, unless it is said otherwise."""
    other_tasks: tuple[str, ...] = ()
    """That are not in the paper, and done on request."""


@dataclass(frozen=True)
class Cell:
    task: str
    model: str
    folders: list[Path]
    """Of its restarts, whether they have begun or not."""

    @property
    def begun(self) -> int:
        """Restarts that have been evaluated at least once."""
        from ..training import Run

        return sum(bool(Run(folder).metrics()) for folder in self.folders)


PENN_TREEBANK = ("ptb",), TRANSFORMERS, 20, "experiments", "stackattn.training.lm:LMConfig"

TARGETS = {
    "figure-2": Target(
        "cross-entropy differences on five languages",
        ("marked-reversal", "unmarked-reversal", "padded-reversal", "dyck", "hardest-cfl"),
        ("lstm", "lstm-sup", "lstm-nd", *TRANSFORMERS),
        10,
        "experiments/cfl",
        "stackattn.training.cfl:CFLConfig",
        "stackattn.cli.figure_2:show",
        "out/figure-2",
    ),
    "table-2": Target(
        "perplexities on the Penn Treebank",
        *PENN_TREEBANK,
        "stackattn.cli.table_2:show",
        "out/table-2",
        ("wikitext-2",),
    ),
    "table-ptb-cost": Target(
        "speed and memory of the runs of table 2",
        *PENN_TREEBANK,
        "stackattn.cli.table_2:show_cost",
        "out/table-2",
        ("wikitext-2",),
    ),
    "table-3": Target(
        "perplexity and BLEU of translation, in three sizes (d_model)",
        ("160", "240", "360"),
        TRANSFORMERS,
        5,
        "experiments/mt",
        "stackattn.training.mt:MTConfig",
        "stackattn.cli.table_3:show",
        "out/table-3",
        ("small",),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, target in TARGETS.items():
        command = targets.add_parser(name, help=target.summary, description=target.summary)
        if len(tasks := target.tasks + target.other_tasks) > 1:
            command.add_argument(
                "--tasks",
                nargs="+",
                choices=tasks,
                default=target.tasks,
                metavar="TASK",
                help=f"of {', '.join(tasks)} (default: {' '.join(target.tasks)})",
            )
        command.add_argument("--models", nargs="+", choices=target.models, default=target.models, metavar="MODEL")
        command.add_argument(
            "--restarts",
            type=int,
            default=target.restarts,
            metavar="N",
            help="runs of each model on each task (default: %(default)s)",
        )
        add_sweep_arguments(command)
        command.add_argument(
            "--configs", default=target.configs, help="folder of configurations (default: %(default)s)"
        )
        command.add_argument(
            "--job",
            type=int,
            metavar="N",
            help="train only run N of all, from 0, and show nothing: for array jobs",
        )
        command.add_argument("--out", default=target.out, help="folder of the runs (default: %(default)s)")
        add_set_argument(command)


def run(args: argparse.Namespace) -> int:
    from ..training import RunError

    target = TARGETS[args.what]
    try:
        jobs = _jobs(target, args)
        if args.job is not None:
            if not 0 <= args.job < len(jobs):
                raise ValueError(f"--job: expected 0 to {len(jobs) - 1}, got {args.job}")
            return 1 if _train([jobs[args.job]], args) else 0
        failed = _train(jobs, args) if args.budget != 0 else []
        cells: dict[tuple[str, str], Cell] = {}
        for folder, _ in jobs:
            task, model = folder.parts[-3:-1]
            cells.setdefault((task, model), Cell(task, model, [])).folders.append(folder)
        if not any((folder / "metrics.jsonl").exists() for folder, _ in jobs):
            print(f"there are no runs in {args.out} yet", file=sys.stderr)
            return 1
        return named(target.show)(list(cells.values()), Path(args.out)) or (1 if failed else 0)
    except (ValueError, RunError, OSError) as error:
        print(f"stackattn reproduce {args.what}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _jobs(target: Target, args: argparse.Namespace) -> list[tuple[Path, Any]]:
    """The runs, first one of every cell, then the second ones."""
    from ..training import load_config
    from ..training.sweep import restart

    experiment = named(target.experiment)
    configs = {
        (task, model): load_config(experiment, Path(args.configs) / task / f"{model}.yaml", args.set)
        for task in getattr(args, "tasks", target.tasks)
        for model in args.models
    }
    return [
        (Path(args.out) / task / model / f"{number:02d}", restart(config, number))
        for number in range(args.restarts)
        for (task, model), config in configs.items()
    ]


def _train(jobs: Sequence[tuple[Path, Any]], args: argparse.Namespace) -> list[Path]:
    from ..training import Run
    from .progress import Watchers, outcome

    missing = sum(not Run(folder).finished for folder, _ in jobs)
    print(f"{len(jobs) - missing} of {len(jobs)} runs are finished; training the others", flush=True)
    with Watchers() as watch:
        return run_jobs(
            jobs,
            args,
            lambda folder, result: watch.done(str(folder), outcome(folder, result)),
            # where there are no bars, a line for each run will do
            lambda folder: watch(str(folder)) if watch.progress else None,
        )
