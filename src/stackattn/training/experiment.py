"""An experiment: a configuration that can be made into a task and a model, and run in a folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from ..config import ConfigError, from_values
from .loop import Task, TrainingCallback, train
from .options import TrainingConfig
from .processes import Processes
from .run import RunError, TrainingRun

T = TypeVar("T")


class Experiment(Protocol):
    """A frozen dataclass with a section `training` and sections of its own."""

    @property
    def training(self) -> TrainingConfig: ...

    def make(self) -> tuple[Task, nn.Module]:
        """The task and the untrained model."""
        ...

    def redraw(self, seed: int) -> Experiment:
        """For a restart: the same experiment with whatever its data or batches draw at random drawn by this seed."""
        ...


def run_experiment(
    config: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    callback: TrainingCallback | None = None,
    minutes: float | None = None,
    tensorboard: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train what `config` says, in a run folder; returns the result.

    Under `torchrun` all processes train one model together; they need to see the same folder, and the first one writes.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    run, processes = TrainingRun(folder, tensorboard), Processes(device)
    run.check(config, resume)  # in every process: one that waits for a first one that was refused waits long
    task, model = config.make()
    model.to(processes.device)
    try:
        with processes.together():
            # not before: what cannot be built leaves no folder
            state = processes.from_first(run.start(config, resume) if processes.first else None)
            return train(model, task, config.training, run, state, callback, deadline, processes)
    finally:
        run.close()


def in_section(section: str, make: Callable[..., T], *arguments: Any) -> T:
    """What is wrong with a language or model is found out when it is made; say which section of the file it is in."""
    try:
        return make(*arguments)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error


def config_of(cls: type[T], folder: str | Path) -> T:
    """The configuration of a run."""
    run = TrainingRun(folder)
    try:
        return from_values(cls, run.config(), source=str(run.folder / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"{error} (is it a run of another command?)") from None


def model_folder(folder: str | Path) -> Path:
    """Of a run the folder of its best model, and any other folder itself."""
    folder = Path(folder)
    if (folder / "best").is_dir():
        return folder / "best"
    if (folder / "environment.json").exists() or (folder / "metrics.jsonl").exists():
        raise RunError(f"{folder}: there is no best model ({TrainingRun(folder).without_model})")
    return folder


def perplexity(nats: float) -> float:
    """Of a cross-entropy; infinite where a float ends, and nan stays nan."""
    return math.exp(nats) if nats < 700 else nats * math.inf


def headline(values: dict[str, Any]) -> tuple[str, float]:
    """The figure of an evaluation by which people compare runs, and its name; lower is better."""
    for key, name in (("cross_entropy_difference", "difference"), ("perplexity", "perplexity")):
        if key in values:
            return name, values[key]
    return "score", values["score"]
