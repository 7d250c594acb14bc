"""Reading and validating single files of a run. Invalid files raise `RunError`, which names the file, line and key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ..files import check_crc
from ..lines import decode_text, read_json_object

# Names of the files and folders of a run; the docstring of run.py describes their content.
CONFIG, ORIGIN, ENVIRONMENT, METRICS = "config.json", "origin.json", "environment.json", "metrics.jsonl"
RESULT, TEST = "result.json", "test.json"
LAST, BEST, LOCK = "last", "best", "lock"
STATE = f"{LAST}/state.json"


class RunError(RuntimeError):
    """A run that cannot be started, resumed or read. The message names the folder or file."""


class RunBusy(RunError):
    """Another process is training the run."""


@dataclass(frozen=True)
class Progress:
    """The counters of the training loop, which state.json stores under `progress`."""

    epoch: int = 0
    """Completed epochs."""
    batch: int = 0
    """Completed batches of the current epoch."""
    examples: int = 0
    """Examples in all completed batches."""
    since_evaluation: int = 0
    """Examples since the last evaluation."""
    loss_sum: float = 0.0
    """Sum of the losses of the batches since the last evaluation."""
    losses: int = 0
    """Number of batches in `loss_sum`."""
    evaluations: int = 0
    """Number of evaluations."""
    best: dict[str, Any] | None = None
    """The evaluation with the best score."""
    seconds: float = 0.0
    """Wall-clock time of training, in all sessions."""
    train_seconds: float = 0.0
    """The part of `seconds` that was spent on training steps, without evaluations and checkpoints."""
    cpu_seconds: float = 0.0
    """CPU time of training, in all sessions: unlike `seconds`, it does not depend on other work on the machine."""
    stopped: str | None = None
    """Why training ended before `max_epochs`; None if it did not."""


Check = tuple[str, Callable[[Any], bool]]
"""A description of the expected value, and a predicate that tests it."""

NUMBER: Check = "a number", lambda x: isinstance(x, int | float) and not isinstance(x, bool)
COUNT: Check = "an integer of at least 0", lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 0
TEXT: Check = "text", lambda x: isinstance(x, str)
OBJECT: Check = "an object", lambda x: isinstance(x, dict)
OBJECTS: Check = "a list of objects", lambda x: isinstance(x, list) and all(isinstance(row, dict) for row in x)
TENSOR_FILE: Check = (
    "the name of a safetensors file",
    lambda x: isinstance(x, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", x, re.ASCII) is not None,
)


def _or_null(check: Check) -> Check:
    return f"{check[0]} or null", lambda x: x is None or check[1](x)


EVALUATION: Mapping[str, Check] = {
    "evaluation": COUNT,
    "epoch": COUNT,
    "examples": COUNT,
    "train_loss": NUMBER,
    "score": NUMBER,
    "learning_rate": NUMBER,
    "seconds": NUMBER,
}
STATE_KEYS: Mapping[str, Check] = {
    "plateau": OBJECT,
    "stopping": OBJECT,
    "progress": OBJECT,
    "learning_rate": NUMBER,
    "metrics": COUNT,
    "tensors": TENSOR_FILE,
}
COUNTER: Mapping[str, Check] = {"best": NUMBER, "bad": COUNT}
BY_TYPE = {int: COUNT, float: NUMBER, dict[str, Any] | None: _or_null(OBJECT), str | None: _or_null(TEXT)}
PROGRESS: Mapping[str, Check] = {name: BY_TYPE[hint] for name, hint in get_type_hints(Progress).items()}
RESULT_KEYS: Mapping[str, Check] = {
    "stopped": TEXT,
    "evaluations": COUNT,
    "best": _or_null(OBJECT),
    "seconds": NUMBER,
}
LENGTH_KEYS: Mapping[str, Check] = {
    "length": COUNT,
    **dict.fromkeys(("cross_entropy", "lower_bound", "difference"), NUMBER),
    "difference_from_floor": _or_null(NUMBER),
}


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise RunError if the file is missing or invalid."""
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; check that {path.parent} is the folder of a run") from None
    except NotADirectoryError:
        raise RunError(f"{path.parent}: expected the folder of a run, found a file") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise RunError(str(error)) from None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the evaluations in metrics.jsonl; a last line without a newline is incomplete and ignored."""
    rows = []
    for number, line in enumerate(complete_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{where}: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise RunError(f"{where}: expected an object, got {type(values).__name__}")
        try:
            rows.append(_check_evaluation(check_crc(values, where), where))
        except ValueError as error:
            raise RunError(str(error)) from None
        if rows[-1]["evaluation"] != number:
            raise RunError(
                f"{where}: expected evaluation {number}, got {rows[-1]['evaluation']}; a line is missing or repeated"
            )
    return rows


def complete_lines(path: Path) -> list[str]:
    """Return the lines of a text file that end with a newline; an empty list if the file does not exist."""
    try:
        return decode_text(path.read_bytes(), str(path)).split("\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise RunError(str(error)) from None


def _unreadable(path: Path, error: OSError) -> RunError:
    return RunError(f"{path}: cannot read: {error.strerror}")


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the last checkpoint of a run, or None if there is no checkpoint."""
    path = folder / STATE
    if not path.exists():
        return None
    try:
        state = _check(read_object(path), STATE_KEYS, str(path))
        _check(state["plateau"], COUNTER, str(path), "plateau.")
        _check(state["stopping"], COUNTER, str(path), "stopping.")
        # Old checkpoints do not contain the CPU time; with one thread, `seconds` is an upper bound on it.
        state["progress"].setdefault("cpu_seconds", state["progress"].get("seconds"))
        _check(state["progress"], PROGRESS, str(path), "progress.")
        if unknown := sorted(state["progress"].keys() - PROGRESS):
            raise RunError(f"{path}: unknown key {'progress.' + unknown[0]!r}")
        if state["progress"]["best"] is not None:
            _check_evaluation(state["progress"]["best"], str(path), "progress.best.")
    except RunError as error:
        raise RunError(damaged(folder, error)) from None
    return state


