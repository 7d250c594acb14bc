"""Train and evaluate models on context-free languages."""

from __future__ import annotations

import argparse

from .experiments import add_torch_arguments, add_training_arguments, at_least, run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_training_arguments(commands, "experiments/cfl")
    evaluate = commands.add_parser("evaluate", help="the cross-entropy difference of a run's best model, by length")
    evaluate.add_argument("run", help="folder of a run")
    evaluate.add_argument(
        "--lengths",
        type=int,
        nargs=2,
        metavar=("FROM", "TO"),
        help="of the test strings (default: from the shortest training length to 1.25 times the longest, "
        "which is 40 to 100 for the paper's)",
    )
    evaluate.add_argument(
        "--per-length", type=at_least(1), default=100, help="strings of each length (default: %(default)s)"
    )
    evaluate.add_argument("--seed", type=at_least(0), default=0, help="of the test strings (default: %(default)s)")
    add_torch_arguments(evaluate)


def run(args: argparse.Namespace) -> int:
    return run_action("cfl", "stackattn.training.cfl:CFLConfig", args, {"evaluate": _evaluate})


def _evaluate(args: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ..files import write_json
    from ..training.cfl import evaluate_run

    found = evaluate_run(args.run, args.lengths and tuple(args.lengths), args.per_length, args.seed, args.device)
    path = Path(args.run) / "test.json"
    write_json(path, found)
    table = Table("length", "cross-entropy", "lower bound", "difference", "less ln(N)/(length+1)")
    for row in found["lengths"]:
        floor = row["difference_from_floor"]
        numbers = [row["cross_entropy"], row["lower_bound"], row["difference"]]
        table.add_row(str(row["length"]), *(f"{x:.4f}" for x in numbers), "" if floor is None else f"{floor:.4f}")
    Console().print(table)
    print(
        "In nats per symbol. The bound takes each length as given, but the model has to pay for it: a perfect model of"
    )
    print("N training lengths pays ln(N)/(length+1), which the last column takes off for lengths seen in training.")
    print(f"written to {path}")
    return 0
