"""The actions `train` and `sweep` of the commands cfl, lm and mt."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .arguments import check_output_folder, naming

Action = Callable[[argparse.Namespace], int]


@naming(device="--device", overrides="--set")
def run_action(args: argparse.Namespace, actions: dict[str, Action]) -> int:
    """Run `train`, `sweep` or one of the command's own actions."""
    if getattr(args, "threads", None):
        import torch

        torch.set_num_threads(args.threads)
    return {"train": _train, "sweep": _sweep, **actions}[args.action](args)


@naming(device="--device")
def run_jobs(jobs: Sequence[tuple[Path, Any]], args: argparse.Namespace, report: Any, callback_for: Any) -> list[Path]:
    """Train many runs with the arguments of `add_sweep_arguments`; return the folders of runs that failed."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("torchrun trains one run in several processes; start sweeps without it")
    check_output_folder(args.out)
    if args.cluster is not None:
        from ..training.cluster import MEMORY, run_all_on_cluster

        if args.processes is not None:
            raise ValueError("--processes: cannot be combined with --cluster, which uses all cores of the cluster")
        memory = MEMORY if args.memory is None else args.memory
        limits = args.budget, args.minutes_each
        return run_all_on_cluster(jobs, args.cluster, *limits, report, callback_for, memory, args.device)
    if args.memory is not None:
        raise ValueError("--memory: only used on a cluster; pass --cluster or omit --memory")
    from ..training.sweep import run_all

    return run_all(jobs, args.processes, args.budget, args.minutes_each, report, callback_for, args.device)


def _read_config(args: argparse.Namespace) -> Any:
    """The configuration of `train`; that of the run if it is resumed and no other configuration is given."""
    from ..paper.configurations import load_configuration
    from ..training import TrainingRun
    from ..training.experiment import config_class
    from ..training.run import config_of

    begun = TrainingRun(args.out).begun
    given = args.config is not None or args.preset is not None or (args.set and not begun)
    if args.resume and not given:
        if not begun:
            raise ValueError(f"--resume: expected a run in {args.out}, found none; pass CONFIG or --set to start one")
        return config_of(config_class(args.command), args.out, args.set)
    return load_configuration(args.command, args.config, args.set, args.preset)


def _train(args: argparse.Namespace) -> int:
    from ..training import run_experiment
    from ..training.metrics import headline
    from ..training.processes import Processes
    from ..training.run import ending
    from .progress import ProgressDisplay

    config = _read_config(args)
    first = Processes().first  # under torchrun, only one process prints
    with ProgressDisplay() if first else nullcontext() as display:
        result = run_experiment(
            config,
            args.out,
            resume=args.resume,
            callback=display(args.out.name) if display else None,
            minutes=args.minutes,
            log=args.log,
            init_from=args.init_from,
            device=args.device,
        )
    if not first:
        return 0
    if result["stopped"] == "deadline":
        print(f"stopped after {args.minutes:g} minutes; pass --resume to continue")
    else:
        number = result["evaluations"]
        print(f"{ending(result)} after {number} evaluation{'s' * (number != 1)}")
    if best := result["best"]:
        name, value = headline(best)
        print(f"best: epoch {best['epoch']}, {name} {value:.4f}")
    else:
        print("no evaluation gave a finite score, so there is no model; try a lower learning rate")
    print(f"the run is in {args.out}")
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..paper.configurations import load_configuration
    from ..training import TrainingRun
    from ..training.metrics import headline
    from ..training.sweep import best_of, restart
    from .progress import ProgressDisplay, outcome

    config = load_configuration(args.command, args.config, args.set, args.preset)
    jobs = [(args.out / f"{i:02d}", restart(config, i, args.seed)) for i in range(args.restarts)]
    outcomes = {}
    with ProgressDisplay() as display:

        def report(folder: Path, result: dict) -> None:
            outcomes[folder] = result["stopped"]
            display.done(f"run {folder.name}", outcome(folder, result))

        failed = run_jobs(jobs, args, report, lambda folder: display(f"run {folder.name}"))
    ours = [folder for folder, job in jobs if (run := TrainingRun(folder)).begun and not run.differs(job)]
    chosen = best_of(ours)
    figure = headline(chosen[1])[0] if chosen else "score"
    table = Table("run", "learning rate", figure, "epoch", "minutes", "")
    for folder, job in jobs:
        row = [folder.name, f"{job.training.learning_rate:.2g}", "", "", ""]
        if folder in ours and (found := best_of([folder])):
            best = found[1]
            row[2:] = f"{headline(best)[1]:.4f}", str(best["epoch"]), f"{best['seconds'] / 60:.1f}"
        mark = "best" if chosen and chosen[0] == folder else ""
        table.add_row(*row, mark or outcomes.get(folder, "")[:40])
    Console().print(table, markup=False)
    if chosen:
        print(f"the best run is in {chosen[0]}")
    print_unfinished(jobs, failed, args.minutes_each)
    return 1 if failed else 0


def print_unfinished(
    jobs: Sequence[tuple[Path, Any]], failed: Sequence[Path], minutes_each: float | None = None
) -> None:
    """Print how many runs are not finished, and how to continue them."""
    from ..training import TrainingRun

    runs = [TrainingRun(folder) for folder, _ in jobs if folder not in failed]
    left = [run for run in runs if not run.finished]
    spent = sum(minutes_each is not None and run.seconds() >= 60 * minutes_each for run in left)
    if len(left) > spent:
        print(f"{len(left) - spent} of {len(jobs)} runs are not finished; run the same command again to continue them")
    if spent:
        print(
            f"{spent} of {len(jobs)} runs used up their {minutes_each:g} minutes; raise --minutes-each to continue them"
        )
