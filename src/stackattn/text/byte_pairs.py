"""Byte-pair encoding with SentencePiece: training and loading models."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from ..extras import import_extra

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
        ValueError: SentencePiece cannot learn from this text.
    """
    trainer, written = sentencepiece().SentencePieceTrainer, io.BytesIO()
    sentences = list(sentences)
    longest = max((len(sentence.encode()) for sentence in sentences), default=0)
    # SentencePiece skips sentences above its limit. The limit is stored in the model, so it is raised only if
    # necessary: models of ordinary text stay identical byte for byte.
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
        raise ValueError(f"SentencePiece could not learn {size} pieces: {error}") from None
    return written.getvalue()


def load_model(model: bytes, name: str = "") -> Any:
    """Return the SentencePiece processor of a model; `name` is the name of its file for errors."""
    processor = sentencepiece().SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise ValueError(f"{name + ': ' if name else ''}not a SentencePiece model: {error}") from None
    return processor


def split_pieces(processor: Any, line: str) -> list[str]:
    """Return the pieces of a line, with <unk> for unknown characters; SentencePiece's text output keeps them."""
    return [processor.id_to_piece(i) for i in processor.encode(line)]
