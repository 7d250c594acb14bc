"""Preparing monolingual corpora from plain text whose tokens are separated by spaces."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..files import check_new, whole_folder
from ..lines import read_lines
from .byte_pairs import load_model, sentencepiece, split_pieces, train_model
from .corpus import SPLITS, Track, no_progress
from .monolingual_corpus import Sentences, fill_monolingual
from .vocabulary import CLASSES, count_vocabulary

ENDS = (".", "!", "?")
CLOSING = ("''", ")", "]")
_HEADING = re.compile(r"\s*(= ){1,6}.*( =){1,6}\s*")
_TITLE = re.compile(r"\s*= (?!= ).*(?<! =) =\s*")


@dataclass(frozen=True)
class PlainTextOptions:
    """Options for preparing plain text."""

    drop_headings: bool = False
    """Drop lines such as `= = Title = =`."""
    split_sentences: bool = False
    """Split each line (a paragraph) into sentences."""
    join_articles: bool = False
    """Join the lines of an article, from a title such as `= Title =` to the next title, into one document."""
    max_length: int | None = None
    """Drop sentences with more than this number of tokens; None: keep all."""
    min_count: int | None = None
    """Replace tokens that occur less often than this in the training text; None: 2 for words, 1 for pieces."""
    unknown: str = "<unk>"
    """The type that replaces rare tokens."""
    pieces: str | None = None
    """Maximum number of SentencePiece pieces to learn, or path of a SentencePiece model; None: the tokens are words."""

    def __post_init__(self) -> None:
        if self.join_articles and self.split_sentences:
            raise ValueError("join_articles: expected False with split_sentences, got True")
        for name in ("max_length", "min_count"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if len(self.unknown.split()) != 1 or self.unknown == CLASSES:
            expected = f"a token without spaces, other than the reserved word {CLASSES!r}"
            raise ValueError(f"unknown: expected {expected}, got {self.unknown!r}")
        if self.pieces is not None and self.pieces.isdecimal() and int(self.pieces) < 1:
            raise ValueError(f"pieces: expected at least 1 piece, or the path of a model, got {self.pieces}")


def prepare_plain(
    files: Mapping[str, Path], folder: Path, options: PlainTextOptions | None = None, track: Track = no_progress
) -> dict[str, Any]:
    """Write a new corpus from text files.

    Args:
        files: for each of `SPLITS`, a text file, which may be compressed (`.gz`).
        folder: folder of the corpus; must not exist. It appears complete or not at all.
        options: how to prepare the text.
        track: wraps the lines of each file to show progress.

    Returns:
        The report of the corpus.

    Raises:
        ModuleNotFoundError: `pieces` is set and SentencePiece is not installed; nothing has been read or written.
        FileExistsError: the folder exists.
        ValueError: a file is invalid, a split has no sentences, or the pieces cannot be learned.
        OSError: a file cannot be read or written.
    """
    options = options or PlainTextOptions()
    if options.pieces is not None:
        sentencepiece()
    check_new(folder)
    with whole_folder(folder) as partial:
        sentences: dict[str, Sentences] = {}
        counts: dict[str, dict[str, int]] = {}
        for split in SPLITS:
            sentences[split], counts[split] = to_sentences(
                track(read_lines(files[split]), f"reading {split}"),
                drop_headings=options.drop_headings,
                split=options.split_sentences,
                join=options.join_articles,
            )
        for split in SPLITS:
            if not sentences[split]:
                raise ValueError(f"{files[split]}: expected at least one sentence, found none")
        model = None
        if options.pieces is not None:
            model = _pieces_model(options.pieces, sentences["train"])
            sentences = {split: to_pieces(sentences[split], model) for split in SPLITS}
        for split in SPLITS:
            sentences[split], dropped = drop_long(sentences[split], options.max_length)
            counts[split] |= dropped
        options = replace(options, min_count=options.min_count or (2 if model is None else 1))
        assert options.min_count is not None
        vocabulary = count_vocabulary(sentences["train"], options.min_count, options.unknown, model)
        report = {
            "options": asdict(options),
            "sources": {split: Path(files[split]).name for split in SPLITS},
            "read": counts,
        }
        return fill_monolingual(partial, sentences, vocabulary, report)


def _pieces_model(pieces: str, training: Sentences) -> bytes:
    if pieces.isdecimal():
        return train_model((" ".join(sentence) for sentence in training), int(pieces))
    model = Path(pieces).read_bytes()
    load_model(model, pieces)
    return model


def to_sentences(
    lines: Iterable[str], *, drop_headings: bool, split: bool, join: bool = False
) -> tuple[Sentences, dict[str, int]]:
    """Return the words of each non-blank line, and the numbers of lines, blank lines, dropped headings and sentences.

    With `split`, return the words of each sentence in a line instead; with `join`, those of each article.
    """
    total = blank = headings = 0
    sentences: Sentences = []
    article: list[str] = []  # with `join`, the article being read, which is the last item of `sentences`
    for line in lines:
        total += 1
        words = line.split()
        if not words:
            blank += 1
            continue
        if join and _TITLE.fullmatch(line):
            article = []
        if drop_headings and _HEADING.fullmatch(line):
            headings += 1
        elif join:
            if not article:
                sentences.append(article)
            article += words
        else:
            sentences += split_sentences(words) if split else [words]
    return sentences, {"lines": total, "blank": blank, "headings": headings, "sentences": len(sentences)}


def split_sentences(words: Sequence[str]) -> Sentences:
    """Split a paragraph after `.`, `!` and `?` and the closing brackets and quotation marks that follow them.

    A sentence continues if the next word starts with a lower-case letter, as in `" Why ? " he said .`

    Example::

        >>> split_sentences("It ended . He left .".split())
        [['It', 'ended', '.'], ['He', 'left', '.']]
    """
    sentences: Sentences = []
    sentence: list[str] = []
    ended = quoted = False
    for word in words:
        if ended and word not in ENDS and word not in CLOSING and not (quoted and word == '"'):
            if not word[0].islower():
                sentences.append(sentence)
                sentence = []
            ended = False
        sentence.append(word)
        ended = ended or word in ENDS
        quoted ^= word == '"'
    return [*sentences, sentence] if sentence else sentences


def drop_long(sentences: Sentences, max_length: int | None) -> tuple[Sentences, dict[str, int]]:
    """Return the sentences of at most `max_length` tokens, and the numbers of dropped sentences and of their tokens."""
    most = math.inf if max_length is None else max_length
    dropped = [len(sentence) for sentence in sentences if len(sentence) > most]
    kept = [sentence for sentence in sentences if len(sentence) <= most]
    return kept, {"too_long": len(dropped), "tokens_too_long": sum(dropped)}


def to_pieces(sentences: Sentences, model: bytes) -> Sentences:
    """Split the words of sentences into the pieces of a SentencePiece model."""
    processor = load_model(model)
    return [split_pieces(processor, " ".join(sentence)) for sentence in sentences]
