"""The `training` section of configurations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..config import require

PLATEAUS = ("paper", "pytorch")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training loop.

    The defaults are the paper's values for context-free languages, except `learning_rate`, which the paper draws from
    `learning_rates`.
    """

    learning_rate: float = 0.001
    """Initial learning rate of Adam."""
    learning_rates: tuple[float, float] = (5e-4, 1e-2)
    """Range from which each random restart draws its learning rate, log-uniformly."""
    max_epochs: int = 200
    """Maximum number of epochs."""
    clip: float = 5.0
    """Maximum L2 norm of the gradient of all parameters; larger gradients are scaled down."""
    lr_factor: float = 0.9
    """Factor by which the learning rate is multiplied when the validation score stops improving."""
    lr_patience: int = 5
    """Evaluations without improvement before the learning rate is lowered; see `plateau`."""
    plateau: Literal["paper", "pytorch"] = "paper"
    """`paper`: lower the learning rate after `lr_patience` evaluations without improvement. `pytorch`: lower it one
    evaluation later; only a relative gain of more than 1e-4 (in `cfl`, of the perplexity) counts as an improvement."""
    stop_patience: int = 10
    """Evaluations without improvement before training stops."""
    evaluate_every: int | None = None
    """Number of examples between evaluations; the model is also evaluated at the end of training. If this is null,
    or if an epoch has no more examples than this, the model is evaluated at the end of each epoch."""
    init_seed: int = 0
    """Seed for the initial parameters."""
    shuffle_seed: int = 0
    """Seed for the order of the batches and for dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16`: matrix products are computed in bfloat16 (autocast); parameters stay in float32."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a positive number", value)
        require(0 < self.lr_factor < 1, "lr_factor", "a number between 0 and 1", self.lr_factor)
        for name in ("max_epochs", "lr_patience", "stop_patience"):
            value = getattr(self, name)
            require(value >= 1, name, "at least 1", value)
        every = self.evaluate_every
        require(every is None or every >= 1, "evaluate_every", "at least 1 or null", every)
        require(self.plateau in PLATEAUS, "plateau", f"one of {', '.join(PLATEAUS)}", self.plateau)
        require(self.precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", self.precision)
        low, high = self.learning_rates
        require(0 < low <= high < math.inf, "learning_rates", "two positive numbers, the smaller first", [low, high])
