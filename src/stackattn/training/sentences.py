"""Options and parts of the training task that language models and translation models share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from ..config import FieldError, in_section, require
from ..models import build_model
from ..models.saving import save
from ..text.corpus import REPORT, Corpus, Tokenizer
from .options import TrainingConfig

C = TypeVar("C", bound="SentenceConfig")
IGNORED = -100  # the target of padding


@dataclass(frozen=True)
class SentenceDataOptions:
    """A prepared corpus and the size of its batches."""

    CORPUS: ClassVar[type[Corpus]]

    folder: str
    """Folder of the corpus."""
    batch_tokens: int
    """Maximum size of a batch in tokens."""
    fingerprint: str | None = None
    """Fingerprint of the corpus; default: read from the folder. A run cannot be resumed with a different corpus."""

    def __post_init__(self) -> None:
        require(self.batch_tokens >= 1, "batch_tokens", "at least 1", self.batch_tokens)
        # The corpus may be absent: reading a run does not require it.
        if self.fingerprint is None and (Path(self.folder) / REPORT).exists():
            try:
                object.__setattr__(self, "fingerprint", self.CORPUS(self.folder).fingerprint)
            except ValueError as error:
                raise FieldError("folder", str(error)) from error


@dataclass(frozen=True)
class SentenceTraining(TrainingConfig):
    """The paper's schedule for text: halve the learning rate after 2 evaluations without improvement, stop after 4."""

    lr_factor: float = 0.5
    lr_patience: int = 2
    stop_patience: int = 4


class SentenceConfig:
    """Base class of `LMConfig` and `MTConfig`, which builds the task and its model."""

    TASK: ClassVar[type[Any]]
    """The class of the task, a `SentenceTask` that is made from `data`."""

    data: Any
    model: Any
    training: SentenceTraining

    def make(self) -> tuple[SentenceTask, nn.Module]:
        """Return the task and an untrained model."""
        task = in_section("data.folder", self.TASK, self.data)  # only the corpus can be invalid
        return task, in_section("model", self.build_model, task.tokenizer)

    def build_model(self, tokenizer: Tokenizer) -> nn.Module:
        """Return the untrained model for a tokenizer."""
        torch.manual_seed(self.training.init_seed)
        return build_model(self.model.for_vocabulary(tokenizer.input_size, tokenizer.output_size))

    def redraw(self: C, seed: int) -> C:
        """Return the configuration of a random restart; by default, its data and batches stay the same."""
        return self


class SentenceTask:
    """Base class of training tasks whose batches are lists of sentence indices."""

    tokenizer: Tokenizer

    def size(self, batch: list[int]) -> int:
        return len(batch)

    def share(self, batch: list[int], rank: int, count: int) -> list[int]:
        return batch[rank::count]

    def save(self, model: nn.Module, folder: Path) -> None:
        self.tokenizer.save(folder)
        save(model, folder)
