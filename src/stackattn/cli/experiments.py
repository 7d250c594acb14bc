"""What the commands that train have in common: `train` and `sweep` by a configuration, and how errors are told."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any


def at_least(lowest: int, kind: type[int] | type[float] = int) -> Callable[[str], int | float]:
    """A number on the command line."""

    def convert(text: str) -> int | float:
        value = kind(text)
        if not value >= lowest:
            raise argparse.ArgumentTypeError(f"expected at least {lowest}, got {text}")
        return value

    convert.__name__ = kind.__name__  # what argparse calls it, where it is no number
    return convert


def add_training_arguments(commands: Any, configs: str) -> None:
    """The actions `train` and `sweep`; `configs` is the folder where ready configurations are."""
    train = commands.add_parser("train", help="train a model by a configuration file")
    train.add_argument("--out", required=True, help="folder of the run")
    train.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one")
    train.add_argument("--minutes", type=at_least(0, float), help="stop after so long; --resume goes on")
    add_torch_arguments(train)
    train.add_argument(
        "--tensorboard", action="store_true", help="write scalars for TensorBoard too; needs stackattn[tensorboard]"
    )
    sweep = commands.add_parser("sweep", help="train from several random starts, each with its own learning rate")
    sweep.add_argument("--out", required=True, help="folder of the runs; the same command goes on with what is there")
    sweep.add_argument(
        "--restarts", type=at_least(1), default=10, metavar="N", help="how many runs (default: %(default)s)"
    )
    sweep.add_argument("--seed", type=at_least(0), default=0, help="of learning rates and seeds (default: %(default)s)")
    add_sweep_arguments(sweep)
    for command in (train, sweep):
        command.add_argument("config", nargs="?", help=f"a YAML file, such as those in {configs}; or --set it all")
        add_set_argument(command)


def add_torch_arguments(parser: argparse.ArgumentParser) -> None:
    """What one model is computed on."""
    parser.add_argument("--threads", type=at_least(1), help="threads that torch may use (default: its own choice)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """How long and where many runs go on."""
    parser.add_argument(
        "--budget",
        type=at_least(0, float),
        metavar="MINUTES",
        help="stop after so long; the same command goes on another time",
    )
    parser.add_argument(
        "--minutes-each", type=at_least(0, float), metavar="MINUTES", help="the most that one run may take"
    )
    parser.add_argument(
        "--processes", type=at_least(1), help="runs at once, one thread each (default: one for each core)"
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="run on this Ray cluster, or on a `local` one; needs stackattn[cluster]",
    )
    parser.add_argument(
        "--memory", type=at_least(0, float), metavar="GB", help="that a run on a cluster asks for (default: 2)"
    )


def run_jobs(jobs: Sequence[tuple[Path, Any]], args: argparse.Namespace, report: Any, watch: Any) -> list[Path]:
    """What the arguments of `add_sweep_arguments` ask for; returns the runs that failed."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("torchrun trains one run in several processes; start sweeps without it")
    if args.cluster is not None:
        from ..training.cluster import MEMORY, run_all_on_cluster

        if args.processes is not None:
            raise ValueError("--processes: a cluster runs as many as it has cores; leave it out with --cluster")
        memory = MEMORY if args.memory is None else args.memory
        return run_all_on_cluster(jobs, args.cluster, args.budget, args.minutes_each, report, watch, memory)
    if args.memory is not None:
        raise ValueError("--memory: only runs on a cluster ask for it; leave it out without --cluster")
    from ..training.sweep import run_all

    return run_all(jobs, args.processes, args.budget, args.minutes_each, report, watch)


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change the configuration: training.learning_rate=0.01",
    )


Action = Callable[[argparse.Namespace], int]


