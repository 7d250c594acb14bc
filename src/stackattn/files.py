"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make the file under another name, see it safely on the disk, and only then give it its name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    try:
        write(partial)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        _flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def check_new(folder: Path) -> None:
    """Before anything slow is done: whether the folder can be made."""
    if folder.exists():
        raise FileExistsError(f"{folder}: already there; choose another folder, or remove it")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder under another name, which gets its own one when all that belongs into it is there."""
    check_new(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of somebody who was killed
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(folder)) from None
    try:
        yield partial
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Take away what `write_atomically` left behind when it was killed."""
    for partial in folder.rglob(".*.partial"):
        partial.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """The new name, too, survives a power cut; Windows has no such thing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", newline="\n")

    write_atomically(path, write)


def write_bytes(path: Path, content: bytes) -> None:
    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, values: Any) -> None:
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
