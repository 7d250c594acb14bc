"""Train language models on context-free languages and compare them with the true distribution."""

from __future__ import annotations

import argparse
import textwrap

from .arguments import add_actions, add_evaluation, add_number, add_seed, add_training_arguments, naming
from .training import run_action

LEGEND = (
    "Cross-entropies are in nats per symbol. The lower bound assumes that the length is known, but the model must "
    "predict it: with N training lengths, this adds ln(N)/(length+1) for a perfect model. The column after the "
    "difference subtracts this length term, for lengths seen in training. Validity is the mean total probability of "
    "the possible next symbols; flawless is the share of strings in which the model's most likely next symbol is "
    "always possible."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = add_actions(parser)
    add_training_arguments(commands, "figure-2/dyck/tf-nd")
    evaluate = add_evaluation(
        commands,
        "measure the cross-entropy difference and the validity of a run's best model by string length",
        "Measure the cross-entropy difference and the validity of a run's best model on test strings of each length, "
        "and write them to RUN/test.json.",
    )
    evaluate.add_argument(
        "--lengths",
        type=int,
        nargs=2,
        metavar=("SHORTEST", "LONGEST"),
        help="shortest and longest test string, in symbols (default: from the shortest training length to 1.25 times "
        "the longest; 40 to 100 for the paper's runs)",
    )
    add_number(evaluate, "--step", "test one length out of every N, for long ranges", 1, least=1)
    add_number(evaluate, "--per-length", "number of strings of each length", 100, least=1)
    add_seed(evaluate, "the test strings")


def run(args: argparse.Namespace) -> int:
    return run_action(args, {"evaluate": _evaluate})


def _evaluate(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..training import TrainingRun
    from ..training.cfl import evaluate_run

    lengths = args.lengths and tuple(args.lengths)
    with naming(lengths="--lengths"):
        found = evaluate_run(args.run, lengths, args.per_length, args.seed, args.device, args.step)
    path = TrainingRun(args.run).write_test(found)
    columns = ("cross_entropy", "lower_bound", "difference", "difference_from_floor", "validity", "flawless")
    table = Table()
    for title in ("length", "cross-entropy", "lower bound", "difference", "less length term", *columns[4:]):
        table.add_column(title, justify="right", min_width=max(map(len, title.split())))  # words are not cut
    for row in found["lengths"]:
        table.add_row(str(row["length"]), *("" if row[name] is None else f"{row[name]:.4f}" for name in columns))
    Console().print(table)
    print(textwrap.fill(LEGEND, 110))
    print(f"written to {path}")
    return 0
