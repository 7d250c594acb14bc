import numpy as np
import pytest
import torch

from stackattn.analysis import attention_map
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
    "attention": lambda path: attention_map(split()[..., 0, 0], TOKENS, path, truth=[0] * T, bottom="∅"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_figure_gives_the_same_bytes(tmp_path, name):
    for suffix, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        first, second = (DRAWINGS[name](tmp_path / f"{i}" / f"figure.{suffix}").read_bytes() for i in range(2))
        assert first == second
        assert first.startswith(start)


def test_what_is_drawn(tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: action_map(actions()[:3], TOKENS, ("a", "b", "c"), path), r"actions: expected shape \(7, 3\)"),
        (lambda path: height_chart(torch.zeros(3), TOKENS, path), r"heights: expected shape \(7,\), got \(3,\)"),
        (lambda path: split_map(split()[..., 0], TOKENS, path), r"weights: expected shape \(7, 8, Q, S\)"),
    ],
)
def test_figures_say_what_is_wrong(tmp_path, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "figure.svg")
