"""The one training loop: epochs of batches, an evaluation now and then, and what follows from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .run import Run, RunError
from .schedule import EarlyStopping, Plateau


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. The defaults are the paper's for context-free languages."""

    learning_rate: float = 0.001
    max_epochs: int = 200
    clip: float = 5.0
    """Largest norm of the gradient of all parameters."""
    lr_factor: float = 0.9
    lr_patience: int = 5
    stop_patience: int = 10
    evaluate_every: int | None = None
    """Examples between two evaluations; None: one at the end of each epoch."""
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


class Watcher(Protocol):
    """Whoever shows the progress."""

    def batch(self, epoch: int, done: int, total: int, loss: float) -> None: ...

    def evaluation(self, values: dict[str, Any], best: bool) -> None: ...


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: Run,
    save_best: Callable[[nn.Module], object],
    state: dict[str, Any] | None = None,
    watcher: Watcher | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Train until it stops getting better, from the beginning or from a saved state. Returns the result.

    `deadline` (a `time.monotonic()`) ends the run early, after the evaluation that follows it: such a run is not
    finished, and can go on.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    plateau = Plateau(config.lr_factor, config.lr_patience, config.published)
    stopping = EarlyStopping(config.stop_patience)
    progress = {
        "epoch": 0,
        "batch": 0,
        "examples": 0,
        "since_evaluation": 0,
        "evaluations": 0,
        "best": None,
        "seconds": 0.0,
        "stopped": None,
    }
    if state is not None:
        run.load_checkpoint(model, optimizer, state)
        plateau, stopping, progress = Plateau(**state["plateau"]), EarlyStopping(**state["stopping"]), state["progress"]
        optimizer.param_groups[0]["lr"] = state["learning_rate"]
    else:
        torch.manual_seed(config.shuffle_seed)
    began = time.monotonic() - progress["seconds"]
    losses: list[float] = []
    while progress["epoch"] < config.max_epochs and progress["stopped"] is None:
        batches = task.epoch(torch.Generator().manual_seed(_seed(config.shuffle_seed, progress["epoch"])))
        while progress["batch"] < len(batches):
            batch = batches[progress["batch"]]
            model.train()
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(model, batch)
            value = loss.item()
            if not math.isfinite(value):
                where = f"epoch {progress['epoch'] + 1}, batch {progress['batch'] + 1}"
                last = f"{run.folder / 'last'} has the checkpoint of evaluation {progress['evaluations']}"
                good = last if progress["evaluations"] else "there is no checkpoint yet"
                raise RunError(f"{run.folder}: the loss is {value} at {where}; {good}. A lower learning rate may help.")
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            losses.append(value)
            progress["batch"] += 1
            progress["examples"] += task.size(batch)
            progress["since_evaluation"] += task.size(batch)
            if watcher is not None:
                watcher.batch(progress["epoch"], progress["batch"], len(batches), value)
            epoch_ends = progress["batch"] == len(batches)
            every = config.evaluate_every
            if not (epoch_ends if every is None else progress["since_evaluation"] >= every):
                continue
            progress["since_evaluation"] = progress["since_evaluation"] % every if every else 0
            model.eval()
            with torch.no_grad():
                figures = task.evaluate(model)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = rate * plateau.update(figures["score"])
            best = stopping.update(figures["score"])
            progress["evaluations"] += 1
            progress["seconds"] = time.monotonic() - began
            values = {
                "evaluation": progress["evaluations"],
                "epoch": progress["epoch"] + 1,
                "examples": progress["examples"],
                "train_loss": sum(losses) / len(losses),
                **figures,
                "learning_rate": rate,
                "seconds": round(progress["seconds"], 2),
            }
            losses = []
            if best:
                progress["best"] = values
            if not math.isfinite(figures["score"]):
                progress["stopped"] = "the validation score is not finite"
            elif stopping.done:
                progress["stopped"] = "no improvement"
            after = dict(progress)
            if epoch_ends:
                after.update(epoch=progress["epoch"] + 1, batch=0)
            state = {
                "plateau": asdict(plateau),
                "stopping": asdict(stopping),
                "progress": after,
                "learning_rate": optimizer.param_groups[0]["lr"],
                "metrics": progress["evaluations"],
            }
            with run.writing():
                if best:
                    save_best(model)
                run.log(values)
                run.save_checkpoint(model, optimizer, state)
            if watcher is not None:
                watcher.evaluation(values, best)
            if progress["stopped"] is not None:
                break
            if deadline is not None and time.monotonic() > deadline:
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


def _seed(seed: int, epoch: int) -> int:
    """Another stream for each epoch, so that an epoch's order needs no memory of the ones before."""
    return (seed * 1_000_003 + epoch) % 2**63
