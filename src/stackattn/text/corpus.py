"""Prepared corpora: the base class of monolingual corpora and bitext.

A corpus is a folder with one text file per split (two in bitext), the files of the tokenizer, and report.json:

    kind                 monolingual or bitext
    options, sources     options of the preparation, and names of the raw files (or `Penn Treebank`)
    read, written        counts for each split, before (not for the Penn Treebank) and after preparation
    types                number of types (in bitext, several numbers)
    files                lines, bytes and checksum of every other file of the folder
    fingerprint          hash of the names and checksums of all these files

The fingerprint does not depend on the path of the folder. Every file is compared with its checksum when it is read.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ..files import write_json, write_text
from ..lines import decode_text, read_json_object
from .old_fingerprints import KEYS as OLD_KEYS
from .old_fingerprints import verify_old_corpus

SPLITS = ("train", "validation", "test")
REPORT = "report.json"
COMMANDS = {
    "monolingual": "`stackattn lm prepare` or `stackattn lm prepare-ptb`",
    "bitext": "`stackattn mt prepare`",
}
"""The commands that prepare each kind of corpus."""

Track: TypeAlias = Callable[[Iterable[Any], str], Iterable[Any]]
"""Wraps an iterable to show progress; the second argument describes the work."""


def no_progress(items: Iterable[Any], description: str) -> Iterable[Any]:
    """The default `Track`: shows nothing."""
    return items


class Tokenizer(ABC):
    """The token ids and sizes that models need: a model predicts the ids from 0 to EOS; BOS and PAD are the last ids.

    A subclass defines the ids `eos` and `bos`.
    """

    eos: int
    bos: int

    @property
    def pad(self) -> int:
        """The id of PAD."""
        return self.bos + 1

    @property
    def input_size(self) -> int:
        """Number of different tokens that a model can read."""
        return self.pad + 1

    @property
    def output_size(self) -> int:
        """Number of different tokens that a model can predict."""
        return self.eos + 1

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the tokenizer to a folder, which is created if necessary."""


