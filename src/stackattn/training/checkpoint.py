"""Checkpoints: the model, the optimiser, the random states and the counters of a run, stored in its folder `last`.

`state.json` contains the name and the checksum of its tensor file, so replacing state.json switches atomically from one
checkpoint to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..files import checksum, write_json, write_tensors
from .devices import restore_random_state
from .run_files import LAST, STATE, RunError, damaged


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    random_states: Sequence[Tensor],
) -> None:
    """Write the checkpoint of a run and remove the previous one.

    Args:
        folder: the folder of the run.
        model: the model.
        optimizer: its optimiser.
        state: the counters; see `run_files.STATE_KEYS`.
        random_states: states of the random generators, one for each process that trains the model.
    """
    last = folder / LAST
    last.mkdir(exist_ok=True)
    name = f"{state['progress']['examples']:09d}.safetensors"
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    for i, values in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{i}.{key}": torch.as_tensor(value) for key, value in values.items()})
    tensors.update({f"rng.{rank}": value for rank, value in enumerate(random_states)})
    write_tensors(last / name, tensors)
    write_json(folder / STATE, {**state, "tensors": name, "checksum": checksum(last / name)})
    for old in last.glob("*.safetensors"):
        if old.name != name:
            old.unlink()


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], rank: int = 0
) -> None:
    """Restore the model, the optimiser and the random generator from the checkpoint that `state` belongs to.

    Args:
        folder: the folder of the run.
        model: receives the saved weights.
        optimizer: receives the saved moments.
        state: the content of state.json.
        rank: rank of this process, which selects its random state.

    Raises:
        RunError: the tensor file is missing or damaged, or does not belong to the model.
    """
    path = folder / LAST / state["tensors"]
    try:
        if state.get("checksum") not in (None, checksum(path)):
            raise ValueError("its content does not match the checksum in state.json")
        tensors = load_file(path)
        model.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("model.")})
        saved = optimizer.state_dict()
        saved["state"] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, i, name = key.split(".")
                saved["state"].setdefault(int(i), {})[name] = value
        optimizer.load_state_dict(saved)
        if f"rng.{rank}" in tensors or rank == 0:  # fewer processes may have written the checkpoint
            restore_random_state(tensors[f"rng.{rank}"], next(model.parameters()).device)
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise RunError(damaged(folder, f"{path}: {error}")) from error
