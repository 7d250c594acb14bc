"""The tokenizer of bitext: SentencePiece pieces learned from both languages together, with one vocabulary for both.

Order of the token ids (pieces are sorted by code points):

    pieces of the target language     can be predicted
    UNK                               can be predicted, but does not occur in training text
    EOS                               can be predicted
    pieces of the source language only
    BOS
    PAD
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_bytes, write_json
from ..lines import read_json_object
from .byte_pairs import CHECKSUM, load_model, model_checksum, read_model, sentencepiece, train_model
from .corpus import Tokenizer

MODEL, VOCABULARY = "pieces.model", "pieces.json"


class PieceTokenizer(Tokenizer):
    """Converts sentences to token ids and back.

    The pieces are learned from both languages, but each language uses only those that are frequent in it: other pieces
    are divided into smaller ones, down to single characters.

    Args:
        pieces_model: a serialised SentencePiece model.
        source_types, target_types: the pieces that occur in the training text of each language.

    Attributes:
        token_names: the names of all tokens by id, for display.
    """

    def __init__(self, pieces_model: bytes, source_types: Sequence[str], target_types: Sequence[str]):
        self.pieces_model = pieces_model
        self.source_types, self.target_types = sorted(source_types), sorted(target_types)
        only_source = sorted(set(source_types) - set(target_types))
        self.token_names = [*self.target_types, "UNK", "EOS", *only_source, "BOS", "PAD"]
        self.unk = len(self.target_types)
        self.eos = self.unk + 1
        self.bos = self.eos + 1 + len(only_source)
        self._encoders = [_processor(pieces_model, types) for types in (self.source_types, self.target_types)]
        numbers = {piece: i for i, piece in enumerate(self.target_types)}
        outputs = self._table(numbers)
        numbers |= {piece: self.eos + 1 + i for i, piece in enumerate(only_source)}
        self._tables = self._table(numbers), outputs

    def _table(self, numbers: dict[str, int]) -> np.ndarray:
        """(P,): the token id of each piece id of the SentencePiece model."""
        pieces = self._encoders[0]
        found = [numbers.get(pieces.id_to_piece(i), self.unk) for i in range(pieces.get_piece_size())]
        return np.array(found, dtype=np.int32)

    def encode_source(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of source sentences, without EOS; unknown characters become UNK."""
        return self._encode(0, sentences)

    def encode_target(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of target sentences, without BOS and EOS; a model can predict all of these tokens."""
        return self._encode(1, sentences)

    def _encode(self, side: int, sentences: Sequence[str]) -> list[np.ndarray]:
        pieces = self._encoders[side].encode(list(sentences), out_type=int, num_threads=1)
        return [self._tables[side][np.array(row, dtype=np.int64)] for row in pieces]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the sentence of predicted tokens; EOS must have been removed."""
        pieces = [self.target_types[token] if token < self.unk else "<unk>" for token in tokens]
        return self._encoders[1].decode_pieces(pieces)

    def save(self, folder: Path) -> None:
        """Write pieces.model and pieces.json."""
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / MODEL, self.pieces_model)
        types = {"source": self.source_types, "target": self.target_types}
        write_json(folder / VOCABULARY, {**types, CHECKSUM: model_checksum(self.pieces_model)})

    @classmethod
    def load(cls, folder: str | Path) -> PieceTokenizer:
        """Read a tokenizer written by `save`; errors name the file."""
        model, vocabulary = (Path(folder) / name for name in (MODEL, VOCABULARY))
        for path in (model, vocabulary):
            if not path.exists():
                raise FileNotFoundError(
                    f"{path}: no such file; the folder of a translation model must contain {MODEL} and {VOCABULARY}"
                )
        values = read_json_object(vocabulary)
        for side in ("source", "target"):
            if not isinstance(values.get(side), list) or not all(isinstance(x, str) for x in values[side]):
                raise ValueError(f"{vocabulary}: {side}: expected a list of pieces, got {values.get(side)!r:.80}")
        return cls(read_model(model, values.get(CHECKSUM)), values["source"], values["target"])


def learn_pieces(
    source: Sequence[str], target: Sequence[str], size: int = 32000, threshold: int = 50
) -> tuple[PieceTokenizer, dict[str, int]]:
    """Learn byte-pair encoding from the sentences of both languages together.

    Args:
        source, target: sentences.
        size: maximum number of pieces to learn; a small text yields fewer.
        threshold: a language uses single characters, and the pieces that occur at least this often in its sentences
            when these are split with all pieces.

    Returns:
        The tokenizer, and three numbers of pieces: those `learned`, those `occurring` in the text, and the `frequent`
        ones, which reach the threshold in at least one language.

    Raises:
        ValueError: `size` or `threshold` is out of range, or SentencePiece cannot learn from the text.
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1 piece, got {size}")
    if threshold < 0:
        raise ValueError(f"threshold: expected at least 0, got {threshold}")
    model = train_model(chain(source, target), size)
    unrestricted = _processor(model)
    used: list[list[str]] = []
    all_occurring: set[str] = set()
    all_frequent: set[str] = set()
    for sentences in (source, target):
        counts = _count(unrestricted, sentences)
        frequent = [piece for piece, count in counts.items() if count >= threshold]
        used.append(list(_count(_processor(model, frequent), sentences)))
        all_occurring |= set(counts)
        all_frequent |= set(frequent)
    sizes = {"learned": unrestricted.get_piece_size(), "occurring": len(all_occurring), "frequent": len(all_frequent)}
    return PieceTokenizer(model, *used), sizes


def _count(processor: Any, sentences: Sequence[str]) -> Counter[str]:
    numbers = Counter(chain.from_iterable(processor.encode(list(sentences), out_type=int, num_threads=1)))
    return Counter({processor.id_to_piece(i): n for i, n in numbers.items() if not processor.is_unknown(i)})


def _processor(model: bytes, pieces: Sequence[str] | None = None) -> Any:
    """Load a model with all its pieces, or only with the given pieces and single characters.

    Like `spm_encode --vocabulary`, this marks the other pieces as unused, so that they are divided further.
    """
    if pieces is not None:
        sentencepiece()  # raises with a hint if it is not installed
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore

        allowed, proto = set(pieces), ModelProto.FromString(model)
        for piece in proto.pieces:
            if piece.type == piece.NORMAL and len(piece.piece) > 1 and piece.piece not in allowed:
                piece.type = piece.UNUSED
        model = proto.SerializeToString()
    return load_model(model)
