"""Reading UTF-8 text and JSON. Errors name the file and, where possible, the line."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from .files import check_crc


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their line endings.

    Args:
        path: a text file, compressed with gzip if its name ends in `.gz`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the text is not UTF-8, or the compressed file is damaged; the message names the file and the line.

    Example::

        words = [line.split() for line in read_lines("train.txt.gz")]
    """
    path = Path(path)
    with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
        yield from decode_lines(file, str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the lines of a file (see `read_lines`) as one string; each line ends with a newline."""
    return "".join(f"{line}\n" for line in read_lines(path))


def decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines of UTF-8; `name` identifies their source in error messages.

    Only a newline ends a line: other Unicode separators may be part of a sentence. A byte order mark at the beginning
    of the file and a carriage return at the end of a line are removed.
    """
    number = 0
    try:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}: {_bad_byte(error)}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}, after line {number}: not a gzip file, or damaged: {error}") from None


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8 text without changing it; raise a ValueError that names the line of the first invalid byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        line_start = data.rfind(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {number}: {_bad_byte(error, line_start)}") from None


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in a file, without its CRC.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a JSON object, or does not match its CRC; the message names the file and, where possible,
            the line.
    """
    text = decode_text(Path(path).read_bytes(), str(path))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number has too many digits, or the nesting is too deep
        raise ValueError(f"{path}: cannot read this JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return check_crc(values, str(path))


def _bad_byte(error: UnicodeDecodeError, line_start: int = 0) -> str:
    return f"not UTF-8: byte {error.object[error.start]:#04x} at column {error.start - line_start + 1}"
