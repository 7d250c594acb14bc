"""Figures for print (SVG and PNG), and listings, of the strings of a studied run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..files import write_text
from .attention_figure import attention_map
from .figures import action_map, height_chart, save_figure, split_map
from .real_stack import real_columns
from .strings import TracedStack
from .study import StudiedRun

FORMATS = "svg", "png"
DRAWING = re.compile(rf"string-\d+-.+-((actions|attention|height|split)\.({'|'.join(FORMATS)})|runs\.txt)")


def draw_strings(studied: StudiedRun, out: Path) -> list[Path]:
    """Draw every traced stack of every string into the existing folder `out`.

    The files are moved into `out` once all of them exist, so that an error leaves earlier drawings unchanged.

    Returns:
        The files in `out`.
    """
    with TemporaryDirectory(prefix=".drawings-", dir=out) as folder:
        drawn: list[Path] = []
        for number, string in enumerate(studied.strings, 1):
            for stack in string.stacks:
                real = None if string.real is None else real_columns(stack.trace, string.real)
                drawn += _draw(
                    stack,
                    string.tokens[stack.trace.first :],
                    real,
                    f"{folder}/string-{number}-{file_name(stack.trace.name)}",
                )
        for path in drawn:
            os.replace(path, out / path.name)
    return [out / path.name for path in drawn]


def file_name(stack: str) -> str:
    """The name of a stack as part of a file name: `layer-3` for `layer 3`."""
    return stack.replace(", ", "-").replace(" ", "-")


def remove_stale_drawings(out: Path, keep: Iterable[Path]) -> None:
    """Remove drawings of an earlier analysis, which may show other strings. Files with other names are kept."""
    kept = {path.name for path in keep}
    for path in out.glob("string-*"):
        if DRAWING.fullmatch(path.name) and path.name not in kept and path.is_file():
            path.unlink()


def _draw(stack: TracedStack, tokens: list[str], real: list[int] | None, base: str) -> list[Path]:
    trace, split = stack.trace, stack.trace.split_tops()
    figures = {
        "actions": action_map(trace.actions()[0], tokens, trace.ACTIONS),
        "attention": attention_map(trace.tops()[0], tokens, real=real, bottom=trace.BOTTOM[0]),
        "height": height_chart(trace.heights()[0], tokens),
    }
    if split is not None:
        figures["split"] = split_map(split[0], tokens)
    drawn = [path for name, figure in figures.items() for path in save_figure(figure, *_paths(f"{base}-{name}"))]
    listings = (f"{name}\n{run.listing(tokens)}\n" for name, run in stack.runs)
    write_text(Path(f"{base}-runs.txt"), "\n".join(listings))
    return [*drawn, Path(f"{base}-runs.txt")]


def _paths(base: str) -> list[str]:
    return [f"{base}.{suffix}" for suffix in FORMATS]
