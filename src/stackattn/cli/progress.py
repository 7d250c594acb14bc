"""How a training run is shown: a bar with speed and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any


class Lines:
    """One line for each evaluation."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        pass

    def evaluation(self, values: dict[str, Any], best: bool) -> None:
        print(f"{self.name}  {summary(values)}{'  (best)' if best else ''}", flush=True)


class Bar(Lines):
    def __init__(self, name: str):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(name)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(
            *columns, TextColumn("{task.fields[speed]}"), TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
        )
        self.task = self.progress.add_task(name, speed="", loss="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        speed = self.progress.tasks[0].speed
        self.progress.update(
            self.task,
            description=f"{self.name} epoch {epoch + 1}",
            completed=done,
            total=total,
            loss=f"loss {loss:.3f}",
            speed=f"{speed:.1f} batches/s" if speed else "",
        )

    def evaluation(self, values: dict[str, Any], best: bool) -> None:
        self.progress.console.print(f"{self.name}  {summary(values)}{'  (best)' if best else ''}", highlight=False)
        self.progress.reset(self.task, speed="", loss="")


def summary(values: dict[str, Any]) -> str:
    parts = [f"epoch {values['epoch']:3d}", f"loss {values['train_loss']:.4f}"]
    if "cross_entropy_difference" in values:
        parts.append(f"difference {values['cross_entropy_difference']:.4f}")
    else:
        parts.append(f"score {values['score']:.4f}")
    return "  ".join([*parts, f"lr {values['learning_rate']:.2g}", f"{values['seconds']:.0f} s"])


def watcher(name: str) -> Lines:
    return Bar(name) if sys.stdout.isatty() else Lines(name)
