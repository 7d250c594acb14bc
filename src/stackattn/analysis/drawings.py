"""Everything of a studied run as files for print: figures as SVG and PNG, runs as text."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..files import write_text
from .attention_map import attention_map
from .figures import action_map, height_chart, split_map
from .real_stack import real_columns, real_tops
from .strings import some_runs, with_bos
from .study import StudiedRun
from .traces import NondeterministicTrace, StackTrace, watch_stacks

OURS = re.compile(r"string-\d+-.+-((actions|attention|height|split)\.(svg|png)|runs\.txt)")


def remove_drawings(out: Path) -> None:
    """Take away what was drawn here before: it may be of other strings. Files of other names stay."""
    for path in out.glob("string-*"):
        if OURS.fullmatch(path.name) and path.is_file():
            path.unlink()


def draw_strings(studied: StudiedRun, out: Path, *, seed: int = 0) -> list[Path]:
    """Draw every chosen string, for every stack that was studied."""
    run, made = studied.run, []
    for number, string in enumerate(studied.chosen, 1):
        tokens = ["BOS", *(run.language.symbols[i] for i in string.ids)]
        tops = real_tops(run.language, string.ids.tolist())
        traces = watch_stacks(run.model, with_bos(run.language, torch.from_numpy(string.ids)[None]))
        for trace in (trace for trace in traces if trace.name in studied.stacks):
            name = trace.name.replace(", ", "-").replace(" ", "-").replace("'", "")
            truth = None if tops is None else real_columns(trace, tops)
            made += _draw(trace, tokens[trace.first :], truth, f"{out}/string-{number}-{name}", seed)
    return made


def _draw(trace: StackTrace, tokens: list[str], truth: list[int] | None, base: str, seed: int) -> list[Path]:
    made = []
    actions, tops, heights = trace.actions()[0], trace.tops()[0], trace.heights()[0]
    weights = trace.weights()[0] if isinstance(trace, NondeterministicTrace) else None
    for suffix in ("svg", "png"):
        made += [
            action_map(actions, tokens, trace.ACTIONS, f"{base}-actions.{suffix}"),
            attention_map(tops, tokens, f"{base}-attention.{suffix}", truth=truth, bottom=trace.BOTTOM),
            height_chart(heights, tokens, f"{base}-height.{suffix}"),
        ]
        if weights is not None:
            made.append(split_map(weights, tokens, f"{base}-split.{suffix}"))
    listings = (f"{name}\n{run.listing(tokens)}\n" for name, run in some_runs(trace, seed))
    write_text(Path(f"{base}-runs.txt"), "\n".join(listings))
    return [*made, Path(f"{base}-runs.txt")]
