"""Strings labelled with what should be on top of a stack, and the agreement of a model's stacks with these labels.

The weights of a stack are compared with a real stack, and its best run with the most probable derivation. The strings
are the same for all runs of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..languages import Language, sample_batches
from ..training.cfl import with_bos
from .real_stack import Agreement, derivation_tops, measure_agreement, real_tops
from .traces import StackTrace, trace_stacks

BATCHES, BATCH_SIZE = 10, 10  # strings compared with a real stack; the strings of a batch have the same length
DERIVED_STRINGS = 10  # strings whose best runs are compared with derivations, which takes longer

Tops = list[list[list[int]]]  # by batch, string and symbol


@dataclass(frozen=True)
class LabelledStrings:
    """Strings of a language with the position that should be on top after each symbol.

    `real` are the positions of a real stack, `derived` those of derivations; None if one of them is unknown.
    """

    language: Language
    strings: list[np.ndarray]  # (batch size, length) each
    real: Tops | None
    derived_strings: list[np.ndarray]  # (1, length) each
    derived: Tops | None

    def compare_weights(self, model: nn.Module, stacks: Sequence[str] | None = None) -> dict[str, Agreement]:
        """Agreement of the most heavily weighted token with a real stack, by name of the stack.

        `stacks` are the names of the stacks to compare (default: all).
        """
        return {} if self.real is None else measure_agreement(self._trace(model, self.strings, stacks), self.real)

    def compare_best_runs(self, model: nn.Module, stacks: Sequence[str] | None = None) -> dict[str, Agreement]:
        """Agreement of the best run with the most probable derivation; see `compare_weights`."""
        if self.derived is None:
            return {}
        return measure_agreement(self._trace(model, self.derived_strings, stacks), self.derived, best_run=True)

    def _trace(
        self, model: nn.Module, batches: list[np.ndarray], stacks: Sequence[str] | None
    ) -> list[list[StackTrace]]:
        traced = (trace_stacks(model, with_bos(self.language, torch.from_numpy(batch))) for batch in batches)
        return [[trace for trace in traces if stacks is None or trace.name in stacks] for traces in traced]


def label_strings(language: Language, lengths: tuple[int, int], seed: int = 0) -> LabelledStrings:
    """Sample strings, with the distribution of lengths used in training, and find the expected tops."""

    def sample(batches: int, batch_size: int) -> list[np.ndarray]:
        return sample_batches(language, lengths, batches, batch_size, np.random.default_rng(seed)).batches

    strings, derived_strings = sample(BATCHES, BATCH_SIZE), sample(DERIVED_STRINGS, 1)
    return LabelledStrings(
        language,
        strings,
        _all([[real_tops(language, string.tolist()) for string in batch] for batch in strings]),
        derived_strings,
        _all([[derivation_tops(language, string.tolist()) for string in batch] for batch in derived_strings]),
    )


def _all(tops: list[list[list[int] | None]]) -> Tops | None:
    """Return the tops if they are known for every string, otherwise None."""
    known = [[row for row in batch if row is not None] for batch in tops]
    return known if all(len(a) == len(b) for a, b in zip(known, tops, strict=True)) else None
