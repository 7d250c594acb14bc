"""Command-line arguments that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOGGERS = ("csv", "tensorboard", "wandb")  # not imported from training.loggers, which would load torch
TO_CONTINUE = "run the same command again to continue"


def at_least(lowest: int, kind: type[int] | type[float] = int) -> Callable[[str], int | float]:
    """Return an argument type for numbers of at least `lowest`."""

    def convert(text: str) -> int | float:
        value = kind(text)
        if not value >= lowest:
            raise argparse.ArgumentTypeError(f"expected at least {lowest}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return convert


def path(text: str) -> Path:
    """The argument type of files and folders: Path would accept an empty string as the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty string")
    return Path(text)


@contextmanager
def naming(**options: str) -> Iterator[None]:
    """Replace the argument at the start of the message of a ValueError with the option that the user typed.

    Args:
        options: the option for each argument, such as `shares="--split"`.

    Example:
        >>> with naming(shares="--split"):
        ...     raise ValueError("shares: expected 3 positive numbers, got 1/1")
        Traceback (most recent call last):
        ValueError: --split: expected 3 positive numbers, got 1/1
    """
    try:
        yield
    except ValueError as error:
        name, colon, message = str(error).partition(": ")
        if not colon or name not in options:
            raise
        raise ValueError(f"{options[name]}: {message}") from error


def add_actions(parser: argparse.ArgumentParser, metavar: str = "ACTION") -> Any:
    """Add actions to a command; return the object to which their parsers are added. `args.action` is the action."""
    return parser.add_subparsers(dest="action", metavar=metavar, required=True)


def add_number(
    parser: argparse._ActionsContainer,
    name: str,
    meaning: str,
    default: float | str,
    *,
    least: int | None = None,
    kind: type[int] | type[float] = int,
    metavar: str = "N",
) -> None:
    """Add an option that takes a number.

    Args:
        parser: the parser, or a group of its arguments.
        name: the option, such as `--epochs`.
        meaning: help text, to which the default is added.
        default: the number if the option is omitted, or text that describes the default (the value is then None).
        least: the smallest number allowed (default: no limit).
        kind: type of the number.
        metavar: name of the number in the help.
    """
    parser.add_argument(
        name,
        type=kind if least is None else at_least(least, kind),
        default=None if isinstance(default, str) else default,
        metavar=metavar,
        help=f"{meaning} (default: {default})",
    )


def add_seed(parser: argparse._ActionsContainer, of: str, default: int = 0) -> None:
    """Add the option for a seed; `of` names the random choices that it determines."""
    add_number(parser, "--seed", f"seed of {of}", default, least=0)


def add_evaluation(commands: Any, summary: str, description: str) -> argparse.ArgumentParser:
    """Add the action `evaluate` for the best model of a run, and return its parser."""
    evaluate = commands.add_parser("evaluate", help=summary, description=description)
    evaluate.add_argument("run", metavar="RUN", help="folder of a run")
    add_torch_arguments(evaluate)
    return evaluate


def add_corpus_of_run(parser: argparse.ArgumentParser, splits: Sequence[str]) -> None:
    """Add the options that choose the corpus, and the part of it, on which a run is evaluated."""
    names = f"{', '.join(splits[:-1])} or {splits[-1]}"
    parser.add_argument(
        "--split", choices=splits, default="test", help=f"part of the corpus: {names} (default: %(default)s)"
    )
    parser.add_argument("--data", metavar="FOLDER", help="folder of the corpus (default: from the run)")


def add_new_corpus(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Add the argument `name` for the folder of a corpus to prepare."""
    parser.add_argument(name, type=path, help="folder of the corpus; must not exist", **options)


def check_output_folder(out: Path) -> None:
    """Raise ValueError if the folder to write to is a file."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: expected a folder, got the file {out}")


def add_output_folder(parser: argparse.ArgumentParser, meaning: str, default: str | None = None) -> None:
    """Add the option for the folder to write to; it is required if there is no default."""
    end = "required" if default is None else "default: %(default)s"
    parser.add_argument(
        "--out", type=path, required=default is None, default=default, metavar="FOLDER", help=f"{meaning} ({end})"
    )


def add_output_file(parser: argparse.ArgumentParser) -> None:
    """Add the option for a file to write instead of standard output."""
    parser.add_argument("--out", type=path, metavar="FILE", help="output file (default: standard output)")


