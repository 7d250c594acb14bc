"""The measure and the figure of `stackattn demo`: correct closing brackets, and the attention of a trained stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..languages import Language, evaluation_set
from ..training.cfl import with_bos
from .figures import new_figure, save_figure


def closing_bracket_share(model: nn.Module, language: Language, length: int, count: int = 100, seed: int = 0) -> float:
    """Return the share of closing brackets whose type a model predicts correctly.

    Only the logits of closing brackets are compared, so that guessing gives a share of 1/k with k types of brackets.

    Args:
        model: a model of the language.
        language: a Dyck language; each opening bracket in its list of symbols is followed by its closing bracket.
        length: length of the test strings.
        count: number of test strings.
        seed: seed for sampling them.
    """
    strings = torch.from_numpy(np.stack(evaluation_set(language, seed, (length, length), count).strings))  # (B, n)
    with torch.no_grad():
        logits = model.eval()(with_bos(language, strings))[:, :-1]  # (B, n, outputs): predictions of the n symbols
    closing = torch.arange(1, len(language.symbols), 2)  # each id follows that of its opening bracket
    guesses = closing[logits[..., closing].argmax(-1)]  # (B, n)
    return (guesses == strings)[torch.isin(strings, closing)].double().mean().item()


def demo_figure(
    shares: Mapping[str, Sequence[tuple[int, float]]],
    training_lengths: tuple[int, int],
    weights: Tensor,
    tokens: Sequence[str],
    path: Path,
    guess: float,
) -> Path:
    """Draw the shares of `closing_bracket_share` beside an attention map, and return `path`.

    Args:
        shares: pairs of length and share, by name of the model.
        training_lengths: shortest and longest string of the training set.
        weights: attention weights of one sequence, (T, T + 1), with the bottom first.
        tokens: the T tokens.
        path: file to write; the suffix selects the format.
        guess: the share that guessing gives; the axis starts there.
    """
    figure = new_figure(10.5, 4.6)
    from matplotlib.colors import PowerNorm

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    left.axvspan(*training_lengths, color="0.9")
    left.text(training_lengths[1], guess + 0.003, " lengths seen in training", color="0.4", fontsize=9)
    for (label, points), colour in zip(shares.items(), ("C1", "C0", "C2"), strict=False):
        lengths, values = zip(*points, strict=True)
        left.plot(lengths, values, "o-", color=colour, markersize=4, linewidth=1.6)
        offset = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        left.annotate(label, (lengths[-1], values[-1]), color=colour, parse_math=False, **offset)
    left.set_title("Closing brackets whose type is predicted correctly", fontsize=11)
    left.set_xlabel("length of the string")
    left.set_ylabel(f"share (guessing: {guess:.2g})")
    left.set_ylim(guess, 1.01)
    left.margins(x=0.14)
    left.spines[["top", "right"]].set_visible(False)

    T = len(tokens)
    image = right.imshow(weights.double().numpy(), cmap="Greys", norm=PowerNorm(0.5, 0.0, 1.0), aspect="auto")
    right.set_xticks(range(T + 1), ["⊥", *tokens], fontsize=9, parse_math=False)
    right.set_yticks(range(T), tokens, fontsize=9, parse_math=False)
    right.xaxis.tick_top()
    right.tick_params(length=0)
    right.set_xlabel("symbol pushed (⊥ is the bottom)")
    right.set_ylabel("symbol read")
    right.set_title("Top of the stack of Nd alone on one string", fontsize=11)
    figure.colorbar(image, ax=right, ticks=[0, 0.1, 0.25, 0.5, 1], format="%g", label="weight", shrink=0.8)
    save_figure(figure, path)
    return path
