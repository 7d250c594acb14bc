"""The Penn Treebank as Dyer et al. (2016) prepared it: from the `.mrg` files of a licensed copy to sentences.

Their data has two oddities, which are repeated here: in section 24, `wsj_2424` stands in the place of `wsj_2423` too,
and one training sentence, the only one that begins with `#`, is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .corpus import Sentences, share_out
from .trees import read_sentences
from .unknown import PLAIN
from .vocabulary import CLASSES, Vocabulary, count_vocabulary

SECTIONS: dict[str, Sequence[int]] = {"train": range(2, 22), "validation": (24,), "test": (23,)}
LEFT_OUT = 33571  # of the training sentences, counted from 1
MIN_COUNT = 2  # rarer words of the training sentences are unknown
EXPECTED = {
    "training sentences": 39831,
    "training tokens": 950012,
    "types": 23832,
    "classes of unknown words": 66,
    "sentences of section 24": 1346,  # before `wsj_2424` takes the place of `wsj_2423`; how many then, nobody says
    "test sentences": 2416,
}
_NAME = re.compile(r"wsj_(\d\d)\d\d\.mrg", re.IGNORECASE)

Track = Callable[[Sequence[Path]], Iterable[Path]]


def find_files(path: Path) -> list[Path]:
    """A file itself, or all `.mrg` files of a folder and those in it, in the order of their paths."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not (files := sorted(x for x in path.rglob("*") if x.suffix.lower() == ".mrg")):
        raise FileNotFoundError(f"{path}: no .mrg files in it; the parsed part of a Penn Treebank has them (mrg/wsj)")
    return files


def by_section(files: Iterable[Path]) -> dict[int, list[Path]]:
    """The files of each section of the Wall Street Journal part, wherever they lie, in the order of their names."""
    named: dict[str, Path] = {}
    for file in files:
        if _NAME.fullmatch(file.name) and (other := named.setdefault(file.name.lower(), file)) != file:
            raise ValueError(f"{file.name} is there twice: {other} and {file}; name the folder of one copy")
    sections: dict[int, list[Path]] = {}
    for name in sorted(named):
        sections.setdefault(int(name[4:6]), []).append(named[name])
    return sections


def read_sections(path: Path, track: Track = iter, left_out: int = LEFT_OUT) -> tuple[dict[str, Sentences], dict]:
    """Training, validation and test sentences of a whole treebank, and counts of what was read."""
    sections = by_section(find_files(path))
    needed = sorted(number for numbers in SECTIONS.values() for number in numbers)
    if missing := [f"{number:02d}" for number in needed if number not in sections]:
        found = f"sections {', '.join(f'{x:02d}' for x in sections)}" if sections else "no files named wsj_NNNN.mrg"
        raise ValueError(
            f"{path}: has {found}; missing: {', '.join(missing)}. For a part of the treebank, say how to divide it: "
            "--split 80/10/10"
        )
    contents = {file: list(read_sentences(file)) for file in track([x for number in needed for x in sections[number]])}
    empty = _drop_empty(contents)
    counts = {f"{number:02d}": sum(len(contents[file]) for file in sections[number]) for number in needed}
    files = {split: [x for number in numbers for x in sections[number]] for split, numbers in SECTIONS.items()}
    files["validation"] = _with_slip(files["validation"])
    splits = {split: [x for file in group for x in contents[file]] for split, group in files.items()}
    training = splits["train"]
    is_there = len(training) >= left_out and training[left_out - 1][0] == "#"
    if is_there:
        del training[left_out - 1]
    notes = {"trees without words": empty, "training sentence left out": left_out if is_there else None}
    return splits, {**notes, "sentences of sections": counts}


def _with_slip(files: list[Path]) -> list[Path]:
    names = {file.name.lower(): file for file in files}
    if "wsj_2423.mrg" not in names or "wsj_2424.mrg" not in names:
        raise ValueError("section 24: wsj_2423.mrg and wsj_2424.mrg are needed, and one of them is missing")
    return [names["wsj_2424.mrg"] if file.name.lower() == "wsj_2423.mrg" else file for file in files]


def read_part(path: Path, shares: Sequence[int], track: Track = iter) -> tuple[dict[str, Sentences], dict]:
    """Sentences of a part of the treebank, divided in their order."""
    splits = {"all": [sentence for file in track(find_files(path)) for sentence in read_sentences(file)]}
    empty = _drop_empty(splits)
    return share_out(splits["all"], shares), {"trees without words": empty, "shares": list(shares)}


def _drop_empty(parts: dict[Any, Sentences]) -> int:
    before = sum(map(len, parts.values()))
    for part in parts:
        parts[part] = [sentence for sentence in parts[part] if sentence]
    return before - sum(map(len, parts.values()))


def treebank_vocabulary(training: Sentences, whole: bool) -> Vocabulary:
    """Of a part of the treebank, UNK is always a type: it stands for classes that training does not have."""
    return count_vocabulary(training, MIN_COUNT, CLASSES, extra=() if whole else (PLAIN,))


def compare(report: Mapping[str, Any], vocabulary: Vocabulary) -> list[tuple[str, int, int]]:
    """What was expected of the whole treebank and what was found; `report` is what `write_corpus` gives."""
    written = report["written"]
    found = {
        "training sentences": written["train"]["sentences"],
        "training tokens": written["train"]["tokens"],
        "types": len(vocabulary.types),
        "classes of unknown words": sum(x == PLAIN or x.startswith(f"{PLAIN}-") for x in vocabulary.types),
        "sentences of section 24": report["sentences of sections"]["24"],
        "test sentences": written["test"]["sentences"],
    }
    return [(what, number, found[what]) for what, number in EXPECTED.items()]
