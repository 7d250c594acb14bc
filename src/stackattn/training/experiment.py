"""Experiments: building the task and the model of a configuration and training them in a run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import nn

from ..config import ConfigError, FieldError, from_values
from .environment import keep_freed_memory
from .loop import Task, TrainingCallback, train
from .options import TrainingConfig
from .origin import find_origin, load_origin
from .processes import Processes
from .run import RunError, TrainingRun
from .run_files import CONFIG, ENVIRONMENT, METRICS

T = TypeVar("T")


class Metric(NamedTuple):
    """A metric of the evaluations of a run."""

    key: str
    """Its key in the evaluations."""
    name: str
    """Its name in tables and figures."""


DIFFERENCE = Metric("cross_entropy_difference", "difference")
PERPLEXITY = Metric("perplexity", "perplexity")


class Experiment(Protocol):
    """A configuration: a frozen dataclass with a `training` section and sections for the data and the model."""

    @property
    def training(self) -> TrainingConfig: ...

    def make(self) -> tuple[Task, nn.Module]:
        """Build the task and the untrained model."""
        ...

    def redraw(self, seed: int) -> Experiment:
        """Return the experiment of a random restart, whose data or batch size is drawn with this seed."""
        ...


def run_experiment(
    config: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    callback: TrainingCallback | None = None,
    minutes: float | None = None,
    log: Sequence[str] = (),
    init_from: str | Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train an experiment in a run folder and return the result, see `train`.

    Args:
        resume: continue the run if the folder contains one. The configuration may differ from that of the run in the
            keys `run.CHANGEABLE`; a finished run can be extended in this way.
        callback: called after each batch and evaluation.
        minutes: stop after this time; the run can be resumed. There is always a best model: if the model has not been
            evaluated by then, it is evaluated first.
        log: loggers that also receive the evaluations: `csv`, `tensorboard`, `wandb`.
        init_from: start from the weights of another run's best model, or of a saved model, with the same architecture
            and vocabulary.
        device: a PyTorch device, such as `cpu` or `cuda`.

    After this call, the process keeps memory that it frees, see `keep_freed_memory`.

    Under `torchrun`, all processes train one model. They need access to the same folder; only rank 0 writes to it.

    Raises:
        ConfigError: the task or the model cannot be built.
        RunError: the run cannot be started, resumed or written.
        ModuleNotFoundError: a logger needs a package that is not installed; nothing has been written.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    run, processes = TrainingRun(folder, log), Processes(device)
    run.check(config, resume)  # in every process: otherwise the other ranks would hang waiting for rank 0
    origin = find_origin(run, None if init_from is None else model_folder(init_from))
    task, model = config.make()
    if origin is not None and run.state() is None:
        load_origin(model, task, origin)
    model.to(processes.device)
    keep_freed_memory()
    try:
        with processes.together():
            # started after building, so that an invalid configuration leaves no folder behind
            state = processes.from_first(run.start(config, resume, origin) if processes.first else None)
            return train(model, task, config.training, run, state, callback, deadline, processes)
    finally:
        run.close()


def in_section(section: str, make: Callable[..., T], *arguments: Any) -> T:
    """Call `make`; prefix its errors with the section of the configuration."""
    try:
        return make(*arguments)
    except FieldError as error:
        raise ConfigError(f"{section}.{error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error


def config_of(cls: type[T], folder: str | Path, values: dict[str, Any] | None = None) -> T:
    """Read the configuration of a run; raise ConfigError if it is not a configuration of class `cls`.

    `values` is the result of `TrainingRun.config`, if the caller has read it already.
    """
    run = TrainingRun(folder)
    try:
        return from_values(cls, run.config() if values is None else values, source=str(run.folder / CONFIG))
    except ConfigError as error:
        raise ConfigError(f"{error} (does the run belong to another command?)") from None


def config_class(command: str) -> type[Any]:
    """The configuration class of a training command.

    Args:
        command: `cfl`, `lm` or `mt`.
    """
    # Imported here because the tasks import this module.
    if command == "cfl":
        from .cfl import CFLConfig

        return CFLConfig
    if command == "lm":
        from .lm import LMConfig

        return LMConfig
    if command == "mt":
        from .mt import MTConfig

        return MTConfig
    raise ValueError(f"command: expected one of cfl, lm, mt, got {command!r}")


def training_command(values: Mapping[str, Any]) -> str:
    """The command that trained a run with these values in its `config.json`: `cfl`, `lm` or `mt`."""
    if "language" in values:
        return "cfl"
    return "mt" if "label_smoothing" in values.get("data", {}) else "lm"


def model_folder(folder: str | Path) -> Path:
    """Return the folder of the best model of a run; any other folder is returned unchanged."""
    run = TrainingRun(folder)
    if run.best_model.is_dir():
        return run.best_model
    if any((run.folder / name).exists() for name in (ENVIRONMENT, METRICS)):
        raise RunError(f"{folder}: the run has no best model ({run.without_model})")
    return run.folder


def perplexity(nats: float) -> float:
    """Return the perplexity of a cross-entropy in nats; infinity on overflow, nan for nan."""
    return math.exp(nats) if nats < 700 else nats * math.inf


def ending(result: Mapping[str, Any]) -> str:
    """Return how a run ended, in words, from its result; see `TrainingRun.result`."""
    return "reached max_epochs" if result["stopped"] == "max_epochs" else result["stopped"]


def headline(values: dict[str, Any]) -> tuple[str, float]:
    """Return the name and value of the metric by which runs are compared; lower is better."""
    for key, name in (DIFFERENCE, PERPLEXITY):
        if key in values:
            return name, values[key]
    return "score", values["score"]
