"""Vocabularies of language models: conversion of text to token ids and back, including unknown words.

The ids are those of the paper's models: the types in order, then EOS, BOS and PAD. Types and EOS come first because
a model predicts only these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..files import write_bytes, write_json
from ..lines import read_json_object
from .byte_pairs import CHECKSUM, load_model, model_checksum, read_model, split_pieces
from .corpus import Tokenizer
from .unknown import PLAIN, unknown_class

FILE, PIECES = "vocabulary.json", "pieces.model"
CLASSES = "classes"
EOS_TEXT = "</s>"


@dataclass(frozen=True)
class Vocabulary(Tokenizer):
    """The types of a language model, and its tokenizer, which splits text at spaces or into SentencePiece pieces.

    Example::

        >>> vocabulary = Vocabulary(("<unk>", "a", "b"), unknown="<unk>")
        >>> vocabulary.encode(vocabulary.split("b a c"))
        [2, 1, 0]
        >>> vocabulary.decode([2, 1, 0])
        'b a <unk>'
    """

    types: tuple[str, ...]
    """The types in the order of their ids."""
    unknown: str | None = None
    """The type that replaces unknown tokens, or `classes` for the classes of `unknown_class`; None: unknown tokens
    raise an error."""
    pieces_model: bytes | None = None
    """The SentencePiece model that splits text into tokens; None: tokens are separated by spaces."""

    def __post_init__(self) -> None:
        if len(self._numbers) != len(self.types):
            twice = next(name for name, count in Counter(self.types).items() if count > 1)
            raise ValueError(f"types: expected distinct types, got {twice!r} more than once")
        if self.unknown not in (None, CLASSES) and self.unknown not in self._numbers:
            raise ValueError(f"unknown: expected one of the types or {CLASSES!r}, got {self.unknown!r}")

    @property
    def eos(self) -> int:
        """The id of EOS."""
        return len(self.types)

    @property
    def bos(self) -> int:
        """The id of BOS."""
        return self.eos + 1

    @property
    def token_names(self) -> list[str]:
        """The names of all tokens by id, for display."""
        return [*self.types, "EOS", "BOS", "PAD"]

    def __contains__(self, token: str) -> bool:
        """Whether a token is one of the types."""
        return token in self._numbers

    def split(self, line: str) -> list[str]:
        """Split a line of text into tokens."""
        return line.split() if self.pieces_model is None else split_pieces(self._processor, line)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens; raise ValueError for a token that the vocabulary cannot represent."""
        return [self._numbers[self.type_of(token)] for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a sequence of type ids."""
        words = [self.types[i] for i in tokens]
        return " ".join(words) if self.pieces_model is None else self._processor.decode(words)

    def type_of(self, token: str) -> str:
        """Return the token itself if it is a type, otherwise the type that replaces it.

        Raises:
            ValueError: no type replaces the token.
        """
        if token in self:
            return token
        if self.unknown == CLASSES:
            for name in (unknown_class(token, self._numbers), PLAIN):
                if name in self._numbers:
                    return name
        elif self.unknown is not None:
            return self.unknown
        raise ValueError(f"{token!r} is not in the vocabulary of {len(self.types)} types, and no type replaces it")

    def save(self, folder: Path) -> None:
        """Write vocabulary.json and, if there is a SentencePiece model, pieces.model."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {"types": self.types, "unknown": self.unknown, "pieces": self.pieces_model is not None}
        if self.pieces_model is not None:
            write_bytes(folder / PIECES, self.pieces_model)
            values[CHECKSUM] = model_checksum(self.pieces_model)
        write_json(folder / FILE, values)

    @classmethod
    def load(cls, folder: str | Path) -> Vocabulary:
        """Read a vocabulary written by `save`; errors name the file."""
        path = Path(folder) / FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: no such file; pass the folder of a corpus (`stackattn lm prepare`) or of a trained model"
            )
        values = read_json_object(path)
        types, unknown, has_pieces = (values.get(key) for key in ("types", "unknown", "pieces"))
        if not isinstance(types, list) or not all(isinstance(x, str) for x in types):
            raise ValueError(f"{path}: types: expected a list of types, got {types!r:.80}")
        if not isinstance(unknown, str | None) or not isinstance(has_pieces, bool):
            expected = "expected the keys unknown (text or null) and pieces (true or false)"
            raise ValueError(f"{path}: {expected}, got {unknown!r:.80} and {has_pieces!r:.80}")
        model = read_model(path.parent / PIECES, values.get(CHECKSUM)) if has_pieces else None
        try:
            return cls(tuple(types), unknown, model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.types)}

    @cached_property
    def _processor(self) -> Any:
        assert self.pieces_model is not None
        return load_model(self.pieces_model)


def count_vocabulary(
    training: Iterable[Iterable[str]],
    min_count: int,
    unknown: str,
    pieces_model: bytes | None = None,
    extra: Iterable[str] = (),
) -> Vocabulary:
    """Build a vocabulary from the tokens of the training sentences; its types are sorted by code points.

    Args:
        training: the tokens of each sentence.
        min_count: tokens that occur less often than this are unknown.
        unknown: the type that replaces them, or `CLASSES`.
        pieces_model: the SentencePiece model that made the tokens; None: the tokens are words.
        extra: additional types.
    """
    counts = Counter(token for sentence in training for token in sentence)
    known = {token for token, count in counts.items() if count >= min_count}
    others = {unknown_class(x, known) for x in counts if x not in known} if unknown == CLASSES else {unknown}
    return Vocabulary(tuple(sorted(known | others | set(extra))), unknown, pieces_model)
