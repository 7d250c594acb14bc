"""Reading, normalising and filtering bitext: pairs of sentences from two files.

Text files are streamed, so that only the selected pairs are in memory. SGML files, the format of WMT's test sets, are
read as a whole.
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
    """Criteria for dropping pairs. A pair is counted under the first filter that drops it, in the paper's order."""

    max_characters: int = 150
    """Maximum length of a sentence, in characters."""
    max_ratio: float | None = 4.0
    """Maximum ratio of the lengths of the two sides, in characters; None (for validation and test): no maximum."""

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters: expected at least 1, got {self.max_characters}")
        if self.max_ratio is not None and not self.max_ratio >= 1:
            raise ValueError(f"max_ratio: expected at least 1, got {self.max_ratio}")

    def reason(self, pair: Pair) -> str | None:
        """Return the name of the filter that drops a pair, one of `REASONS`, or None if the pair is kept."""
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
    """Yield the pairs of two files with one sentence per line, normalised (NFKC).

    Raises:
        ValueError: the files have different numbers of sentences; raised after the last pair.
    """
    paths = Path(source), Path(target)
    counts = [0, 0]
    for pair in zip_longest(*map(read_sentences, paths)):
        counts = [n + (side is not None) for n, side in zip(counts, pair, strict=True)]
        if counts[0] == counts[1]:  # otherwise one file has ended: count the rest of the other
            yield normalise(pair[0]), normalise(pair[1])
    if counts[0] != counts[1]:
        raise ValueError(
            f"{paths[0]} and {paths[1]}: expected the same number of sentences, got {counts[0]} and {counts[1]}"
        )


def normalise(sentence: str) -> str:
    """Apply Unicode normalisation (NFKC)."""
    return unicodedata.normalize("NFKC", sentence)


def read_sentences(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text file, or the segments of an SGML file of WMT (`.sgm`, `.sgml`); both may be gzipped."""
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
    """The pairs that pass the filters, or a sample of them."""

    pairs: list[Pair]
    read: int
    """Number of pairs read."""
    dropped: dict[str, int]
    """Number of pairs dropped by each filter."""

    def counts(self) -> dict[str, int]:
        """Return the numbers of pairs read, dropped by each filter, kept and used."""
        kept = self.read - sum(self.dropped.values())
        return {"read": self.read, **self.dropped, "kept": kept, "used": len(self.pairs)}


def select(
    source: str | Path,
    target: str | Path,
    filters: Filters,
    sample: int | None = None,
    seed: int = 123,
    track: Callable[[Iterable[Pair]], Iterable[Pair]] = lambda pairs: pairs,
) -> Selection:
    """Read two files and select the pairs that pass the filters.

    Args:
        source, target: files with one sentence per line, or SGML.
        filters: which pairs to drop.
        sample: number of pairs to draw at random if more pass the filters; None: select all, in order.
        seed: seed of the sample, which is drawn with Python's `random.Random(seed).sample`. Sampling reads the files
            twice, so that only the sample is in memory.
        track: wraps the pairs to show progress.

    Raises:
        ValueError: `sample` is less than 1, no pair passes the filters, or the files have different numbers of
            sentences.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"sample: expected at least 1 pair, got {sample}")
    counts: Counter[str | None] = Counter()
    pairs: list[Pair] = []
    for pair in track(read_pairs(source, target)):
        reason = filters.reason(pair)
        counts[reason] += 1
        if reason is None and (sample is None or counts[None] <= sample):
            pairs.append(pair)
    read, kept = counts.total(), counts[None]
    dropped = {name: counts[name] for name in REASONS if name != "length ratio" or filters.max_ratio is not None}
    if not kept:
        if not read:
            raise ValueError(f"{source} and {target}: expected at least one pair of sentences, found empty files")
        reasons = ", ".join(f"{name}: {count}" for name, count in dropped.items())
        expected = "expected at least one pair that passes the filters"
        raise ValueError(f"{source} and {target}: {expected}, found none ({reasons})")
    if sample is not None and kept > sample:
        place = {number: i for i, number in enumerate(random.Random(seed).sample(range(kept), sample))}
        passing = (pair for pair in track(read_pairs(source, target)) if filters.reason(pair) is None)
        for number, pair in enumerate(passing):
            if number in place:
                pairs[place[number]] = pair
    return Selection(pairs, read, dropped)
