"""Starting a run from the weights of a saved model, for example to fine-tune it on other data."""

from __future__ import annotations

import filecmp
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from ..files import checksum
from ..models.saving import CONFIG, TENSORS, load
from .loop import Task
from .run import TrainingRun
from .run_files import RunError

NOT_ARCHITECTURE = (
    "dropout",
    "init_range",
    "xavier_layer",
    "stack_init",
)  # options that affect only training or initialisation


def find_origin(run: TrainingRun, folder: Path | None) -> dict[str, str] | None:
    """Return the origin of a run, the content of origin.json; None if the run starts from random weights.

    Args:
        run: the run, new or to be resumed.
        folder: folder of the saved model that was requested, or None.

    Raises:
        FileNotFoundError: `folder` is not the folder of a saved model.
        RunError: the run was started from another model or from random weights.
    """
    stored = run.origin()
    if folder is None:
        return stored if run.begun else None
    if not (folder / TENSORS).exists():
        expected = "expected the folder of a run or of a saved model"
        raise FileNotFoundError(f"--init-from: {expected}, found no {TENSORS} in {folder}")
    found = {"folder": str(folder.resolve()), "model": checksum(folder / TENSORS)}
    if not run.begun:
        return found
    if stored is None or (stored["folder"] != found["folder"] and stored["model"] != found["model"]):
        began = "random weights" if stored is None else stored["folder"]
        raise RunError(f"{run.folder}: the run started from {began}, not from {folder}; resume it without --init-from")
    return stored


def load_origin(model: nn.Module, task: Task, origin: dict[str, str]) -> None:
    """Copy the weights of the origin of a run to its model.

    Args:
        model: the model of the run.
        task: its task, whose vocabulary is compared with that of the origin.
        origin: the content of origin.json.

    Raises:
        RunError: the saved model has changed, or has another architecture or vocabulary.
    """
    folder = Path(origin["folder"])
    loaded = load(folder)
    if checksum(folder / TENSORS) != origin["model"]:
        raise RunError(f"{folder}: the model has changed since the run started from it; train in a new folder instead")
    if difference := _difference(loaded, model):
        raise RunError(f"{folder}: expected a model with the architecture of the configuration {difference}")
    with TemporaryDirectory() as name:
        task.save(model, Path(name))
        parts = sorted(path.name for path in Path(name).iterdir() if path.name not in (CONFIG, TENSORS))
        for part in parts:
            if not (folder / part).exists():
                raise RunError(f"{folder}: expected a model with the vocabulary of the data, found no {part}")
            if not filecmp.cmp(folder / part, Path(name) / part, shallow=False):
                raise RunError(f"{folder}: expected a model with the vocabulary of the data, found a different {part}")
    model.load_state_dict(loaded.state_dict())


def _difference(loaded: Any, model: Any) -> str | None:
    if type(loaded) is not type(model):
        return f"({type(model).__name__}), found {type(loaded).__name__}"
    for name in (field.name for field in fields(model.config)):
        found, wanted = getattr(loaded.config, name), getattr(model.config, name)
        if found != wanted and name not in NOT_ARCHITECTURE:
            return f"({name} {wanted!r}), found {name} {found!r}"
    return None
