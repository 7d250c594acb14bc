"""The training loop: epochs of batches, evaluations, the learning-rate schedule, early stopping and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..ops.immediate import immediate_checks, reads_values
from .checkpoint import load_checkpoint, save_checkpoint
from .devices import autocast
from .environment import peak_memory
from .options import TrainingConfig
from .processes import Processes
from .run import TrainingRun
from .run_files import STATE, Progress, RunError
from .schedule import EarlyStopping, plateau_scheduler

NO_IMPROVEMENT = "no improvement"  # reason for early stopping
CHECKPOINT_SECONDS = 300.0  # time from a checkpoint until the next one is due


class Task(Protocol):
    """The interface of a task: batches, loss, evaluation and saving."""

    def epoch(self, generator: torch.Generator) -> Sequence[Any]:
        """Return the batches of one epoch in order."""
        ...

    def size(self, batch: Any) -> int:
        """Return the number of examples in a batch."""
        ...

    def share(self, batch: Any, rank: int, count: int) -> Any:
        """Return every `count`-th example of a batch, starting with example `rank`: the share of one process."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the examples of a batch."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return metrics on the validation set. `score` determines the schedule and early stopping; lower is better."""
        ...

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model, and everything needed to use it, such as its vocabulary, to a folder."""
        ...


class TrainingCallback(Protocol):
    """An object whose methods are called during training, for example to display progress."""

    def on_batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        """Called after each batch.

        Args:
            epoch: number of the epoch, counted from 0.
            done: number of completed batches of the epoch.
            total: number of batches of the epoch.
            loss: loss of the batch.
        """
        ...

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        """Called after each evaluation with its line in metrics.jsonl; `best` is whether it is the best so far."""
        ...


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: TrainingRun,
    state: dict[str, Any] | None = None,
    callback: TrainingCallback | None = None,
    deadline: float | None = None,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Train a model until its validation score stops improving or the last epoch ends.

    Args:
        model: the model, which is changed in place.
        task: batches, loss and evaluation.
        config: options of the training loop.
        run: the run, after `TrainingRun.start`; receives the evaluations, checkpoints and best model.
        state: counters of the checkpoint to resume from (see `TrainingRun.start`); None: start at the beginning.
        callback: called after each batch and evaluation.
        deadline: stop at this value of `time.monotonic()`, after at least one batch; the run can be resumed. If the
            model has not been evaluated yet, it is evaluated and saved first.
        processes: the processes that train the model; default: those of the environment, on the CPU.

    Returns:
        `stopped` (the reason), `best` (an evaluation, or None), `evaluations` and, if training has ended, `seconds`.

    Raises:
        RunError: the loss is not finite, a file cannot be written, or the checkpoint cannot be read.
    """
    training = _Training(model, task, config, run, callback, processes or Processes())
    training.begin(state)
    return training.loop(math.inf if deadline is None else deadline)


class _Training:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: TrainingRun,
        callback: TrainingCallback | None,
        processes: Processes,
    ):
        self.model, self.task, self.config, self.run, self.processes = model, task, config, run, processes
        self.parameters = list(model.parameters())
        self.callback = callback if processes.first else None
        self.parallel = processes.wrap(model)
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.learning_rate, fused=True)
        self.plateau = plateau_scheduler(self.optimizer, config.lr_factor, config.lr_patience, config.plateau)
        self.stopping = EarlyStopping(config.stop_patience)
        self.progress = Progress()

    def begin(self, state: dict[str, Any] | None) -> None:
        rank = self.processes.rank
        torch.manual_seed((self.config.shuffle_seed + rank * 1_000_000_007) % 2**63)  # dropout differs by process
        if state is not None:
            self.plateau.best, self.plateau.num_bad_epochs = state["plateau"]["best"], state["plateau"]["bad"]
            self.stopping.best, self.stopping.bad = state["stopping"]["best"], state["stopping"]["bad"]
            self.progress = Progress(**state["progress"])
            if self.progress.stopped == NO_IMPROVEMENT and not self.stopping.done:  # the patience has been raised
                self._advance(stopped=None)
            load_checkpoint(self.run.folder, self.model, self.optimizer, state, rank)
            self.rate = state["learning_rate"]
        self.began = time.monotonic() - self.progress.seconds
        self.cpu_began = time.process_time() - self.progress.cpu_seconds
        self.saved = time.monotonic()

    @property
    def rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    @rate.setter
    def rate(self, rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = rate

    def loop(self, deadline: float) -> dict[str, Any]:
        config = self.config
        while self.progress.epoch < config.max_epochs and self.progress.stopped is None:
            order = torch.Generator().manual_seed(_seed(config.shuffle_seed, self.progress.epoch))
            batches = self.task.epoch(order)
            every = self._interval(batches)
            while self.progress.batch < len(batches):
                now = time.monotonic()
                # Clocks differ between processes, so all processes must agree.
                late, due = self.processes.mean(now > deadline, now - self.saved > CHECKPOINT_SECONDS)
                self._step(batches[self.progress.batch], len(batches))
                epoch_ends = self.progress.batch == len(batches)
                ends = epoch_ends and self.progress.epoch + 1 == config.max_epochs
                if ends or (epoch_ends if every is None else self.progress.since_evaluation >= every):
                    self._evaluate(epoch_ends, every)
                    if self.progress.stopped is not None:
                        break
                elif late or due:
                    self._checkpoint(epoch_ends)
                if late:
                    best = self.progress.best if self.progress.evaluations else self._evaluate_provisionally()
                    return {"stopped": "deadline", "best": best, "evaluations": self.progress.evaluations}
            self._advance(epoch=self.progress.epoch + 1, batch=0)
        result = {
            "stopped": self.progress.stopped or "max_epochs",
            "evaluations": self.progress.evaluations,
            "best": self.progress.best,
            "seconds": round(self.progress.seconds, 2),
        }
        if self.processes.first:
            with self.run.writing():
                self.run.finish(result)
        return result

    def _advance(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)

    def _step(self, batch: Any, batches: int) -> None:
        """Perform one optimiser step."""
        started, processes, size = time.monotonic(), self.processes, self.task.size(batch)
        if not self.model.training:  # visiting all modules takes 1% of the time of a step of a small model
            self.model.train()
        value = self._gradients(batch, size)
        if not math.isfinite(value) and not reads_values(processes.device):
            with immediate_checks():  # raises if a value is invalid; otherwise computes with a larger range
                value = self._gradients(batch, size)
        if not math.isfinite(value):
            raise RunError(self._not_finite(value))
        nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        old = self.progress
        self._advance(
            batch=old.batch + 1,
            examples=old.examples + size,
            since_evaluation=old.since_evaluation + size,
            loss_sum=old.loss_sum + value,
            losses=old.losses + 1,
            train_seconds=old.train_seconds + time.monotonic() - started,
        )
        if self.callback is not None:
            self.callback.on_batch(old.epoch, old.batch + 1, batches, value)

    def _gradients(self, batch: Any, size: int) -> float:
        """Compute the gradients of a batch; return its loss, which is read last because reading synchronises a GPU."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch, size)
        loss.backward()
        return self.processes.mean(loss.item())[0]

    def _loss(self, batch: Any, size: int) -> Tensor:
        """The loss of this process's share, weighted so that the mean over processes is the loss of the batch."""
        rank, count = self.processes.rank, self.processes.count
        with autocast(self.processes.device, self.config.precision):
            if count == 1:
                return self.task.loss(self.parallel, batch)
            if rank >= size:  # no examples for this process, but all processes must take part in averaging gradients
                return 0 * self.task.loss(self.parallel, self.task.share(batch, 0, size))
            share = self.task.share(batch, rank, count)
            return self.task.loss(self.parallel, share) * (self.task.size(share) * count / size)

    def _interval(self, batches: Sequence[Any]) -> int | None:
        """The number of examples between evaluations; None: evaluate at the end of each epoch."""
        every = self.config.evaluate_every
        return None if every is None or sum(map(self.task.size, batches)) <= every else every

    def _measure(self) -> dict[str, Any]:
        """Evaluate the model; return the line for metrics.jsonl."""
        metrics = None
        if self.processes.first:
            self.model.eval()
            with torch.no_grad(), autocast(self.processes.device, self.config.precision):
                metrics = self.task.evaluate(self.model)
        metrics = self.processes.from_first(metrics)
        old = self.progress
        return {
            "evaluation": old.evaluations + 1,
            "epoch": old.epoch + 1,
            "examples": old.examples,
            "train_loss": old.loss_sum / old.losses,
            **metrics,
            "learning_rate": self.rate,
            "seconds": round(time.monotonic() - self.began, 2),
            "train_seconds": round(old.train_seconds, 2),
            "cpu_seconds": round(time.process_time() - self.cpu_began, 2),
            "memory": peak_memory(),
        }

    def _evaluate(self, epoch_ends: bool, every: int | None) -> None:
        values, old = self._measure(), self.progress
        self.plateau.step(values["score"])
        best = self.stopping.update(values["score"])
        stopped = NO_IMPROVEMENT if self.stopping.done else None
        self._advance(
            since_evaluation=old.since_evaluation % every if every else 0,
            loss_sum=0.0,
            losses=0,
            evaluations=old.evaluations + 1,
            best=values if best else old.best,
            stopped=stopped if math.isfinite(values["score"]) else "the validation score is not finite",
        )
        self._write(values, best)
        self._checkpoint(epoch_ends)
        if self.callback is not None:
            self.callback.on_evaluation(values, best)

    def _evaluate_provisionally(self) -> dict[str, Any] | None:
        """Evaluate and save the model after the checkpoint; resuming removes the evaluation and replaces the model."""
        values = self._measure()
        finite = math.isfinite(values["score"])
        self._write(values, finite)
        if self.callback is not None:
            self.callback.on_evaluation(values, finite)
        return values if finite else None

    def _write(self, values: dict[str, Any], best: bool) -> None:
        """Append an evaluation to the metrics; save the model if it is the best so far."""
        if self.processes.first:
            with self.run.writing():
                if best:
                    self.task.save(self.model, self.run.best_model)
                self.run.log(values)

    def _checkpoint(self, epoch_ends: bool) -> None:
        self._advance(seconds=time.monotonic() - self.began, cpu_seconds=time.process_time() - self.cpu_began)
        after = replace(self.progress, epoch=self.progress.epoch + 1, batch=0) if epoch_ends else self.progress
        state = {
            "plateau": {"best": self.plateau.best, "bad": self.plateau.num_bad_epochs},
            "stopping": {"best": self.stopping.best, "bad": self.stopping.bad},
            "progress": asdict(after),
            "learning_rate": self.rate,
            "metrics": self.progress.evaluations,
        }
        random_states = self.processes.random_states()
        if self.processes.first:
            with self.run.writing():
                save_checkpoint(self.run.folder, self.model, self.optimizer, state, random_states)
        self.saved = time.monotonic()

    def _not_finite(self, value: float) -> str:
        at = self.progress
        state = self.run.folder / STATE
        kept = f"{state.parent} contains the last checkpoint" if state.exists() else "there is no checkpoint yet"
        where = f"epoch {at.epoch + 1}, batch {at.batch + 1}"
        advice = f"train in another folder with a lower training.learning_rate ({kept})"
        return f"{self.run.folder}: expected a finite loss, got {value} at {where}; {advice}"


def _seed(seed: int, epoch: int) -> int:
    """The seed of an epoch; the order of its batches does not depend on earlier epochs."""
    return (seed * 1_000_003 + epoch) % 2**63
