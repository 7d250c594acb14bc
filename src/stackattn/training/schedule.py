"""Learning-rate schedule and early stopping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau


def plateau_scheduler(
    optimizer: Optimizer, factor: float, patience: int, counting: Literal["paper", "pytorch"]
) -> ReduceLROnPlateau:
    """Return the scheduler that multiplies the learning rate by `factor` when the score stops improving.

    Args:
        optimizer: the optimiser whose learning rate is lowered.
        factor: factor between 0 and 1.
        patience: number of evaluations without improvement.
        counting: "paper": lower the rate after `patience` evaluations that are not better than the best one.
            "pytorch": lower it one evaluation later; only a relative gain of more than 1e-4 counts as an improvement.

    Example:
        >>> scheduler = plateau_scheduler(optimizer, 0.9, 5, "paper")  # doctest: +SKIP
        >>> scheduler.step(score)  # doctest: +SKIP
    """
    paper = counting == "paper"
    return ReduceLROnPlateau(
        optimizer, factor=factor, patience=patience - paper, threshold=0.0 if paper else 1e-4, eps=0.0
    )


@dataclass
class EarlyStopping:
    """Counts evaluations; `done` is true after `patience` evaluations in a row that are not better than the best one.

    Example:
        >>> stopping = EarlyStopping(patience=1)
        >>> stopping.update(2.0), stopping.update(3.0), stopping.done
        (True, False, True)
    """

    patience: int
    best: float = math.inf
    """The best score."""
    bad: int = 0
    """Evaluations since the best one."""

    def update(self, score: float) -> bool:
        """Count an evaluation; return whether it is the best so far. Lower scores are better."""
        if score < self.best:
            self.best, self.bad = score, 0
            return True
        self.bad += 1
        return False

    @property
    def done(self) -> bool:
        """Whether training should stop."""
        return self.bad >= self.patience
