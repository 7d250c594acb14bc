"""The one training loop: epochs of batches, an evaluation now and then, and what follows from it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .run import Run, RunError, peak_memory
from .schedule import EarlyStopping, Plateau

CHECKPOINT_SECONDS = 300.0  # where evaluations are rare, no more than this is lost by a run that is killed


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. The defaults are the paper's for context-free languages."""

    learning_rate: float = 0.001
    learning_rates: tuple[float, float] = (5e-4, 1e-2)
    """The range that restarts draw theirs from."""
    max_epochs: int = 200
    clip: float = 5.0
    """Largest norm of the gradient of all parameters."""
    lr_factor: float = 0.9
    lr_patience: int = 5
    stop_patience: int = 10
    evaluate_every: int | None = None
    """Examples between two evaluations (and one at the very end); None: one at the end of each epoch."""
    published: bool = False
    """Count patience as the published code does, see `Plateau`."""
    init_seed: int = 0
    shuffle_seed: int = 0
    """For the order of the batches and for dropout."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "lr_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        for name in ("max_epochs", "lr_patience", "stop_patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rates[0] <= self.learning_rates[1]:
            raise ValueError(f"learning_rates: expected the smallest and the largest, got {list(self.learning_rates)}")


class Task(Protocol):
    """What the loop needs to know of a task."""

    def epoch(self, generator: torch.Generator) -> Sequence[Any]:
        """The batches of one epoch, in their order."""
        ...

    def size(self, batch: Any) -> int:
        """Examples in a batch."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures of the validation set. `score` decides: lower is better."""
        ...

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model and all that it needs to be used, such as a vocabulary, into a folder."""
        ...


class Watcher(Protocol):
    """Whoever shows the progress."""

    def batch(self, epoch: int, done: int, total: int, loss: float) -> None: ...

    def evaluation(self, values: dict[str, Any], best: bool) -> None: ...


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: Run,
    state: dict[str, Any] | None = None,
    watcher: Watcher | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Train until it stops getting better, from the beginning or from a saved state. Returns the result.

    `deadline` (a `time.monotonic()`) ends the run early, after at least one batch: such a run is not finished, and can
    go on.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    plateau = Plateau(config.lr_factor, config.lr_patience, config.published)
    stopping = EarlyStopping(config.stop_patience)
    progress = {
        "epoch": 0,
        "batch": 0,
        "examples": 0,
        "since_evaluation": 0,  # examples
        "losses": [0.0, 0],  # their sum and number since the evaluation
        "evaluations": 0,
        "best": None,
        "seconds": 0.0,
        "train_seconds": 0.0,  # without evaluations and checkpoints
        "stopped": None,
    }
    if state is not None:
        run.load_checkpoint(model, optimizer, state)
        plateau, stopping, progress = Plateau(**state["plateau"]), EarlyStopping(**state["stopping"]), state["progress"]
        optimizer.param_groups[0]["lr"] = state["learning_rate"]
    else:
        torch.manual_seed(config.shuffle_seed)
    began = time.monotonic() - progress["seconds"]
    saved = time.monotonic()

    def checkpoint(epoch_ends: bool) -> None:
        nonlocal saved
        progress["seconds"] = time.monotonic() - began
        after = {**progress, "epoch": progress["epoch"] + 1, "batch": 0} if epoch_ends else progress
        state = {
            "plateau": asdict(plateau),
            "stopping": asdict(stopping),
            "progress": after,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "metrics": progress["evaluations"],
        }
        run.save_checkpoint(model, optimizer, state)
        saved = time.monotonic()

    while progress["epoch"] < config.max_epochs and progress["stopped"] is None:
        batches = task.epoch(torch.Generator().manual_seed(_seed(config.shuffle_seed, progress["epoch"])))
        while progress["batch"] < len(batches):
            batch = batches[progress["batch"]]
            started = time.monotonic()
            value = _step(model, task, batch, optimizer, config.clip)
            if not math.isfinite(value):
                raise RunError(_not_finite(value, progress, run))
            progress["train_seconds"] += time.monotonic() - started
            progress["losses"] = [progress["losses"][0] + value, progress["losses"][1] + 1]
            progress["batch"] += 1
            progress["examples"] += task.size(batch)
            progress["since_evaluation"] += task.size(batch)
            if watcher is not None:
                watcher.batch(progress["epoch"], progress["batch"], len(batches), value)
            epoch_ends = progress["batch"] == len(batches)
            ends = epoch_ends and progress["epoch"] + 1 == config.max_epochs
            every = config.evaluate_every
            late = deadline is not None and time.monotonic() > deadline
            if ends or (epoch_ends if every is None else progress["since_evaluation"] >= every):
                progress["since_evaluation"] = progress["since_evaluation"] % every if every else 0
                model.eval()
                with torch.no_grad():
                    figures = task.evaluate(model)
                rate = optimizer.param_groups[0]["lr"]
                optimizer.param_groups[0]["lr"] = rate * plateau.update(figures["score"])
                best = stopping.update(figures["score"])
                progress["evaluations"] += 1
                values = {
                    "evaluation": progress["evaluations"],
                    "epoch": progress["epoch"] + 1,
                    "examples": progress["examples"],
                    "train_loss": progress["losses"][0] / progress["losses"][1],
                    **figures,
                    "learning_rate": rate,
                    "seconds": round(time.monotonic() - began, 2),
                    "train_seconds": round(progress["train_seconds"], 2),
                    "memory": peak_memory(),
                }
                progress["losses"] = [0.0, 0]
                if best:
                    progress["best"] = values
                if not math.isfinite(figures["score"]):
                    progress["stopped"] = "the validation score is not finite"
                elif stopping.done:
                    progress["stopped"] = "no improvement"
                with run.writing():
                    if best:
                        task.save(model, run.folder / "best")
                    run.log(values)
                    checkpoint(epoch_ends)
                if watcher is not None:
                    watcher.evaluation(values, best)
                if progress["stopped"] is not None:
                    break
            elif late or time.monotonic() - saved > CHECKPOINT_SECONDS:
                with run.writing():
                    checkpoint(epoch_ends)
            if late:
                return {"stopped": "deadline", "best": progress["best"], "evaluations": progress["evaluations"]}
        progress["epoch"] += 1
        progress["batch"] = 0
    result = {
        "stopped": progress["stopped"] or "max_epochs",
        "evaluations": progress["evaluations"],
        "best": progress["best"],
        "seconds": round(progress["seconds"], 2),
    }
    with run.writing():
        run.finish(result)
    return result


def _step(model: nn.Module, task: Task, batch: Any, optimizer: torch.optim.Optimizer, clip: float) -> float:
    """One step of the optimiser, if the loss is finite. Returns the loss."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    loss = task.loss(model, batch)
    value = loss.item()
    if math.isfinite(value):
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return value


def _not_finite(value: float, progress: dict[str, Any], run: Run) -> str:
    where = f"epoch {progress['epoch'] + 1}, batch {progress['batch'] + 1}"
    last = f"{run.folder / 'last'} has the checkpoint of evaluation {progress['evaluations']}"
    good = last if progress["evaluations"] else "there is no checkpoint yet"
    return f"{run.folder}: the loss is {value} at {where}; {good}. A lower learning rate may help."


def _seed(seed: int, epoch: int) -> int:
    """Another stream for each epoch, so that an epoch's order needs no memory of the ones before."""
    return (seed * 1_000_003 + epoch) % 2**63
