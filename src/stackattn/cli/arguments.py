"""Command-line arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

TO_CONTINUE = "run the same command again to continue"


def at_least(lowest: int, kind: type[int] | type[float] = int) -> Callable[[str], int | float]:
    """An argument type: a number that is not smaller than `lowest`."""

    def convert(text: str) -> int | float:
        value = kind(text)
        if not value >= lowest:
            raise argparse.ArgumentTypeError(f"expected at least {lowest}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return convert


def add_training_arguments(commands: Any, example: str) -> None:
    """Add the actions `train` and `sweep`; `example` is the name of a shipped configuration."""
    train = commands.add_parser(
        "train",
        help="train one model",
        description="Train one model and write configuration, metrics, checkpoints and the best model to a folder.",
    )
    train.set_defaults(to_continue="pass --resume to continue from the last checkpoint")
    train.add_argument("--out", required=True, metavar="FOLDER", help="folder of the run (required)")
    train.add_argument(
        "--resume", action="store_true", help="continue the run in the folder if there is one, else start it"
    )
    train.add_argument(
        "--minutes",
        type=at_least(0, float),
        metavar="N",
        help="stop after N minutes; continue later with --resume (default: no limit)",
    )
    add_torch_arguments(train)
    train.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write scalars for TensorBoard; needs stackattn[tensorboard]",
    )
    sweep = commands.add_parser(
        "sweep",
        help="train several models from random restarts and choose the best",
        description="Train several models that differ in their random seeds and learning rates, and choose the best by "
        "validation. Run the same command again to continue.",
    )
    sweep.set_defaults(to_continue=TO_CONTINUE)
    sweep.add_argument("--out", required=True, metavar="FOLDER", help="folder of the runs 00, 01, ... (required)")
    sweep.add_argument(
        "--restarts", type=at_least(1), default=10, metavar="N", help="number of runs (default: %(default)s)"
    )
    sweep.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed from which learning rates and the seeds of the runs are drawn (default: %(default)s)",
    )
    add_sweep_arguments(sweep)
    for command in (train, sweep):
        command.add_argument(
            "config",
            nargs="?",
            metavar="CONFIG",
            help=f"a YAML file, or the name of a shipped configuration such as {example}; `stackattn config list` "
            "lists them (default: only what --set gives)",
        )
        add_config_arguments(command)


def add_torch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for threads and device."""
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", help="number of CPU threads (default: chosen by PyTorch)"
    )
    parser.add_argument("--device", default="cpu", help="PyTorch device, such as cpu or cuda (default: %(default)s)")


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that train many runs: their time limits and where they run."""
    parser.add_argument(
        "--budget",
        type=at_least(0, float),
        metavar="MINUTES",
        help="stop all runs after this many minutes; run the same command again to continue (default: no limit)",
    )
    parser.add_argument(
        "--minutes-each",
        type=at_least(0, float),
        metavar="MINUTES",
        help="total time limit of each run in minutes, including the time before it was resumed (default: no limit)",
    )
    parser.add_argument(
        "--processes",
        type=at_least(1),
        metavar="N",
        help="number of runs at the same time, with one thread each (default: number of cores)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="address of a Ray cluster to run on, or `local` to start one here; needs stackattn[cluster] "
        "(default: local processes without Ray)",
    )
    parser.add_argument(
        "--memory",
        type=at_least(0, float),
        metavar="GB",
        help="memory to reserve for each run on a cluster, in GB (default: 2)",
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that change a configuration."""
    parser.add_argument(
        "--preset",
        choices=("paper", "published"),
        help="follow the paper or the published code in the options where they differ (default: as the configuration "
        "says; the paper if it does not)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change keys of the configuration, such as training.learning_rate=0.01; `stackattn config` lists the keys",
    )
