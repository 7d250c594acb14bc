"""Learning-rate schedule and early stopping, compared with hand-counted sequences and with an oracle."""

import math
import random
from dataclasses import dataclass

import pytest
import torch

from stackattn.training import EarlyStopping, TrainingConfig, plateau_scheduler

#         0  1  2  3  4  5  6  7  8  9 10 11 12
SCORES = [5, 4, 4, 5, 4, 3, 3, 3, 3, 3, 3, 3, 2]


@dataclass
class Plateau:
    """The oracle: both ways of counting evaluations without improvement, in plain Python."""

    factor: float
    patience: int
    published: bool = False
    best: float = math.inf
    bad: int = 0

    def update(self, score):
        if score < self.best * (1 - 1e-4 * self.published):
            self.best, self.bad = score, 0
        else:
            self.bad += 1
        if self.bad >= self.patience + self.published:
            self.bad = 0
            return self.factor
        return 1.0


def make(factor, patience, counting, rate=1.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    return optimizer, plateau_scheduler(optimizer, factor, patience, counting)


def factors(scores, patience, counting):
    """Return the factor applied to the learning rate after each score, and the scheduler."""
    optimizer, scheduler = make(0.5, patience, counting)
    found = []
    for score in scores:
        before = optimizer.param_groups[0]["lr"]
        scheduler.step(score)
        found.append(optimizer.param_groups[0]["lr"] / before)
    return found, scheduler


def test_plateau_as_in_the_paper():
    """Patience 3: the rate is lowered after three evaluations without improvement; then the count restarts."""
    found, scheduler = factors(SCORES, 3, "paper")
    assert found == [1, 1, 1, 1, 0.5, 1, 1, 1, 0.5, 1, 1, 0.5, 1]
    assert (scheduler.best, scheduler.num_bad_epochs) == (2, 0)


def test_plateau_as_in_pytorch():
    """The rate is lowered one evaluation later."""
    assert factors(SCORES, 3, "pytorch")[0] == [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5, 1, 1, 1]


def test_small_improvements_count_in_the_paper_and_not_in_pytorch():
    scores = [1.0, 0.99995, 0.9999, 0.99985]  # only the last one is better than the first by more than 1e-4
    assert factors(scores, 1, "paper")[0] == [1, 1, 1, 1]
    found, scheduler = factors(scores, 1, "pytorch")
    assert found == [1, 1, 0.5, 1]
    assert scheduler.best == 0.99985


@pytest.mark.parametrize("counting", ["paper", "pytorch"])
@pytest.mark.parametrize("patience", [1, 2, 5])
def test_equal_to_the_oracle_with_and_without_resuming(patience, counting):
    """Equal bit for bit, even with tiny learning rates or nan, and after restoring `best` and `num_bad_epochs`."""
    for seed in range(60):
        generator = random.Random(seed)
        rate, score, changes = generator.choice([1.0, 3e-4, 1e-9]), 2.0, 0
        optimizer, scheduler = make(0.9, patience, counting, rate)
        oracle = Plateau(0.9, patience, published=counting == "pytorch")
        for _ in range(100):
            score *= 1 + generator.choice([-1e-2, -1.5e-4, -1e-4, -5e-5, 0, 5e-5, 1e-3])
            seen = generator.choice([score] * 20 + [math.nan, math.inf])
            scheduler.step(seen)
            factor = oracle.update(seen)
            rate *= factor
            changes += factor != 1
            assert optimizer.param_groups[0]["lr"] == rate
            assert (scheduler.best, scheduler.num_bad_epochs) == (oracle.best, oracle.bad)
            if generator.random() < 0.1:  # resumed
                best, bad = scheduler.best, scheduler.num_bad_epochs
                optimizer, scheduler = make(0.9, patience, counting, rate)
                scheduler.best, scheduler.num_bad_epochs = best, bad
        assert changes > 0


@pytest.mark.parametrize("patience", [2, 5])
def test_plateau_pytorch_equals_reduce_lr_on_plateau(patience):
    for seed in range(40):
        generator = random.Random(seed)
        ours, scheduler = make(0.9, patience, "pytorch")
        theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        expected = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, "min", factor=0.9, patience=patience)
        score = 2.0
        for _ in range(100):
            score *= 1 + generator.choice([-1e-2, -1.5e-4, -1e-4, -5e-5, 0, 5e-5, 1e-3])
            scheduler.step(score)
            expected.step(score)
            assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
        assert ours.param_groups[0]["lr"] < 1


def test_invalid_options():
    with pytest.raises(ValueError, match=r"lr_factor: expected a number between 0 and 1, got 1\.0"):
        TrainingConfig(lr_factor=1.0)
    with pytest.raises(ValueError, match="plateau: expected one of paper, pytorch, got 'published'"):
        TrainingConfig(plateau="published")


def test_early_stopping():
    """The third evaluation in a row that is not strictly better ends training; any improvement restarts the count."""
    stopping = EarlyStopping(patience=3)
    seen = []
    for score in [5, 4, 4, 4.5, 3.9999999, 4, 3.9999999, 5]:
        seen.append((stopping.update(score), stopping.done))
    good, bad, end = (True, False), (False, False), (False, True)
    assert seen == [good, good, bad, bad, good, bad, bad, end]
    assert stopping.best == 3.9999999


def test_nan_is_no_improvement():
    stopping = EarlyStopping(1)
    assert factors([math.nan], 1, "paper")[0] == [0.5]
    assert (stopping.update(math.nan), stopping.done) == (False, True)
    assert stopping.best == math.inf
