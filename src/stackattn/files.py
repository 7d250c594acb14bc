"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make the file under another name, see it safely on the disk, and only then give it its name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", newline="\n")

    write_atomically(path, write)


def write_json(path: Path, values: Any) -> None:
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
