"""Verification of old corpora, whose report.json does not list a checksum for each file.

Their reports contain one hash of all files: `checksum` in monolingual corpora, `digest` in bitext. Committed runs refer
to these values, so they are the fingerprints of such corpora.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..lines import read_json_object

KEYS = {"monolingual": "checksum", "bitext": "digest"}


def verify_old_corpus(folder: Path, kind: str, report: Mapping[str, Any]) -> None:
    """Compare the files of an old corpus with its report.

    Raises:
        ValueError: a file has changed. The message names the file whose number of lines differs; if all numbers agree,
            it names the folder.
    """
    names = [path.name for path in sorted(folder.iterdir())]
    for split, lines in _expected_lines(kind, report).items():
        for name in (x for x in names if x.startswith(f"{split}.")):
            if (found := (folder / name).read_bytes().count(b"\n")) != lines:
                raise ValueError(
                    f"{folder / name}: number of lines: expected {lines:,}, as report.json states, found {found:,}; "
                    "the file was changed after the corpus was prepared: prepare the corpus again"
                )
    expected = report[KEYS[kind]]
    if (found := _HASHES[kind](folder)) != expected:
        raise ValueError(
            f"{folder}: expected files with the {KEYS[kind]} {expected}, as report.json states, found {found}; a file "
            "was changed after the corpus was prepared: prepare the corpus again"
        )


def _expected_lines(kind: str, report: Mapping[str, Any]) -> dict[str, int]:
    key, count = ("written", "sentences") if kind == "monolingual" else ("pairs", "used")
    try:
        return {split: counts[count] for split, counts in report.get(key, {}).items()}
    except (AttributeError, KeyError, TypeError):
        return {}


def _monolingual_hash(folder: Path) -> str:
    values = read_json_object(folder / "vocabulary.json")
    found = hashlib.sha256(json.dumps([values.get("types"), values.get("unknown")]).encode())
    names = [*(["pieces.model"] if values.get("pieces") else []), "train.txt", "valid.txt", "test.txt"]
    for name in names:
        found.update((folder / name).read_bytes())
    return found.hexdigest()[:16]


def _bitext_hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name != "report.json":
            found.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:32]


_HASHES = {"monolingual": _monolingual_hash, "bitext": _bitext_hash}
