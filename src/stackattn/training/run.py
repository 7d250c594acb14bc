"""The folder of a training run: its files, its lock, and the rules for starting and resuming it.

    config.json        the configuration, with all defaults
    origin.json        the saved model from which the run started, if it did not start from random weights
    environment.json   versions, threads, hardware
    metrics.jsonl      one line for each evaluation
    last/              the last checkpoint, from which the run can be resumed
    best/              the model with the best validation score
    result.json        written at the end: a run that has it is finished
    test.json          results of the best model on test data, if it was tested
    metrics.csv, tensorboard/, wandb/   written by loggers, if requested
    lock               locked by the process that trains the run

Each file appears complete or not at all, except metrics.jsonl, which is appended to, and the files in tensorboard/ and
wandb/, which are also written incrementally. `last/state.json` stores the number of lines of metrics.jsonl that belong
to the checkpoint; later lines are removed when the run is resumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..compatibility import upgrade_run_config
from ..config import ConfigError, from_values, to_values
from ..files import FolderBusy, FolderLock, append_line, checksum, remove_partial, with_crc, write_json, write_text
from ..models.saving import TENSORS
from .environment import describe_environment
from .loggers import Logger, find_loggers
from .run_files import (
    BEST,
    CONFIG,
    ENVIRONMENT,
    LOCK,
    METRICS,
    ORIGIN,
    RESULT,
    STATE,
    TEST,
    RunBusy,
    RunError,
    complete_lines,
    damaged,
    read_metrics,
    read_object,
    read_origin,
    read_result,
    read_state,
    read_test,
)

T = TypeVar("T")
CHANGEABLE = tuple(f"training.{name}" for name in ("max_epochs", "stop_patience", "lr_patience", "evaluate_every"))
"""Keys of the configuration that may change when a run is resumed."""


class TrainingRun:
    """Reads and writes the folder of a run.

    Args:
        folder: the folder; it does not have to exist.
        log: names of loggers that receive the evaluations when the run is trained; see `loggers.LOGGERS`.

    Methods raise `RunError` if a file of the run is invalid, or `ConfigError` if this file is the configuration. The
    constructor raises ValueError if a logger is unknown, and ModuleNotFoundError if it needs a package that is not
    installed.

    Example:
        >>> TrainingRun("runs/dyck").metrics()[-1]["score"]  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, log: Sequence[str] = ()):
        self.folder = Path(folder)
        self._logger_classes = find_loggers(log)
        self._loggers: list[Logger] = []
        self._lock = FolderLock(self.folder / LOCK, self.folder)
        self._started = False

    @property
    def finished(self) -> bool:
        """Whether training has ended; such a run can only be resumed to extend it."""
        return (self.folder / RESULT).exists()

    @property
    def begun(self) -> bool:
        """Whether the folder contains a run."""
        return (self.folder / CONFIG).exists()

    def check(self, config: Any, resume: bool) -> dict[str, str]:
        """Raise RunError unless a run with this configuration can be started (or, with `resume`, resumed).

        When a run is resumed, the configuration may differ from that of the run in the keys `CHANGEABLE`.

        Returns:
            The keys of a resumed run in which the configuration differs, each with a message that shows both values.
        """
        if self.folder.is_file():
            raise RunError(f"{self.folder}: expected a folder, found a file; choose another folder")
        changes = self._changes(config) if resume and self.begun else {}
        if self.finished and not changes:
            extend = "extend it with --resume --set training.max_epochs=N or training.stop_patience=N"
            raise RunError(f"{self.folder} contains a finished run; {extend}, or choose another folder")
        if not self.begun:
            return changes
        if not resume:
            raise RunError(
                f"{self.folder} already contains a run; pass --resume to continue it, or choose another folder"
            )
        if fixed := [text for key, text in changes.items() if key not in CHANGEABLE]:
            raise RunError(
                f"{self.folder} contains a run with another configuration ({fixed[0]}); choose another folder, or "
                f"change only {', '.join(CHANGEABLE)}"
            )
        # A run that was killed before its first checkpoint has at most one evaluation; it is started again.
        if self.state() is None and (self.finished or len(self.metrics()) > 1 or (self.folder / TEST).exists()):
            reason = "the run has no checkpoint (last/), so it cannot be resumed"
            raise RunError(f"{self.folder}: {reason}; choose another folder to train it again")
        return changes

    def start(self, config: Any, resume: bool, origin: dict[str, str] | None = None) -> dict[str, Any] | None:
        """Create the folder if necessary, and lock it; return the state of the last checkpoint or, for a new run, None.

        `origin` is the saved model from which a new run starts; see `training.origin`. The other arguments and the
        errors are those of `check`; `RunBusy` is raised if another process is training the run. Call `check` first:
        `start` calls it only when the folder is locked, and locking creates the lock file if there is none.
        """
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            changes = self.check(config, resume)  # again: another process may have trained here in the meantime
            remove_partial(self.folder)
            state = self.state()
            self._cut_metrics(state["metrics"] if state else 0)
            self._open_loggers(to_values(config))
            write_json(self.folder / ENVIRONMENT, describe_environment())
            if not self.begun:
                write_json(self.folder / ORIGIN, origin) if origin else (self.folder / ORIGIN).unlink(missing_ok=True)
            # Before config.json is written: if the process is killed in between, `check` must still find the changes.
            (self.folder / RESULT).unlink(missing_ok=True)
            if not self.begun or changes:
                # Last: if a step above fails, there is no run yet, and the folder can be used again.
                write_json(self.folder / CONFIG, to_values(config))
            self._started = True
        return state

    def close(self) -> None:
        """Close the loggers and release the lock."""
        for logger in self._loggers:
            logger.close()
        self._loggers, self._started = [], False
        self._lock.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Convert an OSError, for example from a full disk, to a RunError; raise RunError if the folder was deleted."""
        present = self._lock.valid if self._lock.held else self.begun
        if self._started and not present:
            raise RunError(
                f"{self.folder}: the folder was deleted or replaced during training; restore it and pass --resume, or "
                "start a new run"
            )
        try:
            yield
        except OSError as error:
            path, reason = error.filename or self.folder, error.strerror or error
            if isinstance(error, (NotADirectoryError, FileExistsError)):
                advice = "a part of this path is a file; choose another folder"
            elif (self.folder / STATE).exists():
                to_continue = "pass --resume to continue from the last checkpoint"
                advice = f"free disk space or make the folder writable, then {to_continue}"
            else:
                advice = "free disk space, make the folder writable or choose another one"
            raise RunError(f"{path}: cannot write: {reason}; {advice}") from error

    def differs(self, config: Any) -> str | None:
        """Return the first key, with both values, in which a configuration differs from that of the run, or None."""
        return next(iter(self._changes(config).values()), None)

    def _changes(self, config: Any) -> dict[str, str]:
        """Return the keys in which a configuration differs from that of the run.

        Each key comes with a message that shows both values.
        """
        stored = from_values(type(config), self.config(), source=str(self.folder / CONFIG))  # adds missing keys
        return dict(_differences(to_values(stored), to_values(config)))

    def config(self) -> dict[str, Any]:
        """Return the configuration as nested dictionaries; old configurations are converted to the current options."""
        return upgrade_run_config(read_object(self.folder / CONFIG))

    def origin(self) -> dict[str, str] | None:
        """Return the `folder` and checksum (`model`) of the saved model that the run started from, or None."""
        return read_origin(self.folder / ORIGIN)

    def result(self) -> dict[str, Any]:
        """Return the result of training: `stopped` (why), `evaluations`, `best` (an evaluation) and `seconds`."""
        return read_result(self.folder / RESULT)

    @property
    def best_model(self) -> Path:
        """Folder of the best model; it does not exist before the first evaluation with a finite score."""
        return self.folder / BEST

    def environment(self) -> dict[str, Any]:
        """Return the versions, threads and hardware of the machine on which the run was last trained."""
        return read_object(self.folder / ENVIRONMENT)

    def model_checksum(self) -> str | None:
        """Return the checksum of the best model, or None if there is none; test.json has that of the tested model."""
        path = self.best_model / TENSORS
        return checksum(path) if path.exists() else None

    @property
    def without_model(self) -> str:
        """Why the run has no best model; empty if it has one."""
        if (self.best_model / TENSORS).exists():
            return ""
        metrics = self.metrics()
        if any(math.isfinite(values["score"]) for values in metrics):
            return "model not kept"
        return "no finite score" if metrics else "no evaluation yet"

    def test(self) -> dict[str, Any] | None:
        """Return the results of the best model on test data; None if there are none or they belong to another model."""
        path = self.folder / TEST
        if not path.exists():
            return None
        found, model = read_test(path), self.model_checksum()
        return found if model is None or found.get("model") == model else None

    def write_test(self, results: dict[str, Any]) -> Path:
        """Write results of the best model on test data to test.json and return the path; `test` reads them."""
        write_json(self.folder / TEST, results)
        return self.folder / TEST

    def metrics(self) -> list[dict[str, Any]]:
        """Return the evaluations; the list is empty before the first one."""
        if self.finished:
            known, source = self.result()["evaluations"], RESULT
        else:
            known, source = (self.state() or {"metrics": 0})["metrics"], STATE
        rows = read_metrics(self.folder / METRICS)
        if len(rows) < known:
            expected = f"expected {known} or more evaluations, as stated in {source}"
            raise RunError(f"{self.folder / METRICS}: {expected}, found {len(rows)}; restore the file from a copy")
        return rows

    def best_evaluation(self) -> dict[str, Any] | None:
        """Return the first evaluation with the lowest score; None if no score is finite."""
        return best_of_evaluations(self.metrics())

    def state(self) -> dict[str, Any] | None:
        """Return the content of last/state.json, or None if there is no checkpoint."""
        return read_state(self.folder)

    def seconds(self) -> float:
        """Return the training time up to the last checkpoint in seconds, including all earlier sessions."""
        state = self.state()
        return state["progress"]["seconds"] if state else 0.0

    def log(self, values: dict[str, Any]) -> None:
        """Append an evaluation to metrics.jsonl and pass it to the loggers."""
        append_line(self.folder / METRICS, json.dumps(with_crc(values)))
        for logger in self._loggers:
            logger.log(values)

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json."""
        write_json(self.folder / RESULT, result)

    def _cut_metrics(self, count: int) -> None:
        """Remove the lines after the checkpoint and an incomplete last line."""
        path = self.folder / METRICS
        lines = complete_lines(path)
        if len(lines) < count:
            reason = f"expected {count} or more complete lines in {METRICS}, found {len(lines)}"
            raise RunError(damaged(self.folder, f"{self.folder / STATE}: {reason}"))
        write_text(path, "".join(f"{line}\n" for line in lines[:count]))

    def _open_loggers(self, config: dict[str, Any]) -> None:
        metrics = self.metrics()  # also without loggers, so that damaged lines are reported before training continues
        for logger_class in self._logger_classes:
            self._loggers.append(logger_class(self.folder, config))
            for values in metrics:
                self._loggers[-1].log(values)

    def _take_lock(self) -> None:
        try:
            self._lock.acquire()
        except FolderBusy:
            raise RunBusy(
                f"{self.folder}: another process is training this run; wait for it to end, or choose another folder"
            ) from None


