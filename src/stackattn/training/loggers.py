"""Loggers: write the evaluations of a run as CSV, for TensorBoard or for Weights & Biases.

A logger is opened when a run starts or resumes and then receives all evaluations from the first one on. Its record is
therefore complete even if the logger was added to the run later, or if the process was killed after an evaluation was
written but before the logger received it.
"""

from __future__ import annotations

import csv
import io
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..extras import import_extra
from ..files import write_text
from .run_files import RunError


class Logger(Protocol):
    """Receives the evaluations of a run.

    Args:
        folder: folder of the run.
        config: configuration of the run as nested dictionaries.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None: ...

    @staticmethod
    def check() -> None:
        """Raise ModuleNotFoundError if a package that the logger needs is not installed."""
        ...

    def log(self, values: dict[str, Any]) -> None:
        """Record an evaluation, given its line in metrics.jsonl."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class CSVLogger:
    """Writes metrics.csv, with one row for each evaluation."""

    def __init__(self, folder: Path, config: dict[str, Any]):
        self.path = folder / "metrics.csv"
        self.rows: list[dict[str, Any]] = []

    @staticmethod
    def check() -> None:
        pass

    def log(self, values: dict[str, Any]) -> None:
        self.rows.append(values)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in self.rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_text(self.path, text.getvalue())

    def close(self) -> None:
        pass


class TensorBoardLogger:
    """Writes scalars to the folder `tensorboard`; the step is the number of the evaluation."""

    def __init__(self, folder: Path, config: dict[str, Any]):
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        # Earlier event files are superseded, because all evaluations are written again.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self.started: float | None = None

    @staticmethod
    def check() -> None:
        import_extra("tensorboard", "tensorboard", "--log tensorboard")

    def log(self, values: dict[str, Any]) -> None:
        if self.started is None:
            self.started = time.time() - values["seconds"]
        for name, value in _numbers(values).items():
            self.writer.add_scalar(name, value, values["evaluation"], walltime=self.started + values["seconds"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """Sends the evaluations to Weights & Biases, to the project `stackattn` unless WANDB_PROJECT names another.

    With WANDB_MODE=offline, they are written to the folder `wandb`, for `wandb sync`.
    """

    def __init__(self, folder: Path, config: dict[str, Any]):
        wandb = import_extra("wandb", "wandb", "--log wandb")
        local = folder / "wandb"
        local.mkdir(exist_ok=True)
        if not (local / "id").exists():  # a resumed run continues its record
            write_text(local / "id", secrets.token_hex(8))
        try:
            self.run = wandb.init(
                project=wandb.setup().settings.project or "stackattn",
                name=folder.resolve().name,
                dir=folder,
                id=(local / "id").read_text(encoding="utf-8"),
                resume="allow",
                config=config,
                settings=wandb.Settings(console="off"),  # capturing the console would record the progress bars
            )
        except wandb.errors.Error as error:
            advice = "set WANDB_MODE=offline to write to the folder of the run only"
            raise RunError(f"--log wandb: Weights & Biases could not be started: {error}; {advice}") from error
        self.next_step = self.run.step

    @staticmethod
    def check() -> None:
        import_extra("wandb", "wandb", "--log wandb")

    def log(self, values: dict[str, Any]) -> None:
        if values["evaluation"] >= self.next_step:
            self.run.log(_numbers(values), step=values["evaluation"])

    def close(self) -> None:
        self.run.finish()


LOGGERS: dict[str, type[Logger]] = {"csv": CSVLogger, "tensorboard": TensorBoardLogger, "wandb": WandbLogger}
"""The loggers by name, as in `--log`."""


def find_loggers(names: Sequence[str]) -> list[type[Logger]]:
    """Return the classes of the loggers with these names, without duplicates.

    Raises:
        ValueError: a name is not one of `LOGGERS`.
        ModuleNotFoundError: a logger needs a package that is not installed.
    """
    found = []
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise ValueError(f"log: expected one of {', '.join(LOGGERS)}, got {name!r}")
        LOGGERS[name].check()
        found.append(LOGGERS[name])
    return found


def _numbers(values: dict[str, Any]) -> dict[str, int | float]:
    return {name: x for name, x in values.items() if isinstance(x, int | float) and name != "evaluation"}
