"""The paper's Figures 3 and 4: the stack actions of Tf+Sup on one string, from the best of the runs that exist."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..analysis.figures import action_map, save_figure
from ..analysis.strings import PAPER
from ..analysis.traces import SuperpositionTrace, trace_stacks
from ..languages import Language
from ..models.saving import load
from ..training.cfl import CFLConfig, with_bos
from ..training.run import config_of, model_folder
from ..training.sweep import best_of
from .cells import Cell
from .names import LABELS
from .tables import publish

PUSH, NO_OP, POP = range(3)


def show_figure_3(cells: Sequence[Cell], out: Path) -> int:
    """Draw Figure 3: see `show`."""
    return show(cells, out, "figure-3")


def show_figure_4(cells: Sequence[Cell], out: Path) -> int:
    """Draw Figure 4: see `show`."""
    return show(cells, out, "figure-4")


def show(cells: Sequence[Cell], out: Path, name: str) -> int:
    """Draw the actions of the best run as NAME.png and NAME.svg, and write their agreement with the paper as a table.

    Returns:
        An exit code: 1 if no run has been evaluated.
    """
    evaluated = ((cell, found) for cell in cells if (found := best_of(cell.folders)) is not None)
    if (first := next(evaluated, None)) is None:
        print("no run has been evaluated yet", file=sys.stderr)
        return 1
    cell, (folder, best) = first
    language, text = config_of(CFLConfig, folder).language.make(), PAPER[cell.task]
    actions = stack_actions(folder, language, text)  # (n + 1, 3)
    expected = expected_actions(cell.task, text)
    agree = sum(a == b for a, b in zip(actions.argmax(-1)[1:].tolist(), expected, strict=True))
    figure = action_map(actions, ["BOS", *text], SuperpositionTrace.ACTIONS)
    header = ["task", "model", "run", "epoch", "validation", "steps as expected", "steps"]
    row = [cell.task, LABELS[cell.model], folder.name, str(best["epoch"])]
    row += [f"{best['cross_entropy_difference']:.4f}", str(agree), str(len(expected))]
    notes = (
        f"The action with the largest weight at each symbol of {text}. Expected, as in the paper: "
        f"{EXPECTED[cell.task]}. Validation: cross-entropy difference in nats."
    )
    code = publish(name, header, [row], notes, out)
    for path in save_figure(figure, out / f"{name}.png", out / f"{name}.svg"):
        print(f"written to {path}")
    return code


def stack_actions(folder: Path, language: Language, text: str) -> torch.Tensor:
    """Shares (n + 1, 3) of push, no-op and pop at BOS and each symbol of a string, for the best model of a run."""
    ids = torch.from_numpy(language.encode(text))[None]
    (trace,) = trace_stacks(load(model_folder(folder)), with_bos(language, ids))
    return trace.actions()[0]


EXPECTED = {
    "marked-reversal": "push before #, no-op at #, pop after it",
    "dyck": "push opening brackets, pop at closing ones",
}
"""What `expected_actions` returns, in words."""


def expected_actions(task: str, text: str) -> list[int]:
    """The actions that the paper describes for each symbol of a string.

    Example:
        >>> expected_actions("marked-reversal", "01#10"), expected_actions("dyck", "[]")
        ([0, 0, 1, 2, 2], [0, 2])
    """
    if task == "dyck":
        return [PUSH if symbol in "([" else POP for symbol in text]
    mark = text.index("#")
    return [PUSH] * mark + [NO_OP] + [POP] * (len(text) - mark - 1)
