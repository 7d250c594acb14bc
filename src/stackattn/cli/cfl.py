"""Train language models on context-free languages and compare them with the true distribution."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import add_actions, add_evaluation, add_number, add_seed, add_training_arguments
from .training import run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = add_actions(parser)
    add_training_arguments(commands, "figure-2/dyck/tf-nd")
    evaluate = add_evaluation(
        commands,
        "measure the cross-entropy difference of a run's best model by string length",
        "Measure the cross-entropy difference of a run's best model on test strings of each length, and "
        "write it to RUN/test.json.",
    )
    evaluate.add_argument(
        "--lengths",
        type=int,
        nargs=2,
        metavar=("FROM", "TO"),
        help="shortest and longest test string, in symbols (default: from the shortest training length to 1.25 times "
        "the longest; 40 to 100 for the paper's runs)",
    )
    add_number(evaluate, "--per-length", "strings of each length", 100, least=1)
    add_seed(evaluate, "the test strings")


def run(args: argparse.Namespace) -> int:
    return run_action(args, {"evaluate": _evaluate})


def _evaluate(args: argparse.Namespace) -> int:
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
    print("Values are in nats per symbol. The lower bound is conditioned on the length, which the model must predict:")
    print("a perfect model of N training lengths pays ln(N)/(length+1) for it. The last column subtracts that amount,")
    print("for lengths seen in training.")
    print(f"written to {path}")
    return 0
