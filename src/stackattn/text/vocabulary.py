"""Vocabularies of language models: from a line of text to numbers and back, unknown words included.

The numbers are those of the paper's models: the types in order, then EOS, BOS and padding. A model can predict types
and EOS, so these come first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..files import write_bytes, write_json
from .byte_pairs import load_model
from .unknown import PLAIN, unknown_class

FILE, PIECES = "vocabulary.json", "pieces.model"
CLASSES = "classes"
END = "</s>"  # how EOS is shown


@dataclass(frozen=True)
class Vocabulary:
    types: tuple[str, ...]
    unknown: str | None = None
    """What stands for unknown tokens: a type, or `classes` for those of `unknown_class`; None if nothing does."""
    pieces: bytes | None = None
    """A SentencePiece model, if the tokens are its pieces."""

    def __post_init__(self) -> None:
        if len(self._numbers) != len(self.types):
            raise ValueError("types: expected each one once")
        if self.unknown not in (None, CLASSES) and self.unknown not in self._numbers:
            raise ValueError(f"unknown: expected one of the types or {CLASSES!r}, got {self.unknown!r}")

    @property
    def eos(self) -> int:
        return len(self.types)

    @property
    def bos(self) -> int:
        return len(self.types) + 1

    @property
    def pad(self) -> int:
        return len(self.types) + 2

    @property
    def input_size(self) -> int:
        return len(self.types) + 3

    @property
    def output_size(self) -> int:
        return len(self.types) + 1

    def split(self, line: str) -> list[str]:
        """The tokens of a line of text: pieces, or else what is between blanks."""
        return line.split() if self.pieces is None else split_pieces(self._processor, line)

    def join(self, tokens: Sequence[int]) -> str:
        """The text of types by their numbers."""
        words = [self.types[i] for i in tokens]
        return " ".join(words) if self.pieces is None else self._processor.decode(words)

    def type_of(self, token: str) -> str:
        """The token itself if it is a type, or what stands for it."""
        if token in self._numbers:
            return token
        if self.unknown == CLASSES:
            for name in (unknown_class(token, self._numbers), PLAIN):
                if name in self._numbers:
                    return name
        elif self.unknown is not None:
            return self.unknown
        raise ValueError(f"{token!r} is not in the vocabulary of {len(self.types)} types, and nothing stands for it")

    def encode(self, tokens: Iterable[str]) -> list[int]:
        return [self._numbers[self.type_of(token)] for token in tokens]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.pieces is not None:
            write_bytes(folder / PIECES, self.pieces)
        write_json(folder / FILE, {"types": self.types, "unknown": self.unknown, "pieces": self.pieces is not None})

    @classmethod
    def load(cls, folder: str | Path) -> Vocabulary:
        path = Path(folder) / FILE
        if not path.exists():
            raise FileNotFoundError(f"{path}: not there; `stackattn lm prepare` makes it, and a run keeps it in best/")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            types, unknown = tuple(values["types"]), values["unknown"]
            pieces = (path.parent / PIECES).read_bytes() if values["pieces"] else None
            return cls(types, unknown, pieces)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a vocabulary: {error!r}") from error

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.types)}

    @cached_property
    def _processor(self) -> Any:
        assert self.pieces is not None
        return load_model(self.pieces)


def count_vocabulary(
    training: Iterable[Iterable[str]],
    min_count: int,
    unknown: str,
    pieces: bytes | None = None,
    extra: Iterable[str] = (),
) -> Vocabulary:
    """The tokens that occur at least `min_count` times in the training sentences, what stands for the others, and
    `extra` types, all in alphabetical order."""
    counts = Counter(token for sentence in training for token in sentence)
    known = {token for token, count in counts.items() if count >= min_count}
    others = {unknown_class(x, known) for x in counts if x not in known} if unknown == CLASSES else {unknown}
    return Vocabulary(tuple(sorted(known | others | set(extra))), unknown, pieces)


def split_pieces(processor: Any, line: str) -> list[str]:
    """Unlike SentencePiece's own text output, this has <unk> for what the model does not know."""
    return [processor.id_to_piece(i) for i in processor.encode(line)]
