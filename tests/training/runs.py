"""Shared helpers: tiny runs, and ways to interrupt and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from stackattn.config import from_values
from stackattn.training import TrainingRun, run_experiment
from stackattn.training.cfl import CFLConfig

LANGUAGE = {
    "name": "unmarked-reversal",
    "lengths": [4, 8],
    "train_batches": 6,
    "validation_batches": 4,
    "batch_size": 4,
}
MODELS = {
    "transformer": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2, "dropout": 0.3},
    "lstm": {"kind": "lstm", "hidden_size": 6, "stack": "superposition-3"},
}
TRAINING = {"learning_rate": 0.02, "max_epochs": 3, "lr_patience": 1, "shuffle_seed": 5}


class Stopper:
    """Callback that calls `action` after evaluation number `at`."""

    def __init__(self, at, action):
        self.at, self.action = at, action

    def on_batch(self, epoch, done, total, loss):
        pass

    def on_evaluation(self, values, best):
        if values["evaluation"] == self.at:
            self.action()


class Killed(BaseException):
    pass


def stop():
    raise Killed


def tiny(model: str = "lstm", language: dict[str, Any] | None = None, **training: Any) -> CFLConfig:
    values = {
        "language": {**LANGUAGE, **(language or {})},
        "model": MODELS[model],
        "training": {**TRAINING, **training},
    }
    return from_values(CFLConfig, values)


def lines(folder: Path) -> int:
    """Return the number of complete lines in metrics.jsonl."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def outcome(folder: Path) -> tuple[Any, ...]:
    """Return everything that must be reproducible: metrics and result without times and memory, and the best model."""
    run = TrainingRun(folder)
    result = run.result()
    times = ("seconds", "train_seconds", "cpu_seconds", "memory")
    metrics = [{k: v for k, v in row.items() if k not in times} for row in [*run.metrics(), result["best"]]]
    model = {k: v.tolist() for k, v in load_file(folder / "best/model.safetensors").items()}
    return metrics, result["stopped"], result["evaluations"], model


def train_in_process(config: CFLConfig, folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    run_experiment(config, folder, resume=True)
