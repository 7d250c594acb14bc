"""Pieces of words as tokens: SentencePiece, learned from two languages at once, and one vocabulary for both.

Token numbers, with the pieces in order of their code points:

    pieces of the target language     can be predicted
    UNK                               can be predicted, but never is in training text
    EOS                               can be predicted
    pieces of the source alone
    BOS
    PAD
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_bytes, write_json
from .byte_pairs import load_model, sentencepiece, train_model

MODEL, VOCABULARY = "pieces.model", "pieces.json"


class PieceTokenizer:
    """Sentences to tokens and back.

    Each language uses only its own pieces, whatever was learned from both together: a piece that the language hardly
    ever has is divided into smaller ones, down to single characters.
    """

    def __init__(self, model: bytes, source: Sequence[str], target: Sequence[str]):
        """`model` as SentencePiece writes it; the pieces that occur in the training text of each language."""
        self.model, self.source, self.target = model, sorted(source), sorted(target)
        only_source = sorted(set(source) - set(target))
        self.unknown = len(self.target)
        self.eos = self.unknown + 1
        self.bos = self.eos + 1 + len(only_source)
        self.pad = self.bos + 1
        self.input_size, self.output_size = self.pad + 1, self.eos + 1
        self._encoders = [_processor(model, pieces) for pieces in (self.source, self.target)]
        numbers = {piece: i for i, piece in enumerate(self.target)}
        outputs = self._table(numbers)
        numbers |= {piece: self.eos + 1 + i for i, piece in enumerate(only_source)}
        self._tables = self._table(numbers), outputs

    def _table(self, numbers: dict[str, int]) -> np.ndarray:
        """The token of each piece of the SentencePiece model, which has numbers of its own."""
        pieces = self._encoders[0]
        found = [numbers.get(pieces.id_to_piece(i), self.unknown) for i in range(pieces.get_piece_size())]
        return np.array(found, dtype=np.int32)

    def encode_source(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Tokens without EOS. What was in no training text becomes UNK."""
        return self._encode(0, sentences)

    def encode_target(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Tokens without BOS and EOS, all of which can be predicted."""
        return self._encode(1, sentences)

    def _encode(self, side: int, sentences: Sequence[str]) -> list[np.ndarray]:
        pieces = self._encoders[side].encode(list(sentences), out_type=int, num_threads=1)
        return [self._tables[side][np.array(row, dtype=np.int64)] for row in pieces]

    def decode(self, tokens: Iterable[int]) -> str:
        """The sentence of predicted tokens without EOS."""
        pieces = [self.target[token] if token < self.unknown else "<unk>" for token in tokens]
        return self._encoders[1].decode_pieces(pieces)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / MODEL, self.model)
        write_json(folder / VOCABULARY, {"source": self.source, "target": self.target})

    @classmethod
    def load(cls, folder: str | Path) -> PieceTokenizer:
        model, vocabulary = (Path(folder) / name for name in (MODEL, VOCABULARY))
        for path in (model, vocabulary):
            if not path.exists():
                raise FileNotFoundError(f"{path}: not there; a translation model comes with {MODEL} and {VOCABULARY}")
        try:
            values = json.loads(vocabulary.read_text(encoding="utf-8"))
            source, target = values["source"], values["target"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{vocabulary}: expected pieces of source and target: {error!r}") from None
        data = model.read_bytes()
        try:
            load_model(data)
        except ValueError as error:
            raise ValueError(f"{model}: {error}") from None
        return cls(data, source, target)


def learn_pieces(
    source: Sequence[str], target: Sequence[str], size: int = 32000, threshold: int = 50
) -> PieceTokenizer:
    """Learn byte-pair encoding from the sentences of both languages together.

    Args:
        source, target: sentences
        size: pieces to learn; fewer where the text has no more.
        threshold: a language uses those pieces that it has so many times when all may be used, and single characters.
    """
    if size < 1 or threshold < 0:
        raise ValueError(f"size and threshold: expected a positive and a whole number, got {size} and {threshold}")
    model = train_model(chain(source, target), size)
    every = _processor(model)
    used = []
    for sentences in (source, target):
        counts = _count(every, sentences)
        often = [piece for piece, count in counts.items() if count >= threshold]
        used.append(list(_count(_processor(model, often), sentences)))
    return PieceTokenizer(model, *used)


def _count(processor: Any, sentences: Sequence[str]) -> Counter[str]:
    numbers = Counter(chain.from_iterable(processor.encode(list(sentences), out_type=int, num_threads=1)))
    return Counter({processor.id_to_piece(i): n for i, n in numbers.items() if not processor.is_unknown(i)})


def _processor(model: bytes, pieces: Sequence[str] | None = None) -> Any:
    """With all its pieces or, besides single characters, only those given.

    This is what `spm_encode --vocabulary` does: it marks the other pieces as unused, and whatever would become one of
    them is divided again.
    """
    if pieces is not None:
        sentencepiece()  # says what to install if it is not there
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore

        allowed, proto = set(pieces), ModelProto.FromString(model)
        for piece in proto.pieces:
            if piece.type == piece.NORMAL and len(piece.piece) > 1 and piece.piece not in allowed:
                piece.type = piece.UNUSED
        model = proto.SerializeToString()
    return load_model(model)
