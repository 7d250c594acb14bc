"""Monolingual corpora for language models, as folders.

train.txt, validation.txt, test.txt   one sentence per line, tokens separated by spaces, unknown words replaced
vocabulary.json                       the types, and how unknown words are replaced
pieces.model                          the SentencePiece model, if the tokens are its pieces
report.json                           see `corpus`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import whole_folder
from .corpus import SPLITS, Corpus, check_split
from .vocabulary import CLASSES, FILE, PIECES, Vocabulary

Sentences = list[list[str]]


class MonolingualCorpus(Corpus):
    """A corpus made by `stackattn lm prepare` or `stackattn lm prepare-ptb`.

    Example::

        corpus = MonolingualCorpus("data/wikitext-2")
        sentences = corpus.encode_split("train", corpus.tokenizer())
    """

    kind = "monolingual"

    def tokenizer(self) -> Vocabulary:
        """Load the vocabulary of the corpus."""
        self.read_file(FILE)
        if (self.folder / PIECES).exists():
            self.read_file(PIECES)
        return Vocabulary.load(self.folder)

    def read_split(self, split: str) -> Sentences:
        """Read the tokens of each sentence of a split."""
        return [line.split(" ") for line in self.read_sentences(self._file(split))]

    def encode_split(self, split: str, vocabulary: Vocabulary) -> list[list[int]]:
        """Read a split as token ids of a vocabulary, which need not be that of the corpus.

        Raises:
            ValueError: the vocabulary cannot represent a token; the message names the file and the line.
        """
        sentences = []
        for number, sentence in enumerate(self.read_split(split), 1):
            try:
                sentences.append(vocabulary.encode(sentence))
            except ValueError as error:
                raise ValueError(f"{self.folder / self._file(split)}, line {number}: {error}") from None
        return sentences

    def _file(self, split: str) -> str:
        check_split(split)
        return "valid.txt" if self._is_old and split == "validation" else f"{split}.txt"


def write_monolingual(
    folder: Path, splits: Mapping[str, Sentences], vocabulary: Vocabulary, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a new corpus and return its report; the folder appears complete or not at all."""
    with whole_folder(folder) as partial:
        return fill_monolingual(partial, splits, vocabulary, report)


def fill_monolingual(
    folder: Path, splits: Mapping[str, Sentences], vocabulary: Vocabulary, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a corpus to an existing empty folder and return its report."""
    texts, counts = {}, {}
    for split in SPLITS:
        texts[f"{split}.txt"], counts[split] = _replace_unknown(splits[split], vocabulary, split)
    found = {**report, "written": counts, "types": len(vocabulary.types)}
    return MonolingualCorpus.fill(folder, texts, vocabulary, found)


def _replace_unknown(sentences: Sentences, vocabulary: Vocabulary, split: str) -> tuple[list[str], dict[str, int]]:
    if not sentences:
        raise ValueError(f"{split}: expected at least one sentence, found none after preparation")
    lines, tokens, unknown = [], 0, 0
    placeholder = None if vocabulary.unknown == CLASSES else vocabulary.unknown  # the text itself may contain it
    for number, sentence in enumerate(sentences, 1):
        try:
            types = [vocabulary.type_of(token) for token in sentence]
        except ValueError as error:
            raise ValueError(f"{split}, sentence {number}: {error}") from None
        tokens += len(types)
        unknown += sum(a != b or a == placeholder for a, b in zip(types, sentence, strict=True))
        lines.append(" ".join(types))
    return lines, {"sentences": len(sentences), "tokens": tokens, "unknown": unknown}


def divide(sentences: Sentences, shares: Sequence[int]) -> dict[str, Sentences]:
    """Divide sentences, in order, into the splits, in proportion to `shares` such as (80, 10, 10)."""
    if len(shares) != len(SPLITS) or min(shares) < 1:
        raise ValueError(
            f"shares: expected {len(SPLITS)} positive numbers such as 80/10/10, got {'/'.join(map(str, shares))}"
        )
    ends = [sum(shares[: i + 1]) * len(sentences) // sum(shares) for i in range(len(SPLITS))]
    starts = [0, *ends]
    return {split: sentences[starts[i] : ends[i]] for i, split in enumerate(SPLITS)}
