"""The two counters, beside sequences counted by hand and PyTorch's scheduler."""

import random

import pytest
import torch

from stackattn.training import EarlyStopping, Plateau

#         0  1  2  3  4  5  6  7  8  9 10 11 12
SCORES = [5, 4, 4, 5, 4, 3, 3, 3, 3, 3, 3, 3, 2]


def test_plateau_as_the_paper_words_it():
    """Patience 3: after three evaluations without improvement; then the count begins again."""
    plateau = Plateau(0.5, patience=3)
    assert [plateau.update(score) for score in SCORES] == [1, 1, 1, 1, 0.5, 1, 1, 1, 0.5, 1, 1, 0.5, 1]
    assert (plateau.best, plateau.bad) == (2, 0)


def test_plateau_as_the_published_code_counts():
    """One evaluation later."""
    plateau = Plateau(0.5, patience=3, published=True)
    assert [plateau.update(score) for score in SCORES] == [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5, 1, 1, 1]


def test_small_gains_count_as_the_paper_words_it_and_not_as_published():
    scores = [1.0, 0.99995, 0.9999, 0.99985]  # each is better, but not by 1e-4 of the best one until the last
    plateau = Plateau(0.5, patience=1)
    assert [plateau.update(score) for score in scores] == [1, 1, 1, 1]
    published = Plateau(0.5, patience=1, published=True)
    assert [published.update(score) for score in scores] == [1, 1, 0.5, 1]
    assert published.best == 0.99985


@pytest.mark.parametrize("patience", [2, 5])
def test_published_is_what_torch_does(patience):
    for seed in range(40):
        generator = random.Random(seed)
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, "min", factor=0.9, patience=patience, threshold=1e-4, threshold_mode="rel"
        )
        plateau, rate, score = Plateau(0.9, patience, published=True), 1.0, 2.0
        changes = 0
        for _ in range(100):
            score *= 1 + generator.choice([-1e-2, -1.5e-4, -1e-4, -5e-5, 0, 5e-5, 1e-3])
            scheduler.step(score)
            factor = plateau.update(score)
            rate *= factor
            changes += factor != 1
            assert optimizer.param_groups[0]["lr"] == rate
        assert changes > 0


def test_early_stopping():
    """The third evaluation in a row that is not strictly better ends it; any gain at all begins the count again."""
    stopping = EarlyStopping(patience=3)
    seen = []
    for score in [5, 4, 4, 4.5, 3.9999999, 4, 3.9999999, 5]:
        seen.append((stopping.update(score), stopping.done))
    good, bad, end = (True, False), (False, False), (False, True)
    assert seen == [good, good, bad, bad, good, bad, bad, end]
    assert stopping.best == 3.9999999


def test_nan_is_no_improvement():
    plateau, stopping = Plateau(0.5, 1), EarlyStopping(1)
    assert (plateau.update(float("nan")), stopping.update(float("nan")), stopping.done) == (0.5, False, True)
    assert stopping.best == float("inf")