def config_of(cls: type[T], folder: str | Path, overrides: Sequence[str] = ()) -> T:
    """Read the configuration of a run.

    Args:
        cls: class of the configuration.
        folder: folder of the run.
        overrides: changes such as `"training.max_epochs=5"`.

    Raises:
        RunError: the file cannot be read.
        ConfigError: it is not a configuration of class `cls`, or a change is invalid.
    """
    run = TrainingRun(folder)
    values, source = run.config(), str(run.folder / CONFIG)
    try:
        config = from_values(cls, values, source=source)
    except ConfigError as error:
        raise ConfigError(f"{error} (does the run belong to another command?)") from None
    return from_values(cls, values, list(overrides), source) if overrides else config


def model_folder(folder: str | Path) -> Path:
    """Return the folder of the best model of a run; any other folder is returned unchanged.

    Raises:
        RunError: the run has no best model.
    """
    run = TrainingRun(folder)
    if run.best_model.is_dir():
        return run.best_model
    if any((run.folder / name).exists() for name in (ENVIRONMENT, METRICS)):
        raise RunError(
            f"{folder}: the run has no best model ({run.without_model}); choose another run or train a new one"
        )
    return run.folder


def best_of_evaluations(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first evaluation with the lowest score; None if no score is finite."""
    finite = (values for values in rows if math.isfinite(values["score"]))
    return min(finite, key=lambda values: values["score"], default=None)


def ending(result: Mapping[str, Any]) -> str:
    """Return how a run ended, in words, from its result; see `TrainingRun.result`."""
    return "reached max_epochs" if result["stopped"] == "max_epochs" else result["stopped"]


def _differences(stored: Any, given: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys in which two configurations differ, each with a message that shows both values."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in [*stored, *(key for key in given if key not in stored)]:
            yield from _differences(stored.get(key), given.get(key), f"{prefix}.{key}" if prefix else key)
    elif stored != given:
        yield prefix, f"{prefix}: {stored!r} in the run, {given!r} requested"
