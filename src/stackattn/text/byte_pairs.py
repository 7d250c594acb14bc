"""Byte-pair encoding by SentencePiece, as the paper has it: learned from sentences that are taken as they are."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

INSTALL = "pip install 'stackattn[text]'"


def sentencepiece() -> Any:
    """The library, if it is there."""
    try:
        import google.protobuf  # noqa: F401
        import sentencepiece
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"pieces need SentencePiece: {INSTALL}", name=error.name) from None
    return sentencepiece


def train_model(sentences: Iterable[str], size: int) -> bytes:
    """A model of `size` pieces, or of fewer where the text has no more, with every character of it."""
    trainer, written = sentencepiece().SentencePieceTrainer, io.BytesIO()
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
        )
    except RuntimeError as error:
        raise ValueError(f"SentencePiece could not learn {size} pieces: {error}") from None
    return written.getvalue()


def load_model(model: bytes) -> Any:
    """What divides sentences by a model."""
    processor = sentencepiece().SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise ValueError(f"not a SentencePiece model: {error}") from None
    return processor
