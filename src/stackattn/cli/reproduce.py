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

from .experiments import add_set_argument, add_sweep_arguments, at_least, named, run_jobs, tell_what_is_left

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
    trains: bool = True
    """Or only shows the runs of another one."""


@dataclass(frozen=True)
class Cell:
    task: str
    model: str
    folders: list[Path]
    """Of its restarts."""

    @property
    def begun(self) -> int:
        """Restarts that have been evaluated at least once."""
        from ..training import TrainingRun

        return sum(bool(TrainingRun(folder).metrics()) for folder in self.folders)


PENN_TREEBANK = ("ptb",), TRANSFORMERS, 20, "experiments", "stackattn.training.lm:LMConfig"

TARGETS = {
    "figure-2": Target(
        "cross-entropy differences on five languages",
        ("marked-reversal", "unmarked-reversal", "padded-reversal", "dyck", "hardest-cfl"),
        ("lstm", "lstm-sup", "lstm-nd", *TRANSFORMERS),
        10,
        "experiments/cfl",
        "stackattn.training.cfl:CFLConfig",
        "stackattn.paper.figure_2:show",
        "out/figure-2",
    ),
    "table-2": Target(
        "perplexities on the Penn Treebank",
        *PENN_TREEBANK,
        "stackattn.paper.table_2:show",
        "out/table-2",
        ("wikitext-2",),
    ),
    "table-ptb-cost": Target(
        "speed and memory of the runs of table 2",
        *PENN_TREEBANK,
        "stackattn.paper.table_2:show_cost",
        "out/table-2",
        ("wikitext-2",),
        trains=False,
    ),
    "table-3": Target(
        "perplexity and BLEU of translation, in three sizes (d_model)",
        ("160", "240", "360"),
        TRANSFORMERS,
        5,
        "experiments/mt",
        "stackattn.training.mt:MTConfig",
        "stackattn.paper.table_3:show",
        "out/table-3",
        ("small",),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, target in TARGETS.items():
        command = targets.add_parser(name, help=target.summary, description=target.summary)
        command.add_argument(
            "--out", default=target.out, help="folder of the runs, which are all shown (default: %(default)s)"
        )
        if target.trains:
            _add_training_arguments(command, target)


def _add_training_arguments(command: argparse.ArgumentParser, target: Target) -> None:
    for name, chosen, names in (
        ("task", target.tasks, target.tasks + target.other_tasks),
        ("model", target.models, target.models),
    ):
        command.add_argument(
            f"--{name}s",
            nargs="+",
            choices=names,
            default=chosen,
            metavar=name.upper(),
            help=f"to train, of {', '.join(names)} (default: {' '.join(chosen)})",
        )
    command.add_argument(
        "--restarts",
        type=at_least(1),
        default=target.restarts,
        metavar="N",
        help="runs of each model on each task to train (default: %(default)s)",
    )
    add_sweep_arguments(command)
    command.add_argument("--configs", default=target.configs, help="folder of configurations (default: %(default)s)")
    command.add_argument(
        "--job",
        type=int,
        metavar="N",
        help="train only run N of all, from 0, and show nothing: for array jobs",
    )
    add_set_argument(command)


def run(args: argparse.Namespace) -> int:
    from ..training import RunError

    target = TARGETS[args.what]
    try:
        failed = []
        if target.trains and (args.budget != 0 or args.job is not None):
            jobs = _jobs(target, args)
            if args.job is not None:
                if not 0 <= args.job < len(jobs):
                    raise ValueError(f"--job: expected 0 to {len(jobs) - 1}, got {args.job}")
                return 1 if _train([jobs[args.job]], args) else 0
            failed = _train(jobs, args)
            tell_what_is_left(jobs, failed, args.minutes_each)
        if not (cells := _cells(target, Path(args.out))):
            print(f"there are no runs in {args.out} yet", file=sys.stderr)
            return 1
        return named(target.show)(cells, Path(args.out)) or (1 if failed else 0)
    except (ValueError, RunError, OSError) as error:
        print(f"stackattn reproduce {args.what}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _cells(target: Target, out: Path) -> list[Cell]:
    """Whatever there is: a table of some runs must not take the place of one of all."""
    return [
        Cell(task, model, folders)
        for task in target.tasks + target.other_tasks
        for model in target.models
        if (folders := sorted(path.parent for path in (out / task / model).glob("*/metrics.jsonl")))
    ]


def _jobs(target: Target, args: argparse.Namespace) -> list[tuple[Path, Any]]:
    """The runs, first one of every cell, then the second ones."""
    from ..training import load_config
    from ..training.sweep import restart

    experiment, folder = named(target.experiment), Path(args.configs)
    if not folder.is_dir():
        there = "the paper's are in the folder of that name of a checkout of stackattn"
        raise ValueError(f"--configs: there is no folder {folder}; {there}")
    configs = {
        (task, model): load_config(experiment, folder / task / f"{model}.yaml", args.set)
        for task in args.tasks
        for model in args.models
    }
    return [
        (Path(args.out) / task / model / f"{number:02d}", restart(config, number))
        for number in range(args.restarts)
        for (task, model), config in configs.items()
    ]


def _train(jobs: Sequence[tuple[Path, Any]], args: argparse.Namespace) -> list[Path]:
    from ..training import TrainingRun
    from .progress import ProgressDisplay, outcome

    missing = sum(not TrainingRun(folder).finished for folder, _ in jobs)
    print(f"{len(jobs) - missing} of {len(jobs)} runs are finished; training the others", flush=True)
    with ProgressDisplay() as watch:
        return run_jobs(
            jobs,
            args,
            lambda folder, result: watch.done(str(folder), outcome(folder, result)),
            # where there are no bars, a line for each run will do
            lambda folder: watch(str(folder)) if watch.progress else None,
        )
