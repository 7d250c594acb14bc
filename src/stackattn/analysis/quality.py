"""By numbers, how well the stacks of a model do: on strings that all runs of one language and its lengths share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..languages import Language, sample_batches
from .real_stack import Agreement, agreement, derivation_tops, real_tops
from .strings import with_bos
from .traces import watch_stacks

BATCHES, BATCH_SIZE = 10, 10  # strings whose most weighted tokens are compared with a real stack; one length to a batch
DERIVED_STRINGS = 10  # whose best run is compared with their derivation, which is slower

Tops = list[list[list[int]]]  # of each batch, string and symbol


@dataclass(frozen=True)
class Yardstick:
    """Strings of a language, and what a stack should have on top after each symbol. None where nothing is right."""

    language: Language
    strings: list[np.ndarray]  # (batch size, length) each
    real: Tops | None
    derived_strings: list[np.ndarray]  # (1, length) each
    derived: Tops | None

    def agreement(self, model: nn.Module) -> dict[str, Agreement]:
        """Of the most weighted elements of each stack, by its name, with a real stack."""
        return {} if self.real is None else agreement(self._watch(model, self.strings), self.real)

    def derivation(self, model: nn.Module) -> dict[str, Agreement]:
        """Of the best runs of each stack, by its name, with the most probable derivations."""
        if self.derived is None:
            return {}
        return agreement(self._watch(model, self.derived_strings), self.derived, best_run=True)

    def _watch(self, model: nn.Module, batches: list[np.ndarray]):
        return [watch_stacks(model, with_bos(self.language, torch.from_numpy(batch))) for batch in batches]


def make_yardstick(language: Language, lengths: tuple[int, int], seed: int = 0) -> Yardstick:
    """Of strings of these lengths, each length as probable as in training."""

    def sample(batches: int, batch_size: int) -> list[np.ndarray]:
        return sample_batches(language, lengths, batches, batch_size, np.random.default_rng(seed)).batches

    strings, derived_strings = sample(BATCHES, BATCH_SIZE), sample(DERIVED_STRINGS, 1)
    return Yardstick(
        language,
        strings,
        _all([[real_tops(language, string.tolist()) for string in batch] for batch in strings]),
        derived_strings,
        _all([[derivation_tops(language, string.tolist()) for string in batch] for batch in derived_strings]),
    )


def _all(tops: list[list[list[int] | None]]) -> Tops | None:
    """None unless it is known for every string what is right."""
    known = [[row for row in batch if row is not None] for batch in tops]
    return known if all(len(a) == len(b) for a, b in zip(known, tops, strict=True)) else None
