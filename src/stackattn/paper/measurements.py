"""Measurements of a run's best model, which are made when they are needed and stored in the folder of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import write_json
from ..lines import read_json_object
from ..training import RunError, TrainingRun


def results_of_test(
    folder: Path, measure: Callable[[Path], None], usable: Callable[[dict[str, Any]], bool] = lambda test: True
) -> dict[str, Any]:
    """The contents of `test.json`, measured now if necessary.

    If the results cannot be measured, the reason is printed and an empty dictionary is returned, so that the other rows
    are still shown. For a run whose model was not kept, the stored results are returned.

    Args:
        folder: run folder.
        measure: evaluates the best model and writes `test.json`; called if there are no usable results.
        usable: returns whether stored results were measured in the way that the table needs.
    """
    run = TrainingRun(folder)
    found: dict[str, Any] = {}

    def read_or_measure() -> None:
        test = run.test()
        if run.model_checksum() is not None and (test is None or not usable(test)):
            measure(folder)
            test = run.test()
        found.update(test or {})

    return found if _succeeds(folder, read_or_measure) else {}


def measured_once(folder: Path, file: str, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The contents of a JSON file of measurements, measured now unless the file belongs to the run's best model.

    Like `results_of_test`, it returns an empty dictionary if nothing can be measured, and the stored measurements if
    the model was not kept.

    Args:
        folder: run folder.
        file: name of a JSON file in the folder; its key `model` is the checksum of the measured model.
        measure: returns the measurements of the best model; nothing is stored if they are empty.
    """
    path, checksum = folder / file, TrainingRun(folder).model_checksum()
    found: dict[str, Any] = {}

    def read_or_measure() -> None:
        if path.exists():
            found.update(read_json_object(path))
        if checksum is not None and found.get("model") != checksum:
            found.clear()
            found.update(measure(folder))
            if found:
                found["model"] = checksum
                write_json(path, found)

    return found if _succeeds(folder, read_or_measure) else {}


def _succeeds(folder: Path, measure: Callable[[], None]) -> bool:
    """Whether a measurement succeeds; prints the reason if it does not."""
    try:
        measure()
    except (RunError, ValueError, OSError, ModuleNotFoundError) as error:
        print(f"no results for {folder}: {error}", file=sys.stderr)
        return False
    return True
