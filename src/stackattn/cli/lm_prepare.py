"""`stackattn lm prepare` and `prepare-ptb`: prepare corpora for language models from plain text and treebanks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .arguments import add_new_corpus, add_number, naming

TREEBANK = """Prepare a corpus from a licensed copy of the Penn Treebank, and compare its counts with the paper's unless
--split is given. The exit code is 1 if a count differs."""
PLAIN = """Prepare a corpus from plain text. Files are UTF-8 text with one sentence per line and spaces between tokens;
they may be compressed (.gz)."""


DROPPED = {"too_long": "dropped: sentences", "tokens_too_long": "dropped: tokens"}
"""Rows of the printed table whose names differ from the keys of report.json."""


def add_arguments(commands: Any) -> None:
    summary = "prepare a corpus from a licensed copy of the Penn Treebank"
    treebank = commands.add_parser("prepare-ptb", help=summary, description=TREEBANK)
    treebank.add_argument(
        "treebank",
        type=Path,
        metavar="TREEBANK",
        help="folder that contains wsj_NNNN.mrg files at any depth, or one file",
    )
    treebank.add_argument(
        "--split",
        metavar="80/10/10",
        help="for a part of the treebank: divide its sentences, in order, in these proportions into training, "
        "validation and test sets (default: the standard sections of the whole treebank)",
    )
    add_new_corpus(treebank, "out", metavar="OUT")
    summary = "prepare a corpus from plain text with space-separated tokens"
    plain = commands.add_parser("prepare", help=summary, description=PLAIN)
    for split, name in (("train", "training"), ("validation", "validation"), ("test", "test")):
        plain.add_argument(split, type=Path, metavar=split.upper(), help=f"file of the {name} set")
    add_new_corpus(plain, "out", metavar="OUT")
    plain.add_argument(
        "--drop-headings", action="store_true", help="drop lines such as ` = = Title = = ` (default: keep them)"
    )
    units = plain.add_mutually_exclusive_group()
    units.add_argument(
        "--split-sentences",
        action="store_true",
        help="split each line into sentences (default: each line is one sentence)",
    )
    units.add_argument(
        "--join-articles",
        action="store_true",
        help="join the lines of an article, from a line such as ` = Title = ` to the next, into one document "
        "(default: each line is one sentence)",
    )
    add_number(plain, "--max-length", "drop sentences of more than N tokens", "keep all")
    rare = "replace tokens that occur fewer than N times in the training text with --unknown"
    add_number(plain, "--min-count", rare, "2 for words, 1 for pieces")
    plain.add_argument(
        "--unknown", default="<unk>", metavar="TOKEN", help="token that replaces rare tokens (default: %(default)s)"
    )
    plain.add_argument(
        "--pieces",
        metavar="N|FILE",
        help="split words into SentencePiece pieces: learn N pieces from the training text, or use the model in FILE "
        "(default: the tokens are words)",
    )


def prepare_treebank(args: argparse.Namespace) -> int:
    from ..text import penn_treebank
    from .progress import track

    shares = None if args.split is None else _shares(args.split)
    with naming(shares="--split"):
        report, vocabulary = penn_treebank.prepare_treebank(args.treebank, args.out, shares, track)
    _show(report, args.out)
    if shares is not None:
        return 0
    if report["training sentence left out"] is None:
        number = penn_treebank.LEFT_OUT
        print(f"training sentence {number:,} does not start with `#`, so it was not left out", file=sys.stderr)
    if _show_comparison(penn_treebank.compare(report, vocabulary)):
        return 0
    sections = ", ".join(f"{section}: {count:,}" for section, count in report["sentences of sections"].items())
    print(f"sentences of each section before replacements: {sections}", file=sys.stderr)
    return 1


def prepare_plain(args: argparse.Namespace) -> int:
    from dataclasses import fields

    from ..text import plain
    from ..text.corpus import SPLITS
    from .progress import track

    values = {field.name: getattr(args, field.name) for field in fields(plain.PlainTextOptions)}
    try:
        options = plain.PlainTextOptions(**values)
    except ValueError as error:
        raise ValueError(f"--{str(error).replace('_', '-', 1)}") from None
    with naming(size="--pieces"):
        report = plain.prepare_plain({split: getattr(args, split) for split in SPLITS}, args.out, options, track)
    _show(report, args.out)
    return 0


def _shares(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split("/")]
    except ValueError:
        raise ValueError(f"--split: expected proportions such as 80/10/10, got {text!r}") from None


def _show(report: Mapping[str, Any], out: Path) -> None:
    """Print the counts of a report, one column per split."""
    from rich.console import Console
    from rich.table import Table

    written = report["written"]
    table = Table("", *written)
    for column in table.columns[1:]:
        column.justify = "right"
    read = report.get("read", {})
    for name in next(iter(read.values()), ()):
        table.add_row(DROPPED.get(name, f"read: {name}"), *(f"{read[split][name]:,}" for split in written))
    for name in ("sentences", "tokens", "unknown"):
        table.add_row(f"written: {name}", *(f"{x[name]:,}" for x in written.values()))
    table.add_row("unknown tokens", *(f"{x['unknown'] / x['tokens']:.2%}" for x in written.values()))
    Console().print(table)
    print(f"{report['types']:,} types, not counting EOS")
    if report.get("trees without words"):
        print(f"trees without words, dropped: {report['trees without words']}")
    print(f"written to {out}")


def _show_comparison(lines: Sequence[tuple[str, int, int]]) -> bool:
    """Print the expected and the found counts of the whole treebank, and return whether all of them agree."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "expected", "found", "")
    for name, expected, found in lines:
        table.add_row(name, f"{expected:,}", f"{found:,}", "" if expected == found else f"{found - expected:+,}")
    Console().print(table)
    same = all(expected == found for _, expected, found in lines)
    if not same:
        print("this is not the paper's data: some files are missing or different", file=sys.stderr)
    return same
