"""A corpus made ready for translation, as a folder.

    train.source, train.target       sentences that passed the filters, one to a line; so for validation and test
    pieces.model, pieces.json        the tokenizer learned from the training sentences
    report.json                      settings, what each filter left out, and the corpus's digest

The folder appears when all of it is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..files import whole_folder, write_json, write_text
from .bitext import Filters, Pair, select
from .pieces import PieceTokenizer, learn_pieces

SPLITS = ("train", "validation", "test")
SIDES = ("source", "target")
REPORT = "report.json"

Watch = Callable[[str], Callable[[Iterable[Pair]], Iterable[Pair]]]


@dataclass(frozen=True)
class Preparation:
    """How a corpus is made ready. The defaults are the paper's."""

    max_characters: int = 150
    max_ratio: float = 4.0
    """Of the sides of a training pair."""
    sample: int | None = 100_000
    """Training pairs to draw at random; None: all that there are."""
    seed: int = 123
    pieces: int = 32_000
    threshold: int = 50
    """See `learn_pieces`."""


def prepare(
    files: Mapping[str, tuple[Path, Path]],
    folder: str | Path,
    settings: Preparation | None = None,
    watch: Watch = lambda split: lambda pairs: pairs,
    say: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Make a corpus ready, in a new folder; returns its report.

    `files` are the source and the target file of `train`, `validation` and, if there is one, `test`. `watch` sees the
    pairs of each split go by, and `say` is told what else is being done.
    """
    settings, folder = settings or Preparation(), Path(folder)
    filters = Filters(settings.max_characters, settings.max_ratio)
    with whole_folder(folder) as partial:
        return _prepare(files, partial, settings, filters, watch, say)


def _prepare(
    files: Mapping[str, tuple[Path, Path]],
    folder: Path,
    settings: Preparation,
    filters: Filters,
    watch: Watch,
    say: Callable[[str], None],
) -> dict[str, Any]:
    report: dict[str, Any] = {"settings": asdict(settings), "files": {}, "pairs": {}}
    texts: dict[str, tuple[list[str], list[str]]] = {}
    for split, paths in files.items():
        training = split == "train"
        chosen = select(
            *paths,
            filters if training else replace(filters, max_ratio=None),
            settings.sample if training else None,
            settings.seed,
            watch(split),
        )
        report["files"][split] = [path.name for path in paths]
        report["pairs"][split] = chosen.report()
        texts[split] = [pair[0] for pair in chosen.pairs], [pair[1] for pair in chosen.pairs]
        for side, sentences in zip(SIDES, texts[split], strict=True):
            write_text(folder / f"{split}.{side}", "".join(f"{sentence}\n" for sentence in sentences))
    say("learning the pieces")
    source, target = texts["train"]
    tokenizer = learn_pieces(source, target, settings.pieces, settings.threshold)
    tokenizer.save(folder)
    say("counting tokens")
    shared = len(set(tokenizer.source) & set(tokenizer.target))
    report["pieces"] = {"source": len(tokenizer.source), "target": len(tokenizer.target), "both": shared}
    report["tokens"] = {split: _tokens(tokenizer, sides) for split, sides in texts.items()}
    report["digest"] = _digest(folder)
    write_json(folder / REPORT, report)
    return report


def _tokens(tokenizer: PieceTokenizer, sides: tuple[list[str], list[str]]) -> dict[str, int]:
    """How many tokens each side has, and how many of them are unknown."""
    counts = {}
    encoders = tokenizer.encode_source, tokenizer.encode_target
    for side, encode, sentences in zip(SIDES, encoders, sides, strict=True):
        tokens = np.concatenate(encode(sentences))
        counts[side] = len(tokens)
        counts[f"{side}_unknown"] = int((tokens == tokenizer.unknown).sum())
    return counts


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def corpus_fingerprint(folder: str | Path) -> str:
    """By which a corpus is known, wherever it is."""
    path = Path(folder) / REPORT
    try:
        return json.loads(path.read_text(encoding="utf-8"))["digest"]
    except FileNotFoundError:
        raise ValueError(f"{path}: not there; a corpus is a folder made by `stackattn mt prepare`") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the report of `stackattn mt prepare`: {error!r}") from None


def read_split(folder: str | Path, split: str) -> tuple[list[str], list[str]]:
    """Source and target sentences of a prepared corpus."""
    paths = [Path(folder) / f"{split}.{side}" for side in SIDES]
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path}: not there; was the corpus prepared with a {split} set?")
    source, target = (path.read_bytes().decode().split("\n")[:-1] for path in paths)  # a \r may be in a sentence
    return source, target
