"""Train and evaluate models on context-free languages."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.cfl import CFLConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = commands.add_parser("train", help="train a model by a configuration file")
    train.add_argument("--out", required=True, help="folder of the run")
    train.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one")
    train.add_argument("--threads", type=int, help="threads that torch may use (default: its own choice)")
    train.add_argument("--minutes", type=float, help="stop after so long, at the next evaluation; --resume goes on")
    train.add_argument(
        "--tensorboard", action="store_true", help="write scalars for TensorBoard too; needs stackattn[tensorboard]"
    )
    sweep = commands.add_parser("sweep", help="train from several random starts, each with its own learning rate")
    sweep.add_argument("--out", required=True, help="folder of the runs; the same command goes on with what is there")
    sweep.add_argument("--restarts", type=int, default=10, metavar="N", help="how many runs (default: %(default)s)")
    sweep.add_argument("--seed", type=int, default=0, help="of learning rates and seeds (default: %(default)s)")
    sweep.add_argument("--processes", type=int, help="runs at once, one thread each (default: one for each core)")
    sweep.add_argument("--budget", type=float, metavar="MINUTES", help="stop after so long; the same command goes on")
    for command in (train, sweep):
        command.add_argument("config", nargs="?", help="a YAML file, such as those in experiments/cfl; or --set it all")
        command.add_argument(
            "--set",
            nargs="+",
            action="extend",
            default=[],
            metavar="KEY=VALUE",
            help="change the configuration: training.learning_rate=0.01",
        )
    evaluate = commands.add_parser("evaluate", help="the cross-entropy difference of a run's best model, by length")
    evaluate.add_argument("run", help="folder of a run")
    evaluate.add_argument("--lengths", type=int, nargs=2, default=(40, 100), metavar=("FROM", "TO"))
    evaluate.add_argument("--per-length", type=int, default=100, help="strings of each length (default: %(default)s)")
    evaluate.add_argument("--seed", type=int, default=0, help="of the test strings (default: %(default)s)")
    evaluate.add_argument("--threads", type=int, help="threads that torch may use (default: its own choice)")


def run(args: argparse.Namespace) -> int:
    try:
        import torch

        from ..training import RunError

        if getattr(args, "threads", None):
            torch.set_num_threads(args.threads)
        try:
            return {"train": _train, "sweep": _sweep, "evaluate": _evaluate}[args.action](args)
        except (ValueError, RunError, OSError) as error:
            print(f"stackattn cfl {args.action}: {error}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        again = {"train": "; --resume goes on from the last evaluation", "sweep": "; the same command goes on"}
        print(f"stopped{again.get(args.action, '')}", file=sys.stderr)
        return 130


def _config(args: argparse.Namespace) -> CFLConfig:
    from ..training.cfl import CFLConfig
    from ..training.config import from_values, load_config

    if args.config is None:
        return from_values(CFLConfig, {}, args.set)
    return load_config(CFLConfig, args.config, args.set)


def _train(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ..training.cfl import run_experiment
    from .progress import Watchers

    config = _config(args)
    with Watchers() as watch:
        result = run_experiment(
            config,
            args.out,
            resume=args.resume,
            watcher=watch(Path(args.out).name),
            minutes=args.minutes,
            tensorboard=args.tensorboard,
        )
    print(f"{result['stopped']} after {result['evaluations']} evaluations")
    if best := result["best"]:
        difference = f"{best['cross_entropy_difference']:.4f} nats per symbol"
        print(f"best: epoch {best['epoch']}, cross-entropy difference {difference}")
    print(f"the run is in {args.out}")
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ..training.sweep import best_of, restart, run_all
    from .progress import Watchers, outcome

    config = _config(args)
    jobs = [(Path(args.out) / f"{i:02d}", restart(config, i, args.seed)) for i in range(args.restarts)]
    outcomes = {}
    with Watchers() as watch:

        def report(folder: Path, result: dict) -> None:
            outcomes[folder] = result["stopped"]
            watch.done(f"run {folder.name}", outcome(folder, result))

        failed = run_all(
            jobs, args.processes, args.budget, report=report, watch=lambda folder: watch(f"run {folder.name}")
        )
    chosen = best_of([folder for folder, _ in jobs])
    table = Table("run", "learning rate", "difference", "epoch", "minutes", "")
    for folder, job in jobs:
        row = [folder.name, f"{job.training.learning_rate:.2g}", "", "", ""]
        if found := best_of([folder]):
            best = found[1]
            row[2:] = f"{best['cross_entropy_difference']:.4f}", str(best["epoch"]), f"{best['seconds'] / 60:.1f}"
        mark = "best" if chosen and chosen[0] == folder else ""
        table.add_row(*row, mark or outcomes.get(folder, "")[:40])
    Console().print(table, markup=False)
    if chosen:
        print(f"the best run is in {chosen[0]}")
    return 1 if failed else 0


def _evaluate(args: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ..files import write_json
    from ..training.cfl import evaluate_run

    found = evaluate_run(args.run, tuple(args.lengths), args.per_length, args.seed)
    path = Path(args.run) / "test.json"
    write_json(path, found)
    table = Table("length", "cross-entropy", "lower bound", "difference", "from the floor of training lengths")
    for row in found["lengths"]:
        floor = row["difference_from_floor"]
        numbers = [row["cross_entropy"], row["lower_bound"], row["difference"]]
        table.add_row(str(row["length"]), *(f"{x:.4f}" for x in numbers), "" if floor is None else f"{floor:.4f}")
    Console().print(table)
    print(f"written to {path}")
    return 0
