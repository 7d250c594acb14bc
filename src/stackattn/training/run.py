"""A run is a folder: what was asked for, on what machine, what came out, and enough to go on after being killed.

    config.json        the configuration
    environment.json   versions, threads, hardware
    metrics.jsonl      one line for each evaluation
    last/              the checkpoint to go on from (model, optimiser, counters)
    best/              the model with the best validation score
    result.json        written at the end: a run that has it is finished

Each file appears whole or not at all. `last/state.json` says how many lines of metrics.jsonl belong to it; what was
written after it is cut off when the run goes on.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..files import write_atomically, write_json, write_text


class RunError(RuntimeError):
    """A run that cannot start, go on or be read; the message has the folder and what to do."""


class Run:
    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def start(self, config: dict[str, Any], resume: bool) -> dict[str, Any] | None:
        """Make or enter the folder. Returns the state to go on from, or None at the beginning."""
        if self.finished:
            raise RunError(f"{self.folder}: this run is finished; choose another folder")
        exists = (self.folder / "config.json").exists()
        if exists and not resume:
            raise RunError(f"{self.folder}: there is a run already; go on with --resume or choose another folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not exists:
                write_json(self.folder / "config.json", config)
            elif self._read("config.json") != config:
                raise RunError(f"{self.folder}: the run there has another configuration; choose another folder")
            write_json(self.folder / "environment.json", environment())
            state = self._read("last/state.json") if (self.folder / "last/state.json").exists() else None
            self._cut_metrics(state["metrics"] if state else 0)
        except OSError as error:
            raise RunError(f"{self.folder}: cannot write: {error.strerror or error}") from None
        return state

    def config(self) -> dict[str, Any]:
        return self._read("config.json")

    def result(self) -> dict[str, Any]:
        return self._read("result.json")

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # what has no newline behind it was never finished

    def log(self, values: dict[str, Any]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_checkpoint(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """The state names its tensor files, so the one rename of state.json moves from one checkpoint to the next."""
        last = self.folder / "last"
        last.mkdir(exist_ok=True)
        name = f"{state['evaluations']:05d}.safetensors"
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, values in optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in values.items()})
        tensors["rng"] = torch.get_rng_state()
        _save(tensors, last / name)
        write_json(last / "state.json", {**state, "tensors": name})
        for old in last.glob("*.safetensors"):
            if old.name != name:
                old.unlink()

    def load_checkpoint(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        path = self.folder / "last" / state["tensors"]
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"{path}: the checkpoint cannot be read: {error}; remove {path.parent} to start again"
            ) from None
        model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        saved = optimizer.state_dict()
        saved["state"] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, i, name = key.split(".")
                saved["state"].setdefault(int(i), {})[name] = value
        optimizer.load_state_dict(saved)
        torch.set_rng_state(tensors["rng"])

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.folder / "result.json", result)

    def _cut_metrics(self, lines: int) -> None:
        path = self.folder / "metrics.jsonl"
        kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines] if path.exists() else []
        write_text(path, "".join(kept))

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path}: no such file; is {self.folder} the folder of a run?") from None
        except json.JSONDecodeError as error:
            raise RunError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    contiguous = {k: v.detach().contiguous() for k, v in tensors.items()}
    write_atomically(path, lambda partial: save_file(contiguous, partial))


def environment() -> dict[str, Any]:
    from .. import __version__
    from ..ops import backends

    return {
        "stackattn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "backends": backends(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
