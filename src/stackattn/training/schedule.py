"""When to lower the learning rate and when to stop: the two counters of the paper's protocol."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Plateau:
    """Multiplies the learning rate by `factor` when the score (lower is better) has not improved for some evaluations.

    As the paper words it, after `patience` evaluations without improvement. As the published code counts (`published`):
    on the one after that, and only a relative gain of more than 1e-4 over the best score is an improvement.
    """

    factor: float
    patience: int
    published: bool = False
    best: float = math.inf
    bad: int = 0

    def update(self, score: float) -> float:
        """The factor for the learning rate after this evaluation: 1 or `factor`."""
        if score < self.best * (1 - 1e-4 * self.published):
            self.best, self.bad = score, 0
        else:
            self.bad += 1
        if self.bad >= self.patience + self.published:
            self.bad = 0
            return self.factor
        return 1.0


@dataclass
class EarlyStopping:
    """Ends a run after `patience` evaluations in a row that are not strictly better than the best one."""

    patience: int
    best: float = math.inf
    bad: int = 0

    def update(self, score: float) -> bool:
        """Whether this evaluation is the best so far."""
        if score < self.best:
            self.best, self.bad = score, 0
            return True
        self.bad += 1
        return False

    @property
    def done(self) -> bool:
        return self.bad >= self.patience
