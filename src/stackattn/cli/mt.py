"""Translation: prepare a corpus, train models on it, translate with them and score them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import mt_prepare
from .arguments import add_torch_arguments, add_training_arguments, at_least
from .training import run_action

CHUNK = 1000  # lines that are read, and sorted by length, before they are translated


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    mt_prepare.add_arguments(commands)
    add_training_arguments(commands, "table-3/160/tf-nd")
    translate = commands.add_parser("translate", help="translate a file or the standard input, line by line")
    translate.add_argument("model", help="folder of a run or of a model")
    translate.add_argument("file", nargs="?", default="-", help="a sentence on each line (default: standard input)")
    evaluate = commands.add_parser("evaluate", help="BLEU, chrF and perplexity of a run's best model")
    evaluate.add_argument("run", help="folder of a run")
    evaluate.add_argument(
        "--files", nargs=2, metavar=("SOURCE", "REFERENCE"), help="instead of the test set of the run's corpus"
    )
    evaluate.add_argument("--split", choices=("validation", "test"), default="test", help="(default: %(default)s)")
    evaluate.add_argument("--data", metavar="FOLDER", help="where the run's corpus is, if it has moved")
    evaluate.add_argument("--out", metavar="NAME", help="writes NAME.json and NAME.txt (default: RUN/test or so)")
    for command in (translate, evaluate):
        command.add_argument(
            "--beam", type=at_least(1), default=4, help="hypotheses of each sentence (default: %(default)s)"
        )
        command.add_argument(
            "--max-tokens",
            type=at_least(1),
            default=256,
            help="of a translation, its end included (default: %(default)s)",
        )
        command.add_argument(
            "--batch-tokens",
            type=at_least(1),
            default=2048,
            help="source tokens to translate at once (default: %(default)s)",
        )
        add_torch_arguments(command)


def run(args: argparse.Namespace) -> int:
    actions = {"prepare": mt_prepare.prepare, "translate": _translate, "evaluate": _evaluate}
    return run_action(args, actions)


def _translate(args: argparse.Namespace) -> int:
    from ..lines import decode_lines
    from ..text.bitext import read_sentences

    translator = _translator(args.model, args)
    standard = args.file == "-"
    lines = decode_lines(sys.stdin.buffer, "standard input") if standard else read_sentences(args.file)
    waiting = standard and sys.stdin.isatty()  # somebody types: answer each line
    with _counter("translating", None, not sys.stdout.isatty()) as done:
        for text in translator.translate_lines(lines, 1 if waiting else CHUNK, done):
            print(text, flush=waiting)
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from ..text.bitext import read_pairs
    from ..training import TrainingRun
    from ..training.mt import read_test_set
    from ..training.translator import write_scores

    if args.files:
        pairs = list(read_pairs(*args.files))
        source, reference = [a for a, _ in pairs], [b for _, b in pairs]
        data: dict[str, Any] = {"files": [Path(path).name for path in args.files]}
    else:
        source, reference = read_test_set(args.run, args.split, args.data)
        data = {"split": args.split}
    translator = _translator(args.run, args)
    with _counter("translating", len(source)) as done:
        found, translations = translator.evaluate(source, reference, done)
    name = Path(args.out) if args.out else Path(args.run) / ("files" if args.files else args.split)
    write_scores(name, {**data, "model": TrainingRun(args.run).model_checksum(), **found}, translations)
    for metric, title in (("bleu", "BLEU"), ("chrf", "chrF")):
        print(f"{title} {found[metric]:.2f}  {found[f'{metric}_signature']}")
    seconds = found["translation_seconds"]
    print(f"perplexity {found['perplexity']:.2f}; {found['sentences']} sentences translated in {seconds:.0f} s")
    print(f"written to {name}.json, translations to {name}.txt")
    return 0


def _translator(folder: str, args: argparse.Namespace) -> Any:
    from ..training.translator import Translator

    options = {"beam_size": args.beam, "max_tokens": args.max_tokens, "batch_tokens": args.batch_tokens}
    return Translator.load(folder, args.device, **options)


@contextmanager
def _counter(what: str, total: int | None, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows on standard error how many are done and how fast; nothing where that is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(True)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
