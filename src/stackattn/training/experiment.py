"""Experiments: configurations from which a task and a model are built and trained in a run folder."""

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
    """A configuration: a frozen dataclass with a section `training` and others."""

    @property
    def training(self) -> TrainingConfig: ...

    def make(self) -> tuple[Task, nn.Module]:
        """Build the task and the untrained model."""
        ...

    def redraw(self, seed: int) -> Experiment:
        """Return the experiment of a restart: its data or batches are drawn with this seed."""
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
    """Train an experiment in a run folder and return the result, see `train`.

    Args:
        resume: continue the run if the folder contains one.
        callback: called after each batch and evaluation.
        minutes: stop after this time; the run can be resumed.
        tensorboard: also write the metrics for TensorBoard.
        device: device of PyTorch, such as `cpu` or `cuda`.

    Under `torchrun`, all processes train one model; they need access to the same folder, and the first one writes.

    Raises:
        ConfigError: the task or the model cannot be built.
        RunError: the run cannot be started, resumed or written.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    run, processes = TrainingRun(folder, tensorboard), Processes(device)
    run.check(config, resume)  # in every process: otherwise the other ranks would hang waiting for rank 0
    task, model = config.make()
    model.to(processes.device)
    try:
        with processes.together():
            # after building, so that a configuration that cannot be built leaves no folder
            state = processes.from_first(run.start(config, resume) if processes.first else None)
            return train(model, task, config.training, run, state, callback, deadline, processes)
    finally:
        run.close()


def in_section(section: str, make: Callable[..., T], *arguments: Any) -> T:
    """Call `make` and name the section of the configuration in its errors."""
    try:
        return make(*arguments)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error


def config_of(cls: type[T], folder: str | Path) -> T:
    """Return the configuration of a run."""
    run = TrainingRun(folder)
    try:
        return from_values(cls, run.config(), source=str(run.folder / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"{error} (is it a run of another command?)") from None


def model_folder(folder: str | Path) -> Path:
    """Return the folder of the best model of a run; any other folder is returned unchanged."""
    folder = Path(folder)
    if (folder / "best").is_dir():
        return folder / "best"
    if (folder / "environment.json").exists() or (folder / "metrics.jsonl").exists():
        raise RunError(f"{folder}: there is no best model ({TrainingRun(folder).without_model})")
    return folder


def perplexity(nats: float) -> float:
    """Return the perplexity of a cross-entropy in nats; infinity on overflow, nan for nan."""
    return math.exp(nats) if nats < 700 else nats * math.inf


def headline(values: dict[str, Any]) -> tuple[str, float]:
    """Return the name and value of the figure by which runs are compared; lower is better."""
    for key, name in (("cross_entropy_difference", "difference"), ("perplexity", "perplexity")):
        if key in values:
            return name, values[key]
    return "score", values["score"]
