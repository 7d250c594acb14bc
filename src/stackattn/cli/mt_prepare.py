"""`stackattn mt prepare`: filter bitext and learn its tokenizer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .arguments import add_new_corpus, add_number, naming


def add_arguments(commands: Any) -> None:
    prepare = commands.add_parser(
        "prepare",
        help="prepare a corpus from bitext: filter pairs of sentences and learn a tokenizer",
        description="Filter pairs of sentences and learn a tokenizer for both languages. Files are UTF-8 text with one "
        "sentence per line, or WMT's SGML (.sgm); both may be compressed (.gz). The defaults are the paper's.",
    )
    for split, name, required in (
        ("train", "training", True),
        ("validation", "validation", True),
        ("test", "test", False),
    ):
        prepare.add_argument(
            f"--{split}",
            nargs=2,
            type=Path,
            required=required,
            metavar=("SOURCE", "TARGET"),
            help=f"the two files of the {name} set ({'required' if required else 'default: no test set'})",
        )
    add_new_corpus(prepare, "--out", required=True, metavar="FOLDER")
    add_number(prepare, "--max-characters", "drop pairs with a sentence of more than N characters", 150)
    ratio = "drop training pairs in which one side has more than N times as many characters as the other"
    add_number(prepare, "--max-ratio", ratio, 4.0, kind=float)
    sample = "number of training pairs to draw at random; 0 keeps all of them, in order"
    add_number(prepare, "--sample", sample, 100_000, least=0)
    add_number(prepare, "--seed", "seed of the sample", 123)
    add_number(prepare, "--pieces", "number of pieces to learn; fewer are learned from a small text", 32_000)
    threshold = "use a piece only in languages in which it occurs at least N times"
    add_number(prepare, "--threshold", threshold, 50)


def prepare(args: argparse.Namespace) -> int:
    from ..text.bitext_corpus import BitextOptions, prepare_bitext
    from ..text.corpus import SPLITS
    from .progress import track

    names = ("max_characters", "max_ratio", "seed", "pieces", "threshold")
    options = BitextOptions(sample=args.sample or None, **{name: getattr(args, name) for name in names})
    files = {split: tuple(pair) for split in SPLITS if (pair := getattr(args, split))}
    option_names = {name: f"--{name.replace('_', '-')}" for name in (*names, "sample")}
    with naming(size="--pieces", **option_names):
        report = prepare_bitext(files, args.out, options, track, lambda stage: print(f"{stage}...", file=sys.stderr))
    _show(report)
    print(f"written to {args.out}")
    types = report["types"]
    if types["frequent"] < types["occurring"] / 2:
        print(
            f"warning: only {types['frequent']:,} of {types['occurring']:,} pieces occur at least {options.threshold} "
            "times in a language; the others are divided into smaller ones. Lower --threshold for a small corpus.",
            file=sys.stderr,
        )
    return 0


def _show(report: Mapping[str, Any]) -> None:
    """Print the counts of a report, one column per split."""
    from rich.console import Console
    from rich.table import Table

    from ..text.bitext import REASONS

    table = Table(title="Pairs", title_justify="left")
    table.add_column("")
    for split in report["read"]:
        table.add_column(split, justify="right")
    for row in ("read", *REASONS, "kept", "used"):
        counts = [read.get(row) for read in report["read"].values()]
        table.add_row(f"- {row}" if row in REASONS else row, *("" if n is None else f"{n:,}" for n in counts))
    for side in ("source", "target"):
        table.add_row(f"{side} tokens", *(f"{x[f'{side}_tokens']:,}" for x in report["written"].values()))
        table.add_row("  unknown", *(f"{x[f'{side}_unknown']:,}" for x in report["written"].values()))
    Console().print(table)
    types = report["types"]
    print(f"{types['source']:,} source and {types['target']:,} target types, {types['both']:,} of them in both")
