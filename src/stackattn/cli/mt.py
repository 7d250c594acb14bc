"""Translation: prepare a corpus, train models on it, translate with them and score them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .arguments import add_torch_arguments, add_training_arguments, at_least
from .training import run_action

CHUNK = 1000  # lines that are read, and sorted by length, before they are translated


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_prepare(commands)
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


def _add_prepare(commands: Any) -> None:
    prepare = commands.add_parser(
        "prepare",
        help="filter parallel text and learn its pieces",
        description="Filter parallel text and learn its pieces. Files have a sentence on each line, in UTF-8, or are "
        "WMT's SGML (.sgm); both may be compressed (.gz). The defaults are the paper's.",
    )
    for split, required in (("train", True), ("validation", True), ("test", False)):
        prepare.add_argument(
            f"--{split}", nargs=2, type=Path, required=required, metavar=("SOURCE", "TARGET"), help="two files"
        )
    prepare.add_argument("--out", required=True, help="folder of the corpus, which is made")
    numbers = (
        ("--max-characters", int, 150, "that a sentence may have"),
        ("--max-ratio", float, 4.0, "of the characters of both sides of a training pair"),
        ("--sample", int, 100_000, "training pairs to draw; 0: all, in their order"),
        ("--seed", int, 123, "of the sample"),
        ("--pieces", int, 32_000, "to learn; fewer if the text has no more"),
        ("--threshold", int, 50, "how often a language must have a piece to use it"),
    )
    for name, kind, default, about in numbers:
        prepare.add_argument(name, type=kind, default=default, metavar="N", help=f"{about} (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    actions = {"prepare": _prepare, "translate": _translate, "evaluate": _evaluate}
    return run_action(args, actions)


def _prepare(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..text.bitext import REASONS
    from ..text.bitext_corpus import Preparation, prepare
    from .progress import track

    def watch(split: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
        return lambda pairs: track(pairs, f"reading {split}")

    names = ("max_characters", "max_ratio", "seed", "pieces", "threshold")
    settings = Preparation(sample=args.sample or None, **{name: getattr(args, name) for name in names})
    files = {split: tuple(pair) for split in ("train", "validation", "test") if (pair := getattr(args, split))}
    report = prepare(files, args.out, settings, watch, lambda stage: print(f"{stage}...", file=sys.stderr))
    table = Table(title="Pairs", title_justify="left")
    table.add_column("")
    for split in report["pairs"]:
        table.add_column(split, justify="right")
    for row in ("read", *REASONS, "kept", "used"):
        counts = [pairs.get(row) for pairs in report["pairs"].values()]
        table.add_row(f"- {row}" if row in REASONS else row, *("" if n is None else f"{n:,}" for n in counts))
    for side in ("source", "target"):
        table.add_row(f"{side} tokens", *(f"{tokens[side]:,}" for tokens in report["tokens"].values()))
        table.add_row("  unknown", *(f"{tokens[f'{side}_unknown']:,}" for tokens in report["tokens"].values()))
    Console().print(table)
    pieces = report["pieces"]
    print(f"{pieces['source']:,} source and {pieces['target']:,} target pieces, {pieces['both']:,} of them in both")
    print(f"the corpus is in {args.out}")
    return 0


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
