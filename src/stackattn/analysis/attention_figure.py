"""The attention map of a stack: which pushed token is on top after each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from .figures import INNER, SMALLEST, labels_apart, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_map(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    real: Sequence[int] | None = None,
    title: str = "",
    bottom: str = "⊥",
) -> Figure:
    """Draw attention weights as a grid of grey cells.

    The figure fits the text width of a page: a long sequence has smaller cells. Every token is labelled if there is
    room; column labels are vertical if horizontal ones would overlap.

    Args:
        weights: (T, T) or (T, T + 1)
            Weights of one sequence, summed over states and symbols; with T + 1 columns, the first one is the bottom.
        tokens: the T tokens, one per step.
        real: for each step, the column of the element that should be on top; it is marked with a small ring.
        title: title of the figure (default: none).
        bottom: symbol of the bottom column; use `"∅"` for the empty share of a superposition or stratified stack.

    Returns:
        A matplotlib figure; `save_figure` writes it to files.

    Raises:
        ValueError: the shape of `weights` does not match the number of tokens.
        ModuleNotFoundError: matplotlib is not installed.

    Examples::

        (trace,) = trace_stacks(model, tokens)
        figure = attention_map(trace.tops()[0], names, bottom=trace.BOTTOM[0])
        save_figure(figure, "map.svg", "map.png")
    """
    T = len(tokens)
    if weights.shape not in ((T, T), (T, T + 1)):
        raise ValueError(
            f"weights: expected shape ({T}, {T}) or ({T}, {T + 1}) for {T} tokens, got {tuple(weights.shape)}"
        )
    with_bottom = weights.shape[1] > T
    what = "the empty stack" if bottom == "∅" else "the bottom"
    rows = [f"{t:>2} {token}" for t, token in enumerate(tokens)]
    width = T + with_bottom
    margin = 0.42 + 0.65 * SMALLEST * max((len(row) for row in rows), default=0) / 72  # inches, for the labels of rows
    cell = min(0.29, (INNER - margin) / max(1, width))
    font = max(SMALLEST, 38 * cell)
    vertical = labels_apart(72 * cell, font, [*tokens, str(T - 1)]) > 1
    every = math.ceil(1.2 * font / (72 * cell))  # rows and vertical labels need the height of a line
    if vertical:
        columns = [bottom, *(f"{token} {i}" for i, token in enumerate(tokens))][not with_bottom :]
    else:
        columns = [f"{bottom}\n", *(f"{token}\n{i}" for i, token in enumerate(tokens))][not with_bottom :]
    figure = new_figure(max(2.2, cell * width + margin), cell * T + (1.7 if title else 1.4))
    from matplotlib.colors import PowerNorm

    axes = figure.add_subplot()
    # The square root makes small weights visible; the colour bar shows the scale.
    image = axes.imshow(weights.detach().double().cpu().numpy(), cmap="Greys", norm=PowerNorm(0.5, 0.0, 1.0))
    shown = range(0, T, every)
    # If only some tokens are labelled, token 0 is not: its label would overlap that of the bottom.
    places = [i + with_bottom for i in shown if i or every == 1 or not with_bottom]
    places = [0, *places] if with_bottom else places
    axes.set_xticks(places, [columns[i] for i in places], fontsize=font, family="monospace", parse_math=False)
    axes.tick_params(axis="x", rotation=90 if vertical else 0)
    axes.set_yticks(shown, [rows[t] for t in shown], fontsize=font, family="monospace", parse_math=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("token pushed at each step" + (f"; {bottom} is {what}" if with_bottom else ""), fontsize=9)
    axes.set_ylabel("step and token it reads", fontsize=9)
    axes.set_xticks([x - 0.5 for x in range(1, len(columns))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, T)], minor=True)
    axes.grid(which="minor", color="0.88", linewidth=1.7 * cell)
    axes.tick_params(which="major", length=2 if every > 1 else 0, pad=2)
    axes.tick_params(which="minor", length=0)
    if real is not None:
        # dark on light cells and light on dark ones
        shades = ["0.1" if float(weights[t, i]) < 0.35 else "1.0" for t, i in enumerate(real)]
        axes.scatter(
            list(real),
            range(T),
            s=(30 * cell) ** 2,
            facecolors="none",
            edgecolors=shades,
            linewidths=min(0.9, 9 * cell),
            zorder=3,
        )
    bar = figure.colorbar(
        image, ax=axes, ticks=[0, 0.1, 0.25, 0.5, 1], format="%g", location="bottom", aspect=30, pad=0.02, shrink=0.6
    )
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label("weight", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10, parse_math=False)
    return figure
