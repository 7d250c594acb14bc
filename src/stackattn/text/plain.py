"""Plain text, tokens separated by blanks, to sentences: what is not a sentence dropped, paragraphs divided, counted."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import Sentences
from .vocabulary import piece_processor, split_pieces

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


def read_lines(path: Path) -> list[str]:
    """Of a text file, or of one that gzip made smaller."""
    content = path.read_bytes()
    try:
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except (OSError, EOFError) as error:
        raise ValueError(f"{path}: not a gzip file, or a damaged one: {error}") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


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


def train_pieces(sentences: Sentences, size: int) -> bytes:
    """A SentencePiece model (BPE) of about so many pieces; it takes the text as it is, with every character."""
    try:
        from sentencepiece import SentencePieceTrainer
    except ImportError:
        raise ValueError("pieces need SentencePiece: pip install 'stackattn[text]'") from None
    model = io.BytesIO()
    options: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "normalization_rule_name": "identity"}
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(" ".join(sentence) for sentence in sentences),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        raise ValueError(f"pieces: SentencePiece cannot make {size} pieces: {error}") from None
    return model.getvalue()


def to_pieces(sentences: Sentences, model: bytes) -> Sentences:
    processor = piece_processor(model)
    return [split_pieces(processor, " ".join(sentence)) for sentence in sentences]
