"""A prepared corpus is a folder:

train.txt, validation.txt, test.txt   one sentence per line, tokens separated by single spaces, unknown words replaced
vocabulary.json                  the types, and what stands for unknown words (with pieces.model for SentencePiece)
report.json                      where it came from, counts, what was dropped, and a checksum of all of it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import whole_folder, write_json, write_text
from .vocabulary import CLASSES, Vocabulary

SPLITS = ("train", "validation", "test")
REPORT = "report.json"
Sentences = list[list[str]]


def write_corpus(
    folder: Path, splits: Mapping[str, Sentences], vocabulary: Vocabulary, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the folder, which appears whole or not at all. Returns the report with counts of what was written."""
    checksum = hashlib.sha256(json.dumps([vocabulary.types, vocabulary.unknown]).encode())
    checksum.update(vocabulary.pieces or b"")
    counts: dict[str, dict[str, int]] = {}
    with whole_folder(folder) as partial:
        vocabulary.save(partial)
        for split in SPLITS:
            text, counts[split] = _replace_unknown(splits[split], vocabulary, split)
            checksum.update(text.encode())
            write_text(partial / f"{split}.txt", text)
        types, digest = len(vocabulary.types), checksum.hexdigest()[:16]
        found = {**report, "types": types, "written": counts, "checksum": digest}
        write_json(partial / REPORT, found)
    return found


def _replace_unknown(sentences: Sentences, vocabulary: Vocabulary, split: str) -> tuple[str, dict[str, int]]:
    if not sentences:
        raise ValueError(f"{split}: no sentences are left")
    lines, tokens, unknown = [], 0, 0
    given = None if vocabulary.unknown == CLASSES else vocabulary.unknown  # which the text itself may have
    for number, sentence in enumerate(sentences, 1):
        try:
            types = [vocabulary.type_of(token) for token in sentence]
        except ValueError as error:
            raise ValueError(f"{split}, sentence {number}: {error}") from None
        tokens += len(types)
        unknown += sum(a != b or a == given for a, b in zip(types, sentence, strict=True))
        lines.append(" ".join(types) + "\n")
    return "".join(lines), {"sentences": len(sentences), "tokens": tokens, "unknown": unknown}


def read_split(folder: str | Path, split: str, vocabulary: Vocabulary) -> list[list[int]]:
    """The sentences of a split as numbers."""
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    path = Path(folder) / f"{split}.txt"
    if split == "validation" and not path.exists():
        path = path.with_name("valid.txt")  # the name in corpora prepared before
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there; `stackattn lm prepare` or `prepare-ptb` makes it")
    sentences = []
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                sentences.append(vocabulary.encode(line.rstrip("\n").split(" ")))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not sentences:
        raise ValueError(f"{path}: no sentences")
    return sentences


def corpus_fingerprint(folder: str | Path) -> str:
    """By which a corpus is known, wherever it is."""
    path = Path(folder) / REPORT
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there; `stackattn lm prepare` or `prepare-ptb` makes it")
    try:
        return json.loads(path.read_text(encoding="utf-8"))["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the report of `stackattn lm prepare`: {error!r}") from None


def share_out(sentences: Sentences, shares: Sequence[int]) -> dict[str, Sentences]:
    """Divide sentences, in their order, into splits of so many parts each."""
    if len(shares) != len(SPLITS) or min(shares) < 1:
        raise ValueError(f"expected {len(SPLITS)} positive shares such as 80/10/10, got {'/'.join(map(str, shares))}")
    ends = [sum(shares[: i + 1]) * len(sentences) // sum(shares) for i in range(len(SPLITS))]
    starts = [0, *ends]
    return {split: sentences[starts[i] : ends[i]] for i, split in enumerate(SPLITS)}