def named(name: str) -> Any:
    """`module:attribute`, imported only when it is needed."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def run_action(command: str, experiment: str, args: argparse.Namespace, actions: dict[str, Action]) -> int:
    """Run one action of a command; what is wrong with its input becomes a line, not a traceback.

    To the actions come `train` and `sweep`, of which `experiment` names the configurations.
    """
    try:
        import torch

        from ..training import RunError

        if getattr(args, "threads", None):
            torch.set_num_threads(args.threads)
        try:
            common = {"train": _train, "sweep": _sweep}
            if args.action in common:
                return common[args.action](named(experiment), args)
            return actions[args.action](args)
        except (ValueError, RunError, OSError, ModuleNotFoundError) as error:
            print(f"stackattn {command} {args.action}: {error}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        again = {
            "train": "; --resume goes on from its checkpoint, if there is one",
            "sweep": "; the same command goes on",
        }
        print(f"stopped{again.get(args.action, '')}", file=sys.stderr)
        return 130


def _read_config(cls: type, args: argparse.Namespace) -> Any:
    from ..config import from_values, load_config
    from ..training.experiment import config_of

    if args.config is None and not args.set and getattr(args, "resume", False):
        return config_of(cls, args.out)
    return from_values(cls, {}, args.set) if args.config is None else load_config(cls, args.config, args.set)


def _train(cls: type, args: argparse.Namespace) -> int:
    from ..training import run_experiment
    from ..training.experiment import headline
    from .progress import ProgressDisplay

    config = _read_config(cls, args)
    first = os.environ.get("RANK", "0") == "0"  # one process of several tells
    with ProgressDisplay() if first else nullcontext() as watch:
        result = run_experiment(
            config,
            args.out,
            resume=args.resume,
            callback=watch(Path(args.out).name) if watch else None,
            minutes=args.minutes,
            tensorboard=args.tensorboard,
            device=args.device,
        )
    if not first:
        return 0
    print(f"{result['stopped']} after {result['evaluations']} evaluations")
    if best := result["best"]:
        name, value = headline(best)
        print(f"best: epoch {best['epoch']}, {name} {value:.4f}")
    elif not result["evaluations"]:
        every = config.training.evaluate_every
        when = "at the end of each epoch" if every is None else f"every {every:,} examples"
        print(f"so there is no model yet: evaluations come {when} (training.evaluate_every); --resume goes on")
    print(f"the run is in {args.out}")
    return 0


def _sweep(cls: type, args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..training import TrainingRun
    from ..training.experiment import headline
    from ..training.sweep import best_of, restart
    from .progress import ProgressDisplay, outcome

    config = _read_config(cls, args)
    jobs = [(Path(args.out) / f"{i:02d}", restart(config, i, args.seed)) for i in range(args.restarts)]
    outcomes = {}
    with ProgressDisplay() as watch:

        def report(folder: Path, result: dict) -> None:
            outcomes[folder] = result["stopped"]
            watch.done(f"run {folder.name}", outcome(folder, result))

        failed = run_jobs(jobs, args, report, lambda folder: watch(f"run {folder.name}"))
    ours = [folder for folder, job in jobs if TrainingRun(folder).begun and not TrainingRun(folder).differs(job)]
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
    tell_what_is_left(jobs, failed, args.minutes_each)
    return 1 if failed else 0


def tell_what_is_left(
    jobs: Sequence[tuple[Path, Any]], failed: Sequence[Path], minutes_each: float | None = None
) -> None:
    """How many runs are not finished, and which of them the same command would go on with."""
    from ..training import TrainingRun

    left = [TrainingRun(folder) for folder, _ in jobs if not TrainingRun(folder).finished and folder not in failed]
    spent = sum(minutes_each is not None and run.seconds() >= 60 * minutes_each for run in left)
    if len(left) > spent:
        print(f"{len(left) - spent} of {len(jobs)} runs are not finished; the same command goes on with them")
    if spent:
        print(f"{spent} of {len(jobs)} runs have had their {minutes_each:g} minutes; more --minutes-each goes on")
