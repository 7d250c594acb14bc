"""Print figures: content, size, repeatable bytes, symbols with markup, atomic writes."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from stackattn.analysis import attention_map
from stackattn.analysis.demo import demo_figure
from stackattn.analysis.figures import action_map, height_chart, split_map

TOKENS = ["BOS", *"(()[])"]
T = len(TOKENS)


def actions():
    return torch.rand(T, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)


def split():
    return torch.rand(T, T + 1, 2, 3, generator=torch.Generator().manual_seed(0)).tril(1)


DRAWINGS = {
    "actions": lambda path: action_map(actions(), TOKENS, ("push", "no-op", "pop"), path, title="a stack"),
    "height": lambda path: height_chart(torch.arange(T) / 2, TOKENS, path, title="a stack"),
    "split": lambda path: split_map(split(), TOKENS, path, title="a stack"),
    "attention": lambda path: attention_map(split()[..., 0, 0], TOKENS, path, real=[0] * T, bottom="∅"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_equal_figures_give_equal_bytes(tmp_path, name):
    for suffix, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        first, second = (DRAWINGS[name](tmp_path / f"{i}" / f"figure.{suffix}").read_bytes() for i in range(2))
        assert first == second
        assert first.startswith(start)


def test_content_of_the_figures(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("stackattn.analysis.figures.save_figure", lambda figure, path: figures.append(figure))
    for name in ("actions", "height", "split"):
        DRAWINGS[name](tmp_path)
    map_of_actions, heights, maps = (figure.axes for figure in figures)
    np.testing.assert_allclose(map_of_actions[0].images[0].get_array(), actions())
    assert map_of_actions[0].images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in map_of_actions[0].get_yticklabels()] == TOKENS
    assert [label.get_text() for label in map_of_actions[0].get_xticklabels()] == ["push", "no-op", "pop"]
    np.testing.assert_allclose(heights[0].lines[0].get_ydata(), np.arange(T) / 2)
    for index, (q, s) in enumerate((q, s) for q in range(2) for s in range(3)):
        np.testing.assert_allclose(maps[index].images[0].get_array(), split()[:, :, q, s])


@pytest.mark.parametrize("symbols", [12, 80])
def test_figures_are_readable_at_text_width(tmp_path, monkeypatch, symbols):
    """Figures are at most 5.5 inches wide, no font is smaller than 6 points, and labels do not overlap."""
    import struct

    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: figures.append(figure) or save(figure, *a, **k))
    tokens = ["BOS", *("([])" * 20)[:symbols]]
    n = len(tokens)
    weights = torch.rand(n, n + 1, 3, 3)
    made = [
        attention_map(weights[..., 0, 0], tokens, tmp_path / "map.png", real=[0] * n),
        attention_map(weights[:, 1:, 0, 0], tokens, tmp_path / "bare.png"),
        height_chart(torch.rand(n), tokens, tmp_path / "height.png"),
        split_map(weights, tokens, tmp_path / "split.png"),
        action_map(weights[:, 0, 0], tokens, ("push", "no-op", "pop"), tmp_path / "actions.png"),
    ]
    for path, figure in zip(made, figures, strict=True):
        (pixels,) = struct.unpack(">I", path.read_bytes()[16:20])  # the width in the PNG header
        assert pixels / 200 <= 5.5
        texts = [text for axes in figure.axes for text in [*axes.get_xticklabels(), *axes.get_yticklabels()]]
        texts += figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        assert min(text.get_fontsize() for text in texts if text.get_text()) >= 6
    for figure in figures[:3]:
        figure.set_dpi(200)
        figure.draw_without_rendering()
        for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels]
            assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    axes = figures[0].axes[0]
    shown = [label.get_text().split() for label in axes.get_yticklabels()]
    assert [int(number) for number, _ in shown] == list(range(0, n, int(shown[1][0])))
    bottom, *columns = (label.get_text() for label in axes.get_xticklabels())
    assert bottom.strip() == "⊥"
    columns = [int(text.split()[1]) for text in columns]
    assert set(columns) | {0} == {int(number) for number, _ in shown}
    assert [tokens[int(number)] for number, _ in shown] == [token for _, token in shown]
    assert axes.xaxis.get_majorticklocs()[1:].tolist() == [column + 1 for column in columns]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: action_map(actions()[:3], TOKENS, ("a", "b", "c"), path), r"actions: expected shape \(7, 3\)"),
        (lambda path: height_chart(torch.zeros(3), TOKENS, path), r"heights: expected shape \(7,\), got \(3,\)"),
        (lambda path: split_map(split()[..., 0], TOKENS, path), r"weights: expected shape \(7, 8, Q, S\)"),
    ],
)
def test_errors_of_figures(tmp_path, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "figure.svg")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_symbols_are_not_parsed_as_markup(tmp_path, suffix):
    tokens = ["BOS", "$x_{$", "$", "\\frac", "a_b^"]
    n = len(tokens)
    weights = torch.rand(n, n + 1, 1, 1)
    title = "$\\undefined{$ 5 $"
    for name, draw in {
        "actions": lambda path: action_map(weights[:, :3, 0, 0], tokens, ("a", "b", "c"), path, title=title),
        "height": lambda path: height_chart(torch.rand(n), tokens, path, title=title),
        "split": lambda path: split_map(weights, tokens, path, title=title),
        "attention": lambda path: attention_map(weights[..., 0, 0], tokens, path, title=title),
        "demo": lambda path: demo_figure({title: [(1, 0.5)]}, weights[..., 0, 0], tokens, path, language=title),
    }.items():
        assert draw(tmp_path / f"{name}.{suffix}").stat().st_size > 1000


def test_a_failed_write_keeps_the_old_figure(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    path = tmp_path / "figure.svg"
    DRAWINGS["height"](path)
    before = path.read_bytes()

    def fail(figure, target, **options):
        with open(target, "wb") as file:
            file.write(b"<svg")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        DRAWINGS["height"](path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
