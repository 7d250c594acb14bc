"""Byte-pair encoding with SentencePiece: training and loading models."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..extras import import_extra

CHECKSUM = "pieces_checksum"  # key of the JSON file next to a model
DEFAULT_LIMIT = 4192  # SentencePiece's default maximum length of a training sentence, in bytes


def sentencepiece() -> Any:
    """Import and return SentencePiece; the ModuleNotFoundError says how to install it."""
    purpose = "splitting words into pieces"
    import_extra("google.protobuf", "text", purpose)  # SentencePiece needs it to change a model
    return import_extra("sentencepiece", "text", purpose)


def train_model(sentences: Iterable[str], size: int) -> bytes:
    """Learn a SentencePiece model of up to `size` pieces that covers every character of the text.

    Sentences that contain U+2585, which SentencePiece reserves, are ignored.

    Raises:
        ValueError: `size` is too small, or SentencePiece cannot learn from this text.
    """
    trainer, written = sentencepiece().SentencePieceTrainer, io.BytesIO()
    sentences = list(sentences)
    longest = max((len(sentence.encode()) for sentence in sentences), default=0)
    # SentencePiece skips sentences above its limit. The limit is stored in the model, so it is raised only if
    # necessary; otherwise the bytes of every model would depend on the longest sentence.
    limit = {"max_sentence_length": longest} if longest > DEFAULT_LIMIT else {}
    try:
        trainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
            **limit,
        )
    except RuntimeError as error:
        if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            expected = f"expected at least {least[1]} pieces, for the characters of the text and <unk>"
            raise ValueError(f"size: {expected}, got {size}") from None
        raise ValueError(f"SentencePiece could not learn {size} pieces: {error}") from None
    return written.getvalue()


def load_model(model: bytes, name: str = "") -> Any:
    """Return the SentencePiece processor of a model; `name` is the name of its file, for error messages.

    Raises:
        ValueError: `model` is not a SentencePiece model.
    """
    processor = sentencepiece().SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise ValueError(f"{name + ': ' if name else ''}not a SentencePiece model: {error}") from None
    return processor


def model_checksum(model: bytes) -> str:
    """Return the checksum of a serialised model, which is stored next to it."""
    return hashlib.sha256(model).hexdigest()


def read_model(path: Path, expected: object) -> bytes:
    """Return the serialised model in a file; errors name the file.

    Raises:
        ValueError: the file is not a SentencePiece model, or its checksum is not `expected` (None: not checked).
    """
    model = path.read_bytes()
    load_model(model, str(path))
    if expected not in (None, model_checksum(model)):
        raise ValueError(
            f"{path}: damaged: the content does not match the checksum that was stored with it; restore the file"
        )
    return model


def split_pieces(processor: Any, line: str) -> list[str]:
    """Return the pieces of a line, with <unk> for unknown characters, which SentencePiece's text output would keep."""
    return [processor.id_to_piece(i) for i in processor.encode(line)]
