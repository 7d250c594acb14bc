"""Parallel text: pairs of sentences read from two files at once, made uniform and filtered.

Of text nothing is held in memory but what is asked for: a corpus may be as large as it likes. SGML, which test sets
come in, is read whole.
"""

from __future__ import annotations

import html
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ..lines import read_lines

Pair = tuple[str, str]
"""A source sentence and its translation."""

SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Filters:
    """What keeps a pair out. The order is the paper's: each pair is counted under the first one that it fails."""

    max_characters: int = 150
    """On either side."""
    max_ratio: float | None = 4.0
    """Between the characters of one side and of the other; None (for validation and test): any."""

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters: expected at least 1, got {self.max_characters}")
        if self.max_ratio is not None and not self.max_ratio >= 1:
            raise ValueError(f"max_ratio: expected at least 1, got {self.max_ratio}")

    def reason(self, pair: Pair) -> str | None:
        """Why this pair is left out, or None if it is not."""
        stripped = [side.strip() for side in pair]
        if not all(stripped):
            return "blank"
        if "." in stripped:
            return "full stop only"
        short, long = sorted(map(len, pair))
        if self.max_ratio is not None and long > self.max_ratio * short:
            return "length ratio"
        return "too long" if long > self.max_characters else None


REASONS = ("blank", "full stop only", "length ratio", "too long")


def read_pairs(source: str | Path, target: str | Path) -> Iterator[Pair]:
    """The pairs of two files with a sentence on each line, normalised (NFKC)."""
    paths = Path(source), Path(target)
    counts = [0, 0]
    for pair in zip_longest(*map(read_sentences, paths)):
        counts = [n + (side is not None) for n, side in zip(counts, pair, strict=True)]
        if counts[0] == counts[1]:  # else one has ended: count the other to its end
            yield normalise(pair[0]), normalise(pair[1])
    if counts[0] != counts[1]:
        raise ValueError(
            f"{paths[0]} and {paths[1]}: expected as many sentences in both, got {counts[0]} and {counts[1]}"
        )


def normalise(sentence: str) -> str:
    return unicodedata.normalize("NFKC", sentence)


def read_sentences(path: str | Path) -> Iterator[str]:
    """The lines of a text file, or the segments of WMT's SGML (`.sgm`, `.sgml`); either may be compressed (`.gz`)."""
    path = Path(path)
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind.lower() not in (".sgm", ".sgml"):
        yield from read_lines(path)
        return
    segments = SEGMENT.findall("\n".join(read_lines(path)))
    if not segments:
        raise ValueError(f"{path}: expected sentences in <seg>...</seg>, found none")
    for segment in segments:
        yield html.unescape(" ".join(segment.split()))


@dataclass(frozen=True)
class Selection:
    """The pairs that are left of a corpus."""

    pairs: list[Pair]
    read: int
    dropped: dict[str, int]
    """How many pairs each filter left out."""

    def report(self) -> dict[str, int]:
        kept = self.read - sum(self.dropped.values())
        return {"read": self.read, **self.dropped, "kept": kept, "used": len(self.pairs)}


def select(
    source: str | Path,
    target: str | Path,
    filters: Filters,
    sample: int | None = None,
    seed: int = 123,
    watch: Callable[[Iterable[Pair]], Iterable[Pair]] = lambda pairs: pairs,
) -> Selection:
    """Read two files and keep what passes the filters: all of it in its order or, if there is more, a random sample.

    The sample and its order are those of Python's `random.Random(seed).sample`. The files are read twice then, so that
    no more than the sample is kept in memory. `watch` sees each pair go by.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"sample: expected at least 1 pair, got {sample}")
    counts: Counter[str | None] = Counter()
    pairs: list[Pair] = []
    for pair in watch(read_pairs(source, target)):
        reason = filters.reason(pair)
        counts[reason] += 1
        if reason is None and (sample is None or counts[None] <= sample):
            pairs.append(pair)
    read, kept = counts.total(), counts[None]
    dropped = {name: counts[name] for name in REASONS if name != "length ratio" or filters.max_ratio is not None}
    if not kept:
        why = ", ".join(f"{name}: {count}" for name, count in dropped.items())
        raise ValueError(f"{source} and {target}: none of {read} pairs passes the filters ({why})")
    if sample is not None and kept > sample:
        place = {number: i for i, number in enumerate(random.Random(seed).sample(range(kept), sample))}
        passing = (pair for pair in watch(read_pairs(source, target)) if filters.reason(pair) is None)
        for number, pair in enumerate(passing):
            if number in place:
                pairs[place[number]] = pair
    return Selection(pairs, read, dropped)
