"""Print figures (SVG and PNG) and listings of the strings of a studied run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..files import write_text
from .attention_map import attention_map
from .figures import action_map, height_chart, split_map
from .real_stack import real_columns
from .strings import TracedStack
from .study import StudiedRun

DRAWING = re.compile(r"string-\d+-.+-((actions|attention|height|split)\.(svg|png)|runs\.txt)")


def draw_strings(studied: StudiedRun, out: Path) -> list[Path]:
    """Draw every traced stack of every string into the folder `out`.

    The files are moved into `out` once all of them exist: an error does not change earlier drawings.

    Returns:
        The files in `out`.
    """
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".drawings-", dir=out) as folder:
        drawn: list[Path] = []
        for number, string in enumerate(studied.strings, 1):
            for stack in string.stacks:
                name = stack.trace.name.replace(", ", "-").replace(" ", "-")
                real = None if string.real is None else real_columns(stack.trace, string.real)
                drawn += _draw(stack, string.tokens[stack.trace.first :], real, f"{folder}/string-{number}-{name}")
        for path in drawn:
            os.replace(path, out / path.name)
    return [out / path.name for path in drawn]


def remove_stale_drawings(out: Path, keep: Iterable[Path]) -> None:
    """Remove drawings of an earlier analysis, which may show other strings. Files with other names stay."""
    kept = {path.name for path in keep}
    for path in out.glob("string-*"):
        if DRAWING.fullmatch(path.name) and path.name not in kept and path.is_file():
            path.unlink()


def _draw(stack: TracedStack, tokens: list[str], real: list[int] | None, base: str) -> list[Path]:
    drawn, trace = [], stack.trace
    actions, tops, heights, split = trace.actions()[0], trace.tops()[0], trace.heights()[0], trace.split_tops()
    for suffix in ("svg", "png"):
        drawn += [
            action_map(actions, tokens, trace.ACTIONS, f"{base}-actions.{suffix}"),
            attention_map(tops, tokens, f"{base}-attention.{suffix}", real=real, bottom=trace.BOTTOM),
            height_chart(heights, tokens, f"{base}-height.{suffix}"),
        ]
        if split is not None:
            drawn.append(split_map(split[0], tokens, f"{base}-split.{suffix}"))
    listings = (f"{name}\n{run.listing(tokens)}\n" for name, run in stack.runs)
    write_text(Path(f"{base}-runs.txt"), "\n".join(listings))
    return [*drawn, Path(f"{base}-runs.txt")]
