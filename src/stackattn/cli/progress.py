"""Progress of training runs and other long operations: bars on a terminal, elsewhere a line at least once a minute."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
HEARTBEAT_SECONDS = 60.0
NAMED_RUNS = 4  # maximum number of runs that a heartbeat describes; the others are only counted


class Heartbeat:
    """Prints a line when nothing has been shown for `HEARTBEAT_SECONDS`; used as a context manager.

    Args:
        describe: returns the line; an empty one is not printed.
        file: where to print (default: standard output).
    """

    def __init__(self, describe: Callable[[], str], file: Any = None):
        self.describe, self.file = describe, file
        self.shown = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(max(0.0, self.shown + HEARTBEAT_SECONDS - time.monotonic())):
            if time.monotonic() < self.shown + HEARTBEAT_SECONDS:  # a line was shown in the meantime
                continue
            if line := self.describe():
                try:
                    print(line, file=self.file, flush=True)
                except BrokenPipeError:  # the command ends when it prints its next line
                    return
            self.shown = time.monotonic()


class Lines:
    """Prints one line per evaluation of a run, unless `evaluations` is False."""

    def __init__(self, name: str, show: Callable[[str], None], evaluations: bool = True):
        self.name, self.show, self.evaluations = name, show, evaluations
        self.status = f"{name}  starting"

    def on_batch(self, epoch: int, done: int, total: int, loss: float) -> None:
        self.status = f"{self.name}  epoch {epoch + 1:3d}  batch {done} of {total}  loss {loss:.4f}"

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        if self.evaluations:
            self.show(f"{self.name}  {summary(values)}{'  (best)' if best else ''}")


class Bar(Lines):
    """One bar per epoch and one line per evaluation; with `epochs`, one bar for all epochs and no lines."""

    def __init__(self, name: str, show: Callable[[str], None], progress: Any, epochs: int | None = None):
        super().__init__(name, show, epochs is None)
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
        super().on_evaluation(values, best)
        if self.epochs is None:
            self.progress.reset(self.task, speed="", figures="")


class ProgressDisplay:
    """Creates the callbacks that display runs; used as a context manager."""

    def __init__(self) -> None:
        self.progress: Any = None
        self.heartbeat = Heartbeat(self._status)
        self.running: dict[str, Lines] = {}
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            fields = [TextColumn(f"{{task.fields[{name}]}}") for name in ("speed", "figures")]
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            self.progress = Progress(*columns, fields[0], TimeRemainingColumn(), fields[1])

    def __enter__(self) -> ProgressDisplay:
        self.heartbeat.__enter__() if self.progress is None else self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.heartbeat.__exit__() if self.progress is None else self.progress.stop()

    def __call__(self, name: str, epochs: int | None = None, evaluations: bool = True) -> Lines:
        """Return the callback of a run.

        Args:
            name: name of the run.
            epochs: on a terminal, show one bar for this number of epochs and no lines for evaluations.
            evaluations: without a terminal, print a line for each evaluation.
        """
        if self.progress is None:
            self.running[name] = Lines(name, self.show, evaluations)
        else:
            self.running[name] = Bar(name, self.show, self.progress, epochs)
        return self.running[name]

    def show(self, line: str) -> None:
        if self.progress is not None:
            self.progress.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)
            self.heartbeat.shown = time.monotonic()

    def done(self, name: str, line: str) -> None:
        """Replace the bar of a finished run with a line."""
        found = self.running.pop(name, None)
        if isinstance(found, Bar):
            self.progress.remove_task(found.task)
        self.show(line)

    def _status(self) -> str:
        running = list(self.running.values())
        shown = [lines.status for lines in running[:NAMED_RUNS]]
        return "\n".join([*shown, *([f"and {len(running) - NAMED_RUNS} more"] * (len(running) > NAMED_RUNS))])


@contextmanager
def status(text: str) -> Generator[Callable[[str], None]]:
    """Show what is being done: a spinner on a terminal, a line per minute elsewhere, on standard error.

    Yields:
        A function that replaces the text.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(escape(text)) as spinner:
            yield lambda text: spinner.update(escape(text))
        return

    def update(new: str) -> None:
        nonlocal text
        text = new

    with Heartbeat(lambda: f"{text} ...", sys.stderr):
        yield update


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """Iterate over the items, with a progress bar on a terminal and a line per minute elsewhere, on standard error."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        return track(items, what, total, console=console, transient=True)
    return _counted(items, what, total)


def _counted(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    done, total = 0, len(items) if total is None and isinstance(items, Sized) else total
    with Heartbeat(lambda: f"{what}: {done:,}{'' if total is None else f' of {total:,}'}", sys.stderr):
        for item in items:
            yield item
            done += 1


def summary(values: dict[str, Any]) -> str:
    """Return one line that describes an evaluation."""
    parts = [f"epoch {values['epoch']:3d}", f"loss {values['train_loss']:.4f}", _headline(values)]
    return "  ".join([*parts, f"lr {values['learning_rate']:.2g}", f"{values['seconds']:.0f} s"])


def outcome(name: object, result: dict[str, Any]) -> str:
    """Return one line that says how a run ended."""
    from ..training.run import ending

    best = result.get("best")
    return f"{name}: {ending(result)}" + (f", best {_headline(best)} (epoch {best['epoch']})" if best else "")


def _headline(values: dict[str, Any]) -> str:
    from ..training.metrics import headline

    name, value = headline(values)
    return f"{name} {value:.4f}"