def read_result(path: Path) -> dict[str, Any]:
    """Return the content of result.json."""
    result = _check(read_object(path), RESULT_KEYS, str(path))
    if result["best"] is not None:
        _check_evaluation(result["best"], str(path), "best.")
    return result


def read_origin(path: Path) -> dict[str, str] | None:
    """Return the content of origin.json, or None if there is no such file."""
    return _check(read_object(path), {"folder": TEXT, "model": TEXT}, str(path)) if path.exists() else None


def read_test(path: Path) -> dict[str, Any]:
    """Return the content of test.json: results with a perplexity, or by length for context-free languages."""
    test = read_object(path)
    if "perplexity" in test:
        return _check(test, {"perplexity": NUMBER}, str(path))
    _check(test, {"lengths": OBJECTS, "per_length": COUNT}, str(path))
    for i, row in enumerate(test["lengths"]):
        _check(row, LENGTH_KEYS, str(path), f"lengths.{i}.")
    return test


def damaged(folder: Path, reason: object) -> str:
    """Return the error message for a run that cannot be resumed because a file is damaged or missing."""
    return f"{reason}; the run cannot be resumed: restore the file from a copy, or remove {folder} to start again"


def _check_evaluation(values: dict[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    _check(values, EVALUATION, where, prefix)
    return _check(values, dict.fromkeys(values, _or_null(NUMBER)), where, prefix)


def _check(values: dict[str, Any], expected: Mapping[str, Check], where: str, prefix: str = "") -> dict[str, Any]:
    for key, (name, holds) in expected.items():
        if key not in values:
            raise RunError(f"{where}: missing key {prefix + key!r}")
        if not holds(values[key]):
            raise RunError(f"{where}: {prefix}{key}: expected {name}, got {repr(values[key])[:80]}")
    return values
