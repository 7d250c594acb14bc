"""Byte-pair encoding by SentencePiece, as the paper has it: learned from sentences that are taken as they are."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

INSTALL = "pip install 'stackattn[text]'"
LIMIT = 4192  # bytes of a sentence that SentencePiece reads if it is not told otherwise


def sentencepiece() -> Any:
    """The library, if it is there."""
    try:
        import google.protobuf  # noqa: F401
        import sentencepiece
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"pieces need SentencePiece: {INSTALL}", name=error.name) from None
    return sentencepiece


def train_model(sentences: Iterable[str], size: int) -> bytes:
    """A model of `size` pieces, or of fewer where the text has no more, with every character of it.

    Only a sentence with U+2585, which SentencePiece keeps for its own use, is not learned from.
    """
    trainer, written = sentencepiece().SentencePieceTrainer, io.BytesIO()
    sentences = list(sentences)
    longest = max((len(sentence.encode()) for sentence in sentences), default=0)
    # It skips longer ones. A model has this setting in it, so it is made only where it matters.
    limit = {"max_sentence_length": longest} if longest > LIMIT else {}
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


def load_model(model: bytes) -> Any:
    """What divides sentences by a model."""
    processor = sentencepiece().SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise ValueError(f"not a SentencePiece model: {error}") from None
    return processor