class Corpus(ABC):
    """A prepared corpus, opened from its folder.

    The constructor reads only report.json; every other file is compared with its checksum when it is read.

    Args:
        folder: a folder made by `stackattn lm prepare`, `stackattn lm prepare-ptb` or `stackattn mt prepare`.

    Raises:
        ValueError: the folder contains no corpus or one of another kind, or its report is invalid.
    """

    kind: ClassVar[str]
    """`monolingual` or `bitext`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.report = _read_report(self.folder, self.kind)
        self._is_old = "fingerprint" not in self.report
        self._is_verified = False

    @property
    def fingerprint(self) -> str:
        """Path-independent hash of the content: the text, which split each line belongs to, and the tokenizer."""
        return self.report[OLD_KEYS[self.kind] if self._is_old else "fingerprint"]

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the corpus."""

    @abstractmethod
    def read_split(self, split: str) -> Any:
        """Read one of `SPLITS` and verify its content."""

    def check_fingerprint(self, expected: str | None) -> None:
        """Raise ValueError unless the corpus has the expected fingerprint; None accepts any corpus."""
        if expected not in (None, self.fingerprint):
            raise ValueError(
                f"{self.folder} contains another corpus: expected the fingerprint {expected}, found {self.fingerprint}"
            )

    def read_file(self, name: str) -> bytes:
        """Read a file of the corpus and compare it with the report.

        Raises:
            ValueError: the file is missing, or its content has changed since the preparation.
        """
        if self._is_old and not self._is_verified:
            verify_old_corpus(self.folder, self.kind, self.report)
            self._is_verified = True
        path = self.folder / name
        if not path.exists():
            raise ValueError(f"{path}: no such file; prepare the corpus again with {COMMANDS[self.kind]}")
        data = path.read_bytes()
        if not self._is_old:
            self._verify(path, data)
        return data

    def _verify(self, path: Path, data: bytes) -> None:
        files = self.report["files"]
        if path.name not in files:
            raise ValueError(f"{path}: expected a file listed in {REPORT}; prepare the corpus again")
        expected, found = files[path.name], describe(data)
        if expected != found:
            summary = "line count {lines:,}, byte count {bytes:,} and checksum {checksum:.12}"
            raise ValueError(
                f"{path}: expected {summary.format(**expected)}, as {REPORT} states, found {summary.format(**found)}; "
                "the file was changed after the corpus was prepared: prepare the corpus again"
            )

    def read_sentences(self, name: str) -> list[str]:
        """Read and verify a file with one sentence per line."""
        text = decode_text(self.read_file(name), str(self.folder / name))
        if not text:
            raise ValueError(f"{self.folder / name}: expected at least one sentence, found an empty file")
        return text.removesuffix("\n").split("\n")  # only a newline ends a line

    @classmethod
    def fill(
        cls, folder: Path, texts: Mapping[str, Iterable[str]], tokenizer: Tokenizer, report: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write a corpus to an empty folder, such as that of `files.whole_folder`.

        Args:
            folder: the folder.
            texts: the lines of each text file, by file name.
            tokenizer: the tokenizer of the corpus.
            report: the content of report.json; `kind`, `files` and `fingerprint` are added.

        Returns:
            The complete report.
        """
        for name, lines in texts.items():
            write_text(folder / name, "".join(f"{line}\n" for line in lines))
        tokenizer.save(folder)
        files = {path.name: describe(path.read_bytes()) for path in sorted(folder.iterdir())}
        found = {"kind": cls.kind, **report, "files": files, "fingerprint": _fingerprint(files)}
        write_json(folder / REPORT, found)
        return found


def check_split(split: str) -> None:
    """Raise ValueError unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")


def describe(data: bytes) -> dict[str, Any]:
    """Return the entry of report.json for a file with this content."""
    return {"lines": data.count(b"\n"), "bytes": len(data), "checksum": hashlib.sha256(data).hexdigest()}


def _fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Hash the names and contents of files; the name determines the split that the lines belong to."""
    entries = "".join(f"{name}\0{files[name]['checksum']}\n" for name in sorted(files))
    return hashlib.sha256(entries.encode()).hexdigest()[:32]


def _read_report(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / REPORT
    expected = f"expected a {kind} corpus made by {COMMANDS[kind]}"
    if not folder.exists():
        raise ValueError(f"{folder}: no such folder; {expected}")
    if not path.exists():
        raise ValueError(f"{path}: no such file; {expected}, found {_describe_folder(folder)}")
    report = read_json_object(path)
    old = [name for name, key in OLD_KEYS.items() if isinstance(report.get(key), str)]
    found = report.get("kind", old[0] if old else None)
    if found not in OLD_KEYS:
        raise ValueError(f"{path}: {expected}, found a report without a known kind")
    if found != kind:
        raise ValueError(f"{folder}: {expected}, found a {found} corpus made by {COMMANDS[found]}")
    if "fingerprint" in report or not old:
        _check_files(path, report)
    return report


def _check_files(path: Path, report: Mapping[str, Any]) -> None:
    """Raise ValueError unless the list of files is valid and its fingerprint is that of the report."""
    files, types = report.get("files"), {"lines": int, "bytes": int, "checksum": str}
    if not isinstance(files, dict) or not all(
        isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} == types
        for entry in files.values()
    ):
        raise ValueError(
            f"{path}: files: expected lines, bytes and checksum of each file, got {files!r:.80}; "
            "prepare the corpus again"
        )
    if report.get("fingerprint") != (found := _fingerprint(files)):
        raise ValueError(
            f"{path}: expected the fingerprint of the listed files, {found}, found {report.get('fingerprint')!r}; "
            "prepare the corpus again"
        )


def _describe_folder(folder: Path) -> str:
    """Describe the content of a folder without report.json, for an error message."""
    if not folder.is_dir():
        return "a file"
    for name, description in (
        ("metrics.jsonl", "a training run"),
        ("model.safetensors", "a saved model"),
        ("train.json", "strings made by `stackattn language write`"),
    ):
        if (folder / name).exists():
            return description
    return "other files" if any(folder.iterdir()) else "an empty folder"
