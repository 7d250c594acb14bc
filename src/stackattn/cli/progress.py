"""Progress of training runs and other long work: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Lines:
    """Prints one line per evaluation of a run."""

    def __init__(self, name: str):
        self.name = name

    def on_batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        pass

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        self.show(f"{self.name}  {summary(values)}{'  (best)' if best else ''}")

    def show(self, line: str) -> None:
        print(line, flush=True)


class Bar(Lines):
    """One bar per epoch and one line per evaluation; with `epochs`, one bar for all epochs and no lines."""

    def __init__(self, name: str, progress: Any, epochs: int | None = None):
        super().__init__(name)
        self.progress, self.epochs = progress, epochs
        self.task = progress.add_task(name, total=None, speed="", figures="")
        self.validation = ""

    def on_batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        speed = next(task.speed for task in self.progress.tasks if task.id == self.task)
        self.progress.update(
            self.task,
            description=f"{self.name} epoch {epoch + 1}",
            completed=done + (epoch * total if self.epochs else 0),
            total=total * (self.epochs or 1),
            figures=f"loss {loss:.3f}{self.validation}",
            speed=f"{speed:.1f} batches/s" if speed else "",
        )

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        self.validation = f"  {_headline(values)}"
        if self.epochs is None:
            super().on_evaluation(values, best)
            self.progress.reset(self.task, speed="", figures="")

    def show(self, line: str) -> None:
        self.progress.console.print(line, highlight=False, markup=False)


class ProgressDisplay:
    """Creates the callbacks that display runs; used as a context manager."""

    def __init__(self) -> None:
        self.progress: Any = None
        self.bars: dict[str, Bar] = {}
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            fields = [TextColumn(f"{{task.fields[{name}]}}") for name in ("speed", "figures")]
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            self.progress = Progress(*columns, fields[0], TimeRemainingColumn(), fields[1])

    def __enter__(self) -> ProgressDisplay:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.progress is not None:
            self.progress.stop()

    def __call__(self, name: str, epochs: int | None = None) -> Lines:
        if self.progress is None:
            return Lines(name)
        self.bars[name] = Bar(name, self.progress, epochs)
        return self.bars[name]

    def done(self, name: str, line: str) -> None:
        """Replace the bar of a finished run by a line."""
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name).task)
        self.progress.console.print(line, highlight=False, markup=False) if self.progress else print(line, flush=True)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """Iterate over the items, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, what, total, console=console, transient=True, disable=not console.is_terminal)


def summary(values: dict[str, Any]) -> str:
    parts = [f"epoch {values['epoch']:3d}", f"loss {values['train_loss']:.4f}", _headline(values)]
    return "  ".join([*parts, f"lr {values['learning_rate']:.2g}", f"{values['seconds']:.0f} s"])


def outcome(name: object, result: dict[str, Any]) -> str:
    """Return one line that says how a run ended."""
    best = result.get("best")
    return f"{name}: {result['stopped']}" + (f"  {_headline(best)} (epoch {best['epoch']})" if best else "")


def _headline(values: dict[str, Any]) -> str:
    from ..training.experiment import headline

    name, value = headline(values)
    return f"{name} {value:.4f}"
