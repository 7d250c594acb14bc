"""Lines of UTF-8 text, one at a time, from files that may be compressed."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Of a text file, or of one that gzip made smaller (`.gz`)."""
    path = Path(path)
    with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
        yield from decode_lines(file, str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """All of its lines, each with a newline behind it."""
    return "".join(f"{line}\n" for line in read_lines(path))


def decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Only a newline ends a line: Unicode has other separators, which may stand inside a sentence."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        what = f"byte {error.object[error.start]:#04x} at column {error.start + 1}"
        raise ValueError(f"{name}, line {number}: not UTF-8: {what}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}, after line {number}: not a gzip file, or a damaged one: {error}") from None