def write_output(out: Path | None, text: str) -> None:
    """Write text to the file of `add_output_file`, or to standard output."""
    if out is None:
        sys.stdout.write(text)
        return
    from ..files import write_text

    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    print(f"written to {out}")


def read_input(file: str) -> list[str]:
    """The lines of a file, or of standard input if `file` is `-`."""
    from ..lines import decode_lines, read_lines

    return list(decode_lines(sys.stdin.buffer, "standard input") if file == "-" else read_lines(file))


def add_training_arguments(commands: Any, example: str) -> None:
    """Add the actions `train` and `sweep`; `example` is the name of a shipped configuration."""
    train = commands.add_parser(
        "train",
        help="train one model",
        description="Train one model, and write the configuration, metrics, checkpoints and best model to a folder.",
    )
    train.set_defaults(to_continue="pass --resume to continue from the last checkpoint")
    add_output_folder(train, "folder of the run")
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the folder, with its stored configuration, or start a run if the folder has none; "
        "--set may change training.max_epochs, training.stop_patience, training.lr_patience and "
        "training.evaluate_every",
    )
    train.add_argument(
        "--init-from",
        metavar="RUN",
        help="start from the weights of another run's best model, or of a saved model (default: random weights)",
    )
    add_number(
        train, "--minutes", "stop after N minutes; continue later with --resume", "no limit", least=0, kind=float
    )
    add_torch_arguments(train)
    train.add_argument(
        "--log",
        nargs="+",
        default=[],
        choices=LOGGERS,
        metavar="LOGGER",
        help=f"also write the metrics with these loggers: {', '.join(LOGGERS)} (default: only metrics.jsonl)",
    )
    sweep = commands.add_parser(
        "sweep",
        help="train several random restarts of a model and choose the best",
        description="Train several models with different random seeds, learning rates and, for `lm`, batch sizes, and "
        "choose the one with the best validation score. Run the same command again to continue.",
    )
    sweep.set_defaults(to_continue=TO_CONTINUE)
    add_output_folder(sweep, "folder of the runs 00, 01, ...")
    add_number(sweep, "--restarts", "number of runs", 10, least=1)
    drawn = "seed from which the learning rate, the seeds and, for `lm`, the batch size of each run are drawn"
    add_number(sweep, "--seed", drawn, 0, least=0)
    add_sweep_arguments(sweep)
    for command in (train, sweep):
        command.add_argument(
            "config",
            nargs="?",
            metavar="CONFIG",
            help=f"a YAML file, or the name of a shipped configuration such as {example}; `stackattn config list` "
            "lists them (default: only the keys of --set)",
        )
        add_config_arguments(command)


def add_torch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for threads and device."""
    add_number(parser, "--threads", "number of CPU threads", "chosen by PyTorch", least=1)
    parser.add_argument("--device", default="cpu", help="PyTorch device, such as cpu or cuda (default: %(default)s)")


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that train many runs: their time limits and where they run."""
    for name, meaning in (
        ("--budget", "stop all runs after this many minutes; run the same command again to continue"),
        ("--minutes-each", "total time limit of each run in minutes, including the time before it was resumed"),
    ):
        add_number(parser, name, meaning, "no limit", least=0, kind=float, metavar="MINUTES")
    parallel = "number of runs to train at the same time, with one thread each"
    add_number(parser, "--processes", parallel, "number of cores, or of GPUs with --device cuda", least=1)
    parser.add_argument(
        "--device",
        default="cpu",
        help="PyTorch device of the runs, such as cpu or cuda; cuda distributes them over all GPUs "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="address of a Ray cluster to run on, or `local` to start a cluster on this machine that other machines "
        "cannot reach; needs stackattn[cluster] (default: local processes without Ray)",
    )
    memory = "memory to reserve for each run on a cluster, in GB"
    add_number(parser, "--memory", memory, "2", least=0, kind=float, metavar="GB")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that change a configuration."""
    parser.add_argument(
        "--preset",
        choices=("paper", "published"),
        help="follow the paper or the published code in the options where they differ (default: the preset of the "
        "configuration, otherwise paper)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change keys of the configuration, such as training.max_epochs=50; `stackattn config cfl` (or lm, mt) "
        "lists the keys",
    )
