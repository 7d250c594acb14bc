"""Figures of one string for print: in shades of grey, no wider than the text of a page, with readable labels."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..extras import import_extra
from ..files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 5.5  # inches: the text width of a page, so that figures are not scaled down in print
PAD = 0.06  # inches of white space around a figure
INNER = WIDTH - 2 * PAD - 0.02  # inches available for drawing, with some room for rounding
SMALLEST = 6.0  # points: the smallest font
DPI = 200


def import_matplotlib() -> Any:
    """Import and return matplotlib; if it is missing, the ModuleNotFoundError says how to install it."""
    return import_extra("matplotlib", "plot", "drawing figures")


def new_figure(width: float, height: float) -> Figure:
    """Create an empty matplotlib figure, with sizes in inches. No display is needed, because pyplot is not used.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; the message says how to install it.
    """
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, *paths: str | Path) -> list[Path]:
    """Lay out a figure once and write it to each path atomically. Equal figures give equal bytes.

    Args:
        figure: a figure made by `new_figure`.
        paths: files to write; the suffix selects the format. Their folders are created if necessary.

    Returns:
        The paths.
    """
    from matplotlib import rc_context

    figure.set_dpi(DPI)
    figure.draw_without_rendering()  # runs the layout engine, which would otherwise run for each format
    figure.set_layout_engine("none")
    saved = [Path(path) for path in paths]
    for path in saved:
        format = path.suffix.removeprefix(".") or "png"
        metadata = {"Date": None} if format in ("svg", "pdf", "ps") else None
        content = io.BytesIO()  # for some formats, matplotlib hides the reason why a file cannot be written
        with rc_context({"svg.hashsalt": "stackattn"}):
            figure.savefig(content, format=format, dpi=DPI, bbox_inches="tight", pad_inches=PAD, metadata=metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.getvalue())
    return saved


def labels_apart(room: float, font: float, labels: Sequence[str]) -> int:
    """Return the smallest n such that the labels of every n-th position do not overlap.

    Args:
        room: distance between positions, in points.
        font: font size, in points.
        labels: all labels. BOS is ignored: it comes first and may extend to the left.
    """
    letters = max((len(label) for label in labels if label != "BOS"), default=1)
    return math.ceil(max(1.3, 0.65 * letters) * font / room)


def action_map(actions: Tensor, tokens: Sequence[str], names: Sequence[str], title: str = "") -> Figure:
    """Draw the actions of each step, as in the paper's Appendix E.

    Args:
        actions: (T, 3)
            Share of each step by kind of action: `StackTrace.actions`.
        tokens: the T tokens, one beside each row (the paper puts them on the lines between rows).
        names: names of the three kinds of action.
        title: title of the figure (default: none).

    Raises:
        ValueError: the shape of `actions` does not match the numbers of tokens and names.
    """
    if actions.shape != (len(tokens), len(names)):
        expected = len(tokens), len(names)
        raise ValueError(f"actions: expected shape {expected} for these tokens and names, got {tuple(actions.shape)}")
    row = max(0.1, min(0.2, 7.4 / len(tokens)))  # inches
    figure = new_figure(1.95, row * len(tokens) + 0.75)
    axes = figure.add_subplot()
    image = axes.imshow(actions.double().numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(tokens)), tokens, fontsize=min(8.0, 62 * row), family="monospace", parse_math=False)
    axes.set_xlabel("Action", fontsize=9)
    axes.set_ylabel("← Symbol", fontsize=9)
    axes.tick_params(length=0)
    _lines_between(axes, len(tokens), len(names))
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2.2 / (row * len(tokens))), aspect=16)
    bar.set_label("Probability", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def height_chart(heights: Tensor, tokens: Sequence[str], title: str = "") -> Figure:
    """Draw the expected heights (T,) of a stack, one after each of the T tokens.

    Raises:
        ValueError: the shape of `heights` does not match the number of tokens.
    """
    if heights.shape != (len(tokens),):
        raise ValueError(f"heights: expected shape ({len(tokens)},), got {tuple(heights.shape)}")
    width = max(3.0, min(INNER, 0.16 * len(tokens) + 0.8))
    figure = new_figure(width, 1.8)
    axes = figure.add_subplot()
    axes.step(range(len(tokens)), heights.tolist(), where="mid", color="black", linewidth=1.1)
    axes.fill_between(range(len(tokens)), heights.tolist(), step="mid", color="0.88")
    room = 72 * (width - 0.8) / len(tokens)  # points
    size = max(SMALLEST, min(8.0, room / 1.3))
    names = ["^" if token == "BOS" else token for token in tokens]
    every = labels_apart(room, size, names)
    axes.set_xticks(range(0, len(tokens), every), names[::every], family="monospace", parse_math=False)
    axes.tick_params(axis="x", labelsize=size, length=2 if every > 1 else 0)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.set_xlabel("symbol read" + (" (^ is BOS)" if "BOS" in tokens else ""), fontsize=9)
    axes.set_ylabel("expected height", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def split_map(weights: Tensor, tokens: Sequence[str], title: str = "") -> Figure:
    """Draw the weights (T, T + 1, Q, S) of a nondeterministic stack, one map per state and symbol.

    Raises:
        ValueError: the shape of `weights` does not match the number of tokens.
    """
    T = len(tokens)
    if weights.dim() != 4 or weights.shape[:2] != (T, T + 1):
        raise ValueError(f"weights: expected shape ({T}, {T + 1}, Q, S), got {tuple(weights.shape)}")
    Q, S = weights.shape[2:]
    side = min(1.75, (INNER - 0.8) / S)  # inches
    figure = new_figure(side * S + 0.8, side * Q + 0.4)
    from matplotlib.colors import PowerNorm

    axes = figure.subplots(Q, S, squeeze=False, sharex=True, sharey=True)
    image: Any = None
    places = -1.5, T - 0.5, T - 0.5, -0.5  # the bottom is at -1, every other column at the step that pushed it
    for q in range(Q):
        for s in range(S):
            part = weights[:, :, q, s].double().numpy()
            norm = PowerNorm(0.5, 0.0, 1.0)
            image = axes[q][s].imshow(part, cmap="Greys", norm=norm, interpolation="nearest", extent=places)
            axes[q][s].tick_params(labelsize=7, length=2)
            if q == 0:
                axes[q][s].set_title(f"symbol {s}", fontsize=8)
        axes[q][0].set_ylabel(f"state {q}\nstep", fontsize=8)
    figure.supxlabel("pushed at step", fontsize=8)
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.1, 0.25, 0.5, 1], format="%g", shrink=0.6, aspect=24)
    bar.set_label("weight", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def _lines_between(axes: Any, rows: int, columns: int) -> None:
    axes.set_xticks([x - 0.5 for x in range(1, columns)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, rows)], minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
