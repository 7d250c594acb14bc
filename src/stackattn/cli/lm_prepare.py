"""`stackattn lm prepare` and `prepare-ptb`: from raw text and treebanks to a folder that models train on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_arguments(commands: Any) -> None:
    treebank = commands.add_parser("prepare-ptb", help="make data from a licensed copy of the Penn Treebank")
    treebank.add_argument("treebank", type=Path, help="a folder with wsj_NNNN.mrg files, at any depth, or one file")
    treebank.add_argument("out", type=Path, help="folder of the data, a new one")
    treebank.add_argument(
        "--split",
        metavar="80/10/10",
        help="for a part of the treebank: how to divide its sentences, in their order, for training, validation, test",
    )
    plain = commands.add_parser("prepare", help="make data from plain text, tokens separated by blanks")
    for split in ("train", "validation", "test"):
        plain.add_argument(split, type=Path, help="a text file, or one packed by gzip, with a sentence to a line")
    plain.add_argument("out", type=Path, help="folder of the data, a new one")
    plain.add_argument("--drop-headings", action="store_true", help="leave out lines like ` = = Title = = `")
    plain.add_argument("--split-sentences", action="store_true", help="the lines are paragraphs: divide them")
    plain.add_argument("--max-length", type=int, metavar="N", help="leave out sentences of more tokens")
    plain.add_argument(
        "--min-count", type=int, metavar="N", help="rarer tokens of training are unknown (default: 2; for pieces 1)"
    )
    plain.add_argument("--unknown", default="<unk>", help="the token that stands for them (default: %(default)s)")
    plain.add_argument(
        "--pieces", metavar="N|FILE", help="SentencePiece: learn about N pieces from the training text, or use a model"
    )


def prepare_treebank(args: argparse.Namespace) -> int:
    from ..files import check_new
    from ..text import penn_treebank
    from ..text.corpus import write_corpus

    check_new(args.out)
    if args.split is None:
        if args.treebank.is_file():
            raise ValueError(f"{args.treebank}: one file has no sections; say how to divide it: --split 80/10/10")
        splits, notes = penn_treebank.read_sections(args.treebank, _trees)
    else:
        splits, notes = penn_treebank.read_part(args.treebank, _shares(args.split), _trees)
    vocabulary = penn_treebank.treebank_vocabulary(splits["train"], whole=args.split is None)
    report = write_corpus(args.out, splits, vocabulary, {"source": "Penn Treebank", **notes})
    _show(report, args.out)
    if args.split is not None:
        return 0
    if notes["training sentence left out"] is None:
        number = penn_treebank.LEFT_OUT
        print(f"training sentence {number:,} does not begin with `#`, so none was left out", file=sys.stderr)
    if _is_whole(penn_treebank.compare(report, vocabulary)):
        return 0
    sections = ", ".join(f"{section}: {count:,}" for section, count in notes["sentences of sections"].items())
    print(f"sentences of each section, before anything was replaced or left out: {sections}", file=sys.stderr)
    return 1


def prepare_plain(args: argparse.Namespace) -> int:
    from ..files import check_new
    from ..lines import read_lines
    from ..text import plain
    from ..text.byte_pairs import train_model
    from ..text.corpus import SPLITS, write_corpus
    from ..text.vocabulary import CLASSES, count_vocabulary
    from .progress import track

    check_new(args.out)
    for name in ("max_length", "min_count"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    if len(args.unknown.split()) != 1 or args.unknown == CLASSES:
        raise ValueError(f"--unknown: expected a token without blanks, and not {CLASSES!r}, got {args.unknown!r}")
    counts = {split: plain.Counts() for split in SPLITS}
    sentences = {
        split: plain.to_sentences(
            track(read_lines(getattr(args, split)), f"reading {split}"),
            drop_headings=args.drop_headings,
            split=args.split_sentences,
            counts=counts[split],
        )
        for split in SPLITS
    }
    model = None
    if args.pieces is not None:
        is_size = args.pieces.isdigit()
        training = (" ".join(sentence) for sentence in sentences["train"])
        model = train_model(training, int(args.pieces)) if is_size else Path(args.pieces).read_bytes()
        sentences = {split: plain.to_pieces(sentences[split], model) for split in SPLITS}
    sentences = {split: plain.drop_long(sentences[split], args.max_length, counts[split]) for split in SPLITS}
    min_count = args.min_count or (2 if model is None else 1)
    vocabulary = count_vocabulary(sentences["train"], min_count, args.unknown, model)
    options = {
        name: getattr(args, name) for name in ("drop_headings", "split_sentences", "max_length", "unknown", "pieces")
    }
    report = {
        "source": "plain text",
        "options": {**options, "min_count": min_count},
        "read": {split: asdict(counts[split]) for split in SPLITS},
    }
    _show(write_corpus(args.out, sentences, vocabulary, report), args.out)
    return 0


def _trees(files: Sequence[Path]) -> Iterable[Path]:
    from .progress import track

    return track(files, "reading trees")


def _shares(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split("/")]
    except ValueError:
        raise ValueError(f"--split: expected shares such as 80/10/10, got {text!r}") from None


def _show(report: Mapping[str, Any], out: Path) -> None:
    """The counts of a report, a column for each split."""
    from rich.console import Console
    from rich.table import Table

    written = report["written"]
    table = Table("", *written)
    for column in table.columns[1:]:
        column.justify = "right"
    read = report.get("read", {})
    for name in next(iter(read.values()), ()):
        table.add_row(f"read: {name.replace('_', ' ')}", *(f"{read[split][name]:,}" for split in written))
    for name in ("sentences", "tokens", "unknown"):
        table.add_row(f"written: {name}", *(f"{x[name]:,}" for x in written.values()))
    table.add_row("unknown tokens", *(f"{x['unknown'] / x['tokens']:.2%}" for x in written.values()))
    Console().print(table)
    print(f"{report['types']:,} types, EOS not counted")
    if report.get("trees without words"):
        print(f"trees without words, left out: {report['trees without words']}")
    print(f"written to {out}")


def _is_whole(lines: Sequence[tuple[str, int, int]]) -> bool:
    """Print what was expected of the whole treebank and what came; whether it is the same."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "expected", "found", "")
    for what, expected, found in lines:
        table.add_row(what, f"{expected:,}", f"{found:,}", "" if expected == found else f"{found - expected:+,}")
    Console().print(table)
    same = all(expected == found for _, expected, found in lines)
    if not same:
        print("these are not the data of the paper: some files are missing or changed", file=sys.stderr)
    return same
