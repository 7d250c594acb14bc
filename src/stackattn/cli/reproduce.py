"""Reproduce a figure or table of the paper: train the missing runs, then show the results of all runs in the folder.

Finished runs are not trained again. The restarts of a model on a task are in OUT/TASK/MODEL/00, 01, ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..paper.experiments import MEASUREMENTS, TARGETS, Target
from .arguments import (
    TO_CONTINUE,
    add_actions,
    add_config_arguments,
    add_number,
    add_output_folder,
    add_sweep_arguments,
    at_least,
    naming,
)
from .progress import Heartbeat
from .training import print_unfinished, run_jobs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = add_actions(parser, "TARGET")
    for name, target in TARGETS.items():
        what = "Train the missing runs, then show the results of all runs in the folder; `--budget 0` only shows them."
        description = f"{target.summary}. {what if target.trains else 'Nothing is trained.'}"
        command = targets.add_parser(name, help=target.summary, description=description)
        command.set_defaults(to_continue=TO_CONTINUE)
        meaning = "folder of the runs to show" + (", to which new runs are also written" if target.trains else "")
        add_output_folder(command, meaning, target.out)
        if target.trains:
            _add_training_arguments(command, target)
    for name, measurement in MEASUREMENTS.items():
        description = f"{measurement.summary}. Nothing is trained."
        command = targets.add_parser(name, help=measurement.summary, description=description)
        add_output_folder(command, "folder for the table", measurement.out)


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
            help=f"{name}s to train{' on' * (name == 'task')}: any of {', '.join(names)} (default: {' '.join(chosen)})",
        )
    restarts = command.add_mutually_exclusive_group()
    restarts.add_argument(
        "--restarts",
        type=at_least(1),
        default=target.restarts,
        metavar="N",
        help="number of runs of each model on each task (default: %(default)s)",
    )
    restarts.add_argument(
        "--restart",
        type=at_least(0),
        nargs="+",
        metavar="K",
        help="train only the restarts with these numbers, counted from 0 (default: all; --restarts sets their number)",
    )
    add_sweep_arguments(command)
    command.add_argument(
        "--configs",
        type=Path,
        metavar="FOLDER",
        help="folder of configurations, TASK/MODEL.yaml (default: the shipped ones; see `stackattn config list`)",
    )
    job = "train only the N-th run, counted from 0, and show nothing: for array jobs on a cluster"
    add_number(command, "--job", job, "all")
    add_config_arguments(command)


@naming(overrides="--set")
def run(args: argparse.Namespace) -> int:
    if args.action in MEASUREMENTS:
        return MEASUREMENTS[args.action].show(args.out)
    target, out = TARGETS[args.action], args.out
    failed = []
    if target.needs_matplotlib and (not target.trains or args.job is None):
        from ..analysis.figures import import_matplotlib

        import_matplotlib()
    if target.trains and (args.budget != 0 or args.job is not None):
        restarts = args.restart or range(args.restarts)
        jobs = target.jobs(out, args.tasks, args.models, restarts, args.configs, args.set, args.preset)
        if args.job is not None:
            if not 0 <= args.job < len(jobs):
                raise ValueError(f"--job: expected a number from 0 to {len(jobs) - 1}, got {args.job}")
            return 1 if _train([jobs[args.job]], args) else 0
        failed = _train(jobs, args)
        print_unfinished(jobs, failed, args.minutes_each)
    if not (cells := target.cells(out)):
        advice = f"train some with `stackattn reproduce {target.configs}`"
        if target.trains:
            advice = "correct the errors above" if args.budget is None else "train some with a larger --budget"
        found = f"expected runs in {out}, found none; {advice}, or choose another folder with --out"
        print(f"stackattn reproduce {args.action}: {found}", file=sys.stderr)
        return 1
    with Heartbeat(lambda: "measuring the best runs ...", sys.stderr):
        return target.show(cells, out) or (1 if failed else 0)


def _train(jobs: Sequence[tuple[Path, Any]], args: argparse.Namespace) -> list[Path]:
    from ..training import TrainingRun
    from .progress import ProgressDisplay, outcome

    missing = sum(not TrainingRun(folder).finished for folder, _ in jobs)
    end = "; training the others" if missing else ""
    print(f"{len(jobs) - missing} of {len(jobs)} runs are finished{end}", flush=True)
    with ProgressDisplay() as display:
        return run_jobs(
            jobs,
            args,
            lambda folder, result: display.done(str(folder), outcome(folder, result)),
            # without a terminal, one line per finished run is enough
            lambda folder: display(str(folder), evaluations=False),
        )
