"""Translation: prepare bitext, train models on it, translate with them, and evaluate them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import mt_prepare
from .arguments import (
    add_actions,
    add_corpus_of_run,
    add_evaluation,
    add_number,
    add_torch_arguments,
    add_training_arguments,
    path,
)
from .progress import Heartbeat
from .training import run_action

CHUNK = 1000  # lines to read and sort by length before translating them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = add_actions(parser)
    mt_prepare.add_arguments(commands)
    add_training_arguments(commands, "table-3/160/tf-nd")
    translate = commands.add_parser(
        "translate",
        help="translate a file or standard input",
        description="Translate a file or standard input line by line, and write the translations to standard output.",
    )
    translate.add_argument("model", metavar="MODEL", help="folder of a run, or of a saved model")
    translate.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="one sentence per line (default: standard input)"
    )
    add_torch_arguments(translate)
    evaluate = add_evaluation(
        commands,
        "measure BLEU, chrF and perplexity of a run's best model",
        "Translate a part of a corpus, or files, with a run's best model and measure BLEU, chrF and perplexity.",
    )
    add_corpus_of_run(evaluate, ("validation", "test"))
    evaluate.add_argument(
        "--files",
        nargs=2,
        metavar=("SOURCE", "REFERENCE"),
        help="file to translate, and file of reference translations (default: --split of the corpus)",
    )
    evaluate.add_argument(
        "--out",
        type=path,
        metavar="NAME",
        help="write the scores to NAME.json and the translations to NAME.txt (default: RUN/SPLIT; with --files, "
        "RUN/files)",
    )
    for command in (translate, evaluate):
        add_number(command, "--beam", "beam size", 4, least=1)
        longest = "maximum length of a translation in tokens, including EOS"
        add_number(command, "--max-tokens", longest, 256, least=1)
        add_number(command, "--batch-tokens", "batch size in source tokens", 2048, least=1)


def run(args: argparse.Namespace) -> int:
    actions = {"prepare": mt_prepare.prepare, "translate": _translate, "evaluate": _evaluate}
    return run_action(args, actions)


def _translate(args: argparse.Namespace) -> int:
    from ..lines import decode_lines
    from ..text.bitext import read_sentences

    translator = _translator(args.model, args)
    standard = args.file == "-"
    lines = decode_lines(sys.stdin.buffer, "standard input") if standard else read_sentences(args.file)
    waiting = standard and sys.stdin.isatty()  # interactive: translate each line immediately
    with _counter("translating", None, not sys.stdout.isatty()) as done:
        for text in translator.translate_lines(lines, 1 if waiting else CHUNK, done):
            print(text, flush=waiting)
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from ..text.bitext import read_pairs
    from ..training import TrainingRun
    from ..training.mt import read_sentence_pairs
    from ..training.translator import write_scores

    if args.files:
        pairs = list(read_pairs(*args.files))
        source, reference = [a for a, _ in pairs], [b for _, b in pairs]
        data: dict[str, Any] = {"files": [Path(path).name for path in args.files]}
    else:
        source, reference = read_sentence_pairs(args.run, args.split, args.data)
        data = {"split": args.split}
    translator = _translator(args.run, args)
    with _counter("translating", len(source)) as done:
        found, translations = translator.evaluate(source, reference, done)
    name = args.out or Path(args.run) / ("files" if args.files else args.split)
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
    """Yield a function that adds to a count, shown on standard error: a bar on a terminal, otherwise plain lines."""
    if not wanted:
        yield lambda count: None
        return
    if not sys.stderr.isatty():
        counts: list[int] = []
        with Heartbeat(lambda: f"{what}: {sum(counts):,}{'' if total is None else f' of {total:,}'}", sys.stderr):
            yield counts.append
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
