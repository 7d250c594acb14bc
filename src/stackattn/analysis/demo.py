"""The figure of `stackattn demo`: two learning curves and the attention map of a trained stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from .figures import new_figure, save_figure


def demo_figure(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    weights: Tensor,
    tokens: Sequence[str],
    path: Path,
    *,
    language: str,
) -> Path:
    """Draw learning curves beside an attention map, and return `path`.

    Args:
        curves: pairs of epoch and cross-entropy difference, by name of the model.
        weights: attention weights of one sequence, (T, T + 1), with the bottom first.
        tokens: the T tokens.
        path: file to write; the suffix selects the format.
        language: name of the language, for the title.
    """
    figure = new_figure(10.5, 4.6)
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    for (label, points), colour in zip(curves.items(), ("C1", "C0"), strict=False):
        epochs, differences = zip(*points, strict=True)
        left.plot(epochs, differences, "o-", color=colour, markersize=3, linewidth=1.6)
        left.annotate(
            f" {label}",
            (epochs[-1], differences[-1]),
            xytext=(4, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            parse_math=False,
        )
    left.set_title(f"Learning {language.replace('-', ' ')}", fontsize=11, parse_math=False)
    left.set_xlabel("epoch")
    left.set_ylabel("nats per symbol above the language's entropy")
    left.set_ylim(bottom=0 if all(y >= 0 for points in curves.values() for _, y in points) else None)
    left.margins(x=0.12)
    left.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    left.spines[["top", "right"]].set_visible(False)

    T = len(tokens)
    image = right.imshow(weights.double().numpy(), cmap="Greys", norm=PowerNorm(0.5, 0.0, 1.0), aspect="auto")
    right.set_xticks(range(T + 1), ["⊥", *tokens], fontsize=9, parse_math=False)
    right.set_yticks(range(T), tokens, fontsize=9, parse_math=False)
    right.xaxis.tick_top()
    right.tick_params(length=0)
    right.set_xlabel("symbol pushed (⊥ is the bottom)")
    right.set_ylabel("symbol read")
    right.set_title("Top of the trained stack on one string", fontsize=11)
    figure.colorbar(image, ax=right, ticks=[0, 0.1, 0.25, 0.5, 1], format="%g", label="weight", shrink=0.8)
    save_figure(figure, path)
    return path
