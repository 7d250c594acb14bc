"""The Penn Treebank as prepared by Dyer et al. (2016), from the `.mrg` files of a licensed copy.

Two peculiarities of their data are reproduced: in section 24, a second copy of `wsj_2424` replaces `wsj_2423`, and one
training sentence, the only one that starts with `#`, is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import check_new, whole_folder
from .corpus import Track, no_progress
from .monolingual_corpus import Sentences, divide, fill_monolingual
from .trees import read_sentences
from .unknown import PLAIN
from .vocabulary import CLASSES, Vocabulary, count_vocabulary

SECTIONS: dict[str, Sequence[int]] = {"train": range(2, 22), "validation": (24,), "test": (23,)}
LEFT_OUT = 33571  # number of the missing training sentence, counted from 1
MIN_COUNT = 2  # words that occur less often in the training sentences are unknown
EXPECTED = {
    "training sentences": 39831,
    "training tokens": 950012,
    "types": 23832,
    "classes of unknown words": 66,
    "sentences of section 24": 1346,  # before the replacement of `wsj_2423`; no source gives the number after it
    "test sentences": 2416,
}
_NAME = re.compile(r"wsj_(\d\d)\d\d\.mrg", re.IGNORECASE)


def prepare_treebank(
    path: Path, folder: Path, shares: Sequence[int] | None = None, track: Track = no_progress
) -> tuple[dict[str, Any], Vocabulary]:
    """Write a new corpus from treebank files.

    Args:
        path: folder that contains `wsj_NNNN.mrg` files at any depth, or one file.
        folder: folder of the corpus; must not exist. It appears complete or not at all.
        shares: for a part of the treebank, the proportions of the splits, such as (80, 10, 10); None: use the standard
            sections of the whole treebank.
        track: wraps the files to show progress.

    Returns:
        The report of the corpus and its vocabulary.

    Raises:
        FileExistsError: the folder exists.
        FileNotFoundError: `path` does not exist or contains no `.mrg` files.
        ValueError: `shares` is invalid, a section is missing, a file occurs twice, or a tree is invalid; for a tree,
            the message names the file and the line.
    """
    check_new(folder)
    if shares is None and path.is_file():
        raise ValueError(
            f"{path}: expected a folder with sections, got a file; divide its sentences with --split 80/10/10"
        )
    with whole_folder(folder) as partial:
        splits, notes = read_sections(path, track) if shares is None else read_part(path, shares, track)
        vocabulary = treebank_vocabulary(splits["train"], whole=shares is None)
        report = {"options": {"shares": None if shares is None else list(shares)}, "sources": "Penn Treebank", **notes}
        return fill_monolingual(partial, splits, vocabulary, report), vocabulary


def find_files(path: Path) -> list[Path]:
    """Return a file itself, or all `.mrg` files below a folder, sorted by path."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not (files := sorted(x for x in path.rglob("*") if x.suffix.lower() == ".mrg")):
        raise FileNotFoundError(f"{path}: expected the parsed part of the Penn Treebank (mrg/wsj), found no .mrg files")
    return files


def by_section(files: Iterable[Path]) -> dict[int, list[Path]]:
    """Group the files of the Wall Street Journal part by section, sorted by name, regardless of their folders."""
    named: dict[str, Path] = {}
    for file in files:
        if _NAME.fullmatch(file.name) and (other := named.setdefault(file.name.lower(), file)) != file:
            raise ValueError(f"expected one file {file.name}, found {other} and {file}; pass the folder of one copy")
    sections: dict[int, list[Path]] = {}
    for name in sorted(named):
        sections.setdefault(int(name[4:6]), []).append(named[name])
    return sections


def read_sections(
    path: Path, track: Track = no_progress, left_out: int = LEFT_OUT
) -> tuple[dict[str, Sentences], dict[str, Any]]:
    """Return the training, validation and test sentences of a whole treebank, and counts for the report.

    The training sentence with the number `left_out` is dropped if it starts with `#`.
    """
    sections = by_section(find_files(path))
    needed = sorted(number for numbers in SECTIONS.values() for number in numbers)
    if missing := [f"{number:02d}" for number in needed if number not in sections]:
        found = f"sections {', '.join(f'{x:02d}' for x in sections)}" if sections else "no files named wsj_NNNN.mrg"
        raise ValueError(
            f"{path}: expected sections 02 to 21, 23 and 24, found {found}; missing: {', '.join(missing)}. "
            "Divide a part of the treebank with --split 80/10/10"
        )
    selected = [x for number in needed for x in sections[number]]
    contents = {file: list(read_sentences(file)) for file in track(selected, "reading trees")}
    empty = _drop_empty(contents)
    counts = {f"{number:02d}": sum(len(contents[file]) for file in sections[number]) for number in needed}
    files = {split: [x for number in numbers for x in sections[number]] for split, numbers in SECTIONS.items()}
    files["validation"] = _replace_2423(files["validation"])
    splits = {split: [x for file in group for x in contents[file]] for split, group in files.items()}
    training = splits["train"]
    is_present = len(training) >= left_out and training[left_out - 1][0] == "#"
    if is_present:
        del training[left_out - 1]
    notes = {"trees without words": empty, "training sentence left out": left_out if is_present else None}
    return splits, {**notes, "sentences of sections": counts}


def _replace_2423(files: list[Path]) -> list[Path]:
    names = {file.name.lower(): file for file in files}
    if missing := [name for name in ("wsj_2423.mrg", "wsj_2424.mrg") if name not in names]:
        raise ValueError(f"section 24: expected the files wsj_2423.mrg and wsj_2424.mrg, found no {missing[0]}")
    return [names["wsj_2424.mrg"] if file.name.lower() == "wsj_2423.mrg" else file for file in files]


def read_part(
    path: Path, shares: Sequence[int], track: Track = no_progress
) -> tuple[dict[str, Sentences], dict[str, Any]]:
    """Return the sentences of a part of the treebank, divided in order, and counts for the report."""
    files = track(find_files(path), "reading trees")
    parts = {"all": [sentence for file in files for sentence in read_sentences(file)]}
    empty = _drop_empty(parts)
    return divide(parts["all"], shares), {"trees without words": empty}


def _drop_empty(parts: dict[Any, Sentences]) -> int:
    before = sum(map(len, parts.values()))
    for part in parts:
        parts[part] = [sentence for sentence in parts[part] if sentence]
    return before - sum(map(len, parts.values()))


def treebank_vocabulary(training: Sentences, whole: bool) -> Vocabulary:
    """Return the vocabulary of training sentences.

    For a part of the treebank (`whole` is false), UNK is always a type: it replaces words whose class does not occur in
    the training sentences.
    """
    return count_vocabulary(training, MIN_COUNT, CLASSES, extra=() if whole else (PLAIN,))


def compare(report: Mapping[str, Any], vocabulary: Vocabulary) -> list[tuple[str, int, int]]:
    """Return the name, the expected value and the value of the corpus for each entry of `EXPECTED`."""
    written = report["written"]
    found = {
        "training sentences": written["train"]["sentences"],
        "training tokens": written["train"]["tokens"],
        "types": len(vocabulary.types),
        "classes of unknown words": sum(x == PLAIN or x.startswith(f"{PLAIN}-") for x in vocabulary.types),
        "sentences of section 24": report["sentences of sections"]["24"],
        "test sentences": written["test"]["sentences"],
    }
    return [(name, number, found[name]) for name, number in EXPECTED.items()]
