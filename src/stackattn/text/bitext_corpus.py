"""Bitext corpora for translation, as folders.

train.source, train.target       one sentence per line; likewise for validation and test
pieces.model, pieces.json        the tokenizer learned from the training sentences
report.json                      see `corpus`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..files import check_new, whole_folder
from .bitext import Filters, select
from .byte_pairs import sentencepiece
from .corpus import Corpus, Track, check_split, no_progress
from .pieces import MODEL, VOCABULARY, PieceTokenizer, learn_pieces

SIDES = ("source", "target")


class BitextCorpus(Corpus):
    """A corpus made by `stackattn mt prepare`.

    Example::

        corpus = BitextCorpus("data/europarl-v7-de-en")
        sources, targets = corpus.read_split("train")
    """

    kind = "bitext"

    def tokenizer(self) -> PieceTokenizer:
        """Load the tokenizer of the corpus."""
        for name in (MODEL, VOCABULARY):
            self.read_file(name)
        return PieceTokenizer.load(self.folder)

    def read_split(self, split: str) -> tuple[list[str], list[str]]:
        """Read the source and the target sentences of a split."""
        check_split(split)
        names = [f"{split}.{side}" for side in SIDES]
        if split == "test" and not (self.folder / names[0]).exists():
            reason = "the corpus was prepared without a test set"
            raise ValueError(f"{self.folder / names[0]}: no such file: {reason}; prepare it again with --test")
        source, target = map(self.read_sentences, names)
        if len(source) != len(target):
            raise ValueError(
                f"{self.folder / names[1]}: number of sentences: expected {len(source):,}, as in {names[0]}, "
                f"found {len(target):,}"
            )
        return source, target


@dataclass(frozen=True)
class BitextOptions:
    """Options for preparing bitext. The defaults are the paper's."""

    max_characters: int = 150
    """Maximum length of a sentence, in characters."""
    max_ratio: float = 4.0
    """Maximum ratio of the lengths of the two sides of a training pair, in characters."""
    sample: int | None = 100_000
    """Number of training pairs to draw at random; None: keep all, in order."""
    seed: int = 123
    """Seed of the sample."""
    pieces: int = 32_000
    """Maximum number of pieces to learn; a small text yields fewer."""
    threshold: int = 50
    """A language uses a piece of several characters only if the piece occurs at least this often in the training
    sentences of that language."""


def prepare_bitext(
    files: Mapping[str, tuple[Path, Path]],
    folder: str | Path,
    options: BitextOptions | None = None,
    track: Track = no_progress,
    announce: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Filter bitext, learn a tokenizer and write both as a new corpus.

    Args:
        files: source and target file of `train`, `validation` and optionally `test`.
        folder: folder of the corpus; must not exist. It appears complete or not at all.
        options: how to prepare the text; default: the paper's options.
        track: wraps the pairs of each split to show progress.
        announce: called with the name of each stage that follows the reading.

    Returns:
        The report of the corpus.

    Raises:
        ModuleNotFoundError: SentencePiece is not installed; nothing has been read or written.
        FileExistsError: the folder exists.
        ValueError: an option or a file is invalid, two files have different numbers of sentences, no pair passes the
            filters, or the pieces cannot be learned.
        OSError: a file cannot be read or written.
    """
    options, folder = options or BitextOptions(), Path(folder)
    filters = Filters(options.max_characters, options.max_ratio)
    sentencepiece()
    check_new(folder)
    with whole_folder(folder) as partial:
        return _prepare(files, partial, options, filters, track, announce)


def _prepare(
    files: Mapping[str, tuple[Path, Path]],
    folder: Path,
    options: BitextOptions,
    filters: Filters,
    track: Track,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    read: dict[str, dict[str, int]] = {}
    splits: dict[str, tuple[list[str], list[str]]] = {}
    for split, (source, target) in files.items():
        is_training = split == "train"
        selection = select(
            source,
            target,
            filters if is_training else replace(filters, max_ratio=None),
            options.sample if is_training else None,
            options.seed,
            lambda pairs, split=split: track(pairs, f"reading {split}"),
        )
        read[split] = selection.counts()
        splits[split] = [pair[0] for pair in selection.pairs], [pair[1] for pair in selection.pairs]
    announce("learning the pieces")
    tokenizer, sizes = learn_pieces(*splits["train"], options.pieces, options.threshold)
    announce("counting tokens")
    types = [set(tokenizer.source_types), set(tokenizer.target_types)]
    report = {
        "options": asdict(options),
        "sources": {split: [path.name for path in paths] for split, paths in files.items()},
        "read": read,
        "written": {split: _count(tokenizer, sides) for split, sides in splits.items()},
        "types": {
            **sizes,
            "source": len(types[0]),
            "target": len(types[1]),
            "both": len(types[0] & types[1]),
        },
    }
    texts = {
        f"{split}.{side}": text for split, sides in splits.items() for side, text in zip(SIDES, sides, strict=True)
    }
    return BitextCorpus.fill(folder, texts, tokenizer, report)


def _count(tokenizer: PieceTokenizer, sides: tuple[list[str], list[str]]) -> dict[str, int]:
    """Count the sentences of a split, and the tokens and unknown tokens of each side."""
    counts = {"sentences": len(sides[0])}
    encoders = tokenizer.encode_source, tokenizer.encode_target
    for side, encode, sentences in zip(SIDES, encoders, sides, strict=True):
        tokens = np.concatenate(encode(sentences))
        counts[f"{side}_tokens"] = len(tokens)
        counts[f"{side}_unknown"] = int((tokens == tokenizer.unk).sum())
    return counts
