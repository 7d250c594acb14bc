"""Train and evaluate models on context-free languages."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = commands.add_parser("train", help="train a model by a configuration file")
    train.add_argument("config", help="a YAML file, such as those in experiments/cfl")
    train.add_argument("--out", required=True, help="folder of the run")
    train.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one")
    train.add_argument("--threads", type=int, help="threads that torch may use (default: its own choice)")
    train.add_argument("--minutes", type=float, help="stop after so long, at the next evaluation; --resume goes on")
    train.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as training.learning_rate=0.01")
    evaluate = commands.add_parser("evaluate", help="the cross-entropy difference of a run's best model, by length")
    evaluate.add_argument("run", help="folder of a run")
    evaluate.add_argument("--lengths", type=int, nargs=2, default=(40, 100), metavar=("FROM", "TO"))
    evaluate.add_argument("--per-length", type=int, default=100, help="strings of each length (default: %(default)s)")
    evaluate.add_argument("--seed", type=int, default=0, help="of the test strings (default: %(default)s)")
    evaluate.add_argument("--threads", type=int, help="threads that torch may use (default: its own choice)")


def run(args: argparse.Namespace) -> int:
    import torch

    from ..languages import GrammarError
    from ..training import ConfigError, RunError

    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        return {"train": _train, "evaluate": _evaluate}[args.action](args)
    except (ConfigError, RunError, GrammarError, FileNotFoundError) as error:
        print(f"stackattn cfl {args.action}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; --resume goes on from the last evaluation", file=sys.stderr)
        return 130


def _train(args: argparse.Namespace) -> int:
    from ..training.cfl import CFLConfig, run_experiment
    from ..training.config import load_config
    from .progress import watcher

    config = load_config(CFLConfig, args.config, args.overrides)
    with watcher(args.out.rstrip("/").rsplit("/", 1)[-1]) as shown:
        result = run_experiment(config, args.out, resume=args.resume, watcher=shown, minutes=args.minutes)
    best = result["best"]
    print(
        f"{result['stopped']} after {result['evaluations']} evaluations; best: epoch {best['epoch']}, "
        f"cross-entropy difference {best['cross_entropy_difference']:.4f} nats per symbol"
    )
    print(f"the run is in {args.out}")
    return 0


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
