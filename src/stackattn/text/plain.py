"""Plain text, tokens separated by blanks, to sentences: what is not a sentence dropped, paragraphs divided, counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .byte_pairs import load_model
from .corpus import Sentences
from .vocabulary import split_pieces

ENDS = (".", "!", "?")
CLOSING = ("''", ")", "]")
_HEADING = re.compile(r"\s*(= ){1,6}.*( =){1,6}\s*")


@dataclass
class Counts:
    """What became of the lines of a file."""

    lines: int = 0
    blank: int = 0
    headings: int = 0
    sentences: int = 0
    too_long: int = 0
    tokens_too_long: int = 0
    """Tokens of the sentences that were too long."""


def to_sentences(lines: Iterable[str], *, drop_headings: bool, split: bool, counts: Counts) -> Sentences:
    """The words of each line that is not blank, or of each sentence in it; counted in `counts`."""
    sentences: Sentences = []
    for line in lines:
        counts.lines += 1
        words = line.split()
        if not words:
            counts.blank += 1
        elif drop_headings and _HEADING.fullmatch(line):
            counts.headings += 1
        else:
            sentences += split_sentences(words) if split else [words]
    counts.sentences = len(sentences)
    return sentences


def split_sentences(words: Sequence[str]) -> Sentences:
    """Divide a paragraph behind `.`, `!` and `?` and the brackets and quotation marks that they close.

    Where the next word begins with a small letter, as in `" Why ? " he said .`, the sentence goes on.
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


def drop_long(sentences: Sentences, max_length: int | None, counts: Counts) -> Sentences:
    if max_length is None:
        return sentences
    long = [sentence for sentence in sentences if len(sentence) > max_length]
    counts.too_long, counts.tokens_too_long = len(long), sum(map(len, long))
    return [sentence for sentence in sentences if len(sentence) <= max_length]


def to_pieces(sentences: Sentences, model: bytes) -> Sentences:
    processor = load_model(model)
    return [split_pieces(processor, " ".join(sentence)) for sentence in sentences]
