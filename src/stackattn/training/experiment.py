"""Experiments: build the task and the model of a configuration, and train the model in a run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from .cfl import CFLConfig
from .environment import keep_freed_memory
from .lm import LMConfig
from .loop import Task, TrainingCallback, train
from .mt import MTConfig
from .options import TrainingConfig
from .origin import find_origin, load_origin
from .processes import Processes
from .run import TrainingRun, model_folder

CONFIG_CLASSES: dict[str, type[Any]] = {"cfl": CFLConfig, "lm": LMConfig, "mt": MTConfig}
"""Configuration classes by training command."""


class Experiment(Protocol):
    """A configuration: a frozen dataclass with a `training` section and sections for the data and the model."""

    @property
    def training(self) -> TrainingConfig: ...

    def make(self) -> tuple[Task, nn.Module]:
        """Build the task and the untrained model."""
        ...

    def redraw(self, seed: int) -> Experiment:
        """Return the experiment of a random restart; the seed determines its data or batch size, if they vary."""
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
    """Train an experiment in a run folder and return the result; see `train`.

    Args:
        config: the experiment.
        folder: the run folder; created if it does not exist.
        resume: continue the run if the folder contains one. The configuration may differ from that of the run in the
            keys `run.CHANGEABLE`; a finished run can be extended in this way.
        callback: called after each batch and evaluation.
        minutes: stop after this time; the run can be resumed. A model that has not been evaluated by then is evaluated
            first, so that there is a best model.
        log: loggers that also receive the evaluations: `csv`, `tensorboard`, `wandb`.
        init_from: start from the weights of another run's best model, or of a saved model, with the same architecture
            and vocabulary.
        device: a PyTorch device, such as `cpu` or `cuda`.

    After this call, the process keeps memory that it frees; see `keep_freed_memory`.

    Under `torchrun`, all processes train one model. They need access to the same folder; only rank 0 writes to it.

    Raises:
        ConfigError: the task or the model cannot be built.
        RunError: the run cannot be started, resumed or written.
        FileNotFoundError: `init_from` is not the folder of a run or of a saved model.
        ModuleNotFoundError: a logger needs a package that is not installed; nothing has been written.
        ValueError: the device is not available, or a logger is unknown.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    run, processes = TrainingRun(folder, log), Processes(device)
    # Before anything is written, and in every process: otherwise the other ranks would hang waiting for rank 0.
    run.check(config, resume)
    origin = find_origin(run, None if init_from is None else model_folder(init_from))
    task, model = config.make()
    if origin is not None and run.state() is None:
        load_origin(model, task, origin)
    model.to(processes.device)
    keep_freed_memory()
    try:
        with processes.together():
            # Started after building, so that an invalid configuration leaves no folder behind.
            state = processes.from_first(run.start(config, resume, origin) if processes.first else None)
            return train(model, task, config.training, run, state, callback, deadline, processes)
    finally:
        run.close()


def config_class(command: str) -> type[Any]:
    """Return the configuration class of a training command.

    Args:
        command: `cfl`, `lm` or `mt`.

    Raises:
        ValueError: `command` is not one of these.
    """
    if command not in CONFIG_CLASSES:
        raise ValueError(f"command: expected one of {', '.join(CONFIG_CLASSES)}, got {command!r}")
    return CONFIG_CLASSES[command]


def training_command(values: Mapping[str, Any]) -> str:
    """Return the command that trained a run with these values in its `config.json`: `cfl`, `lm` or `mt`."""
    if "language" in values:
        return "cfl"
    return "mt" if "label_smoothing" in values.get("data", {}) else "lm"
