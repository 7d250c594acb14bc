"""A table of results: printed, and written as Markdown beside the runs it is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from ..training import RunError, TrainingRun


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def measured(
    folder: Path, measure: Callable[[Path], None], usable: Callable[[dict[str, Any]], bool] = lambda test: True
) -> dict[str, Any]:
    """The test of a run's best model; `measure` writes it where there is none yet that is `usable`.

    Where that cannot be done, it is said why, and the rest is shown all the same. Without its model, what was measured
    before is kept.
    """
    run = TrainingRun(folder)
    test = run.test()
    if run.model_checksum() is None or (test is not None and usable(test)):
        return test or {}
    try:
        measure(folder)
    except (RunError, ValueError, OSError, ModuleNotFoundError) as error:
        print(f"no test of {folder}: {error}", file=sys.stderr)
        return {}
    return run.test() or {}


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: str, out: Path) -> int:
    """Rows begin with their task and their model. Returns an exit code: without a row there is nothing to show."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("no run has come to its first evaluation yet", file=sys.stderr)
        return 1
    for task in dict.fromkeys(row[0] for row in rows):
        table = Table(title=task, title_justify="left")
        for i, column in enumerate(header[1:], 1):
            widest = max(len(row[i]) for row in rows)  # where there is little room, headers wrap and numbers do not
            table.add_column(column, min_width=widest, justify="left" if column == "model" else "right")
        for row in rows:
            if row[0] == task:
                table.add_row(*row[1:])
        Console().print(table)
    print(notes)
    lines = [header, ["---", "---", *["---:"] * (len(header) - 2)], *rows]
    path = out / f"{name}.md"
    write_text(path, "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{notes}\n")
    print(f"written to {path}")
    return 0
