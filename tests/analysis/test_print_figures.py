"""Figures for print: content, size, reproducible files, symbols that look like markup, atomic writes."""

import multiprocessing
import resource
from itertools import pairwise

import numpy as np
import pytest
import torch

from stackattn.analysis import attention_map, save_figure
from stackattn.analysis.demo import demo_figure
from stackattn.analysis.figures import action_map, height_chart, split_map

TOKENS = ["BOS", *"(()[])"]
T = len(TOKENS)


def actions():
    return torch.rand(T, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)


def split():
    return torch.rand(T, T + 1, 2, 3, generator=torch.Generator().manual_seed(0)).tril(1)


DRAWINGS = {
    "actions": lambda: action_map(actions(), TOKENS, ("push", "no-op", "pop"), title="a stack"),
    "height": lambda: height_chart(torch.arange(T) / 2, TOKENS, title="a stack"),
    "split": lambda: split_map(split(), TOKENS, title="a stack"),
    "attention": lambda: attention_map(split()[..., 0, 0], TOKENS, real=[0] * T, bottom="∅"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_equal_figures_give_equal_bytes(tmp_path, name):
    first, second = (
        [path.read_bytes() for path in save_figure(DRAWINGS[name](), folder / "figure.svg", folder / "figure.png")]
        for folder in (tmp_path / "0", tmp_path / "1")
    )
    assert first == second
    assert [content[:5] for content in first] == [b"<?xml", b"\x89PNG\r"]


def test_the_order_of_the_formats_does_not_matter(tmp_path):
    names = ["figure.svg", "figure.png"]
    orders = [names, names[::-1], names[:1], names[1:]]
    for i, order in enumerate(orders):
        save_figure(DRAWINGS["attention"](), *(tmp_path / str(i) / name for name in order))
    for name in names:
        assert len({path.read_bytes() for path in tmp_path.glob(f"*/{name}")}) == 1


def test_the_layout_is_computed_once_for_all_formats(tmp_path, monkeypatch):
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    executed = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *a: executed.append(a) or execute(*a))
    save_figure(DRAWINGS["height"](), tmp_path / "figure.svg", tmp_path / "figure.png")
    assert len(executed) == 1


def test_content_of_the_figures():
    map_of_actions, heights, maps = (DRAWINGS[name]().axes for name in ("actions", "height", "split"))
    np.testing.assert_allclose(map_of_actions[0].images[0].get_array(), actions())
    assert map_of_actions[0].images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in map_of_actions[0].get_yticklabels()] == TOKENS
    assert [label.get_text() for label in map_of_actions[0].get_xticklabels()] == ["push", "no-op", "pop"]
    np.testing.assert_allclose(heights[0].lines[0].get_ydata(), np.arange(T) / 2)
    for index, (q, s) in enumerate((q, s) for q in range(2) for s in range(3)):
        np.testing.assert_allclose(maps[index].images[0].get_array(), split()[:, :, q, s])


@pytest.mark.parametrize("symbols", [12, 80])
def test_figures_are_readable_at_text_width(tmp_path, symbols):
    """Figures are at most 5.5 inches wide, and no font is smaller than 6 points.

    The labels of attention maps and height charts do not overlap.
    """
    import struct

    tokens = ["BOS", *("([])" * 20)[:symbols]]
    n = len(tokens)
    weights = torch.rand(n, n + 1, 3, 3)
    figures = [
        attention_map(weights[..., 0, 0], tokens, real=[0] * n),
        attention_map(weights[:, 1:, 0, 0], tokens),
        height_chart(torch.rand(n), tokens),
        split_map(weights, tokens),
        action_map(weights[:, 0, 0], tokens, ("push", "no-op", "pop")),
    ]
    for figure in figures:
        (path,) = save_figure(figure, tmp_path / "figure.png")
        (pixels,) = struct.unpack(">I", path.read_bytes()[16:20])  # the width in the PNG header
        assert pixels / 200 <= 5.5
        texts = [text for axes in figure.axes for text in [*axes.get_xticklabels(), *axes.get_yticklabels()]]
        texts += figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        assert min(text.get_fontsize() for text in texts if text.get_text()) >= 6
    for figure in figures[:3]:
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
        (lambda: action_map(actions()[:3], TOKENS, ("a", "b", "c")), r"actions: expected shape \(7, 3\)"),
        (lambda: height_chart(torch.zeros(3), TOKENS), r"heights: expected shape \(7,\), got \(3,\)"),
        (lambda: split_map(split()[..., 0], TOKENS), r"weights: expected shape \(7, 8, Q, S\)"),
    ],
)
def test_errors_of_figures(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_symbols_are_not_parsed_as_markup(tmp_path):
    tokens = ["BOS", "$x_{$", "$", "\\frac", "a_b^"]
    n = len(tokens)
    weights = torch.rand(n, n + 1, 1, 1)
    title = "$\\undefined{$ 5 $"
    for figure in (
        action_map(weights[:, :3, 0, 0], tokens, ("a", "b", "c"), title=title),
        height_chart(torch.rand(n), tokens, title=title),
        split_map(weights, tokens, title=title),
        attention_map(weights[..., 0, 0], tokens, title=title),
    ):
        for path in save_figure(figure, tmp_path / "figure.svg", tmp_path / "figure.png"):
            assert path.stat().st_size > 1000
    demo = demo_figure({title: [(1, 0.5)]}, (1, 2), weights[..., 0, 0], tokens, tmp_path / "demo.svg", 0.5)
    assert demo.stat().st_size > 1000


def _draw_with_a_limit(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
    for name in ("figure.svg", "figure.png", "figure.pdf"):
        with pytest.raises(OSError, match="File too large") as error:
            save_figure(DRAWINGS["height"](), folder / name)
        assert error.value.filename == str(folder / name)


def test_a_failed_write_keeps_the_old_figure(tmp_path):
    """The operating system limits the size of files, so that the write fails in the middle of a figure."""
    save_figure(DRAWINGS["height"](), tmp_path / "figure.svg")
    before = (tmp_path / "figure.svg").read_bytes()
    process = multiprocessing.get_context("fork").Process(target=_draw_with_a_limit, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"figure.svg": before}
