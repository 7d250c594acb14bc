"""Tables of results: printed, and written as Markdown to the folder of the runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from ..training import RunError, TrainingRun


def number(value: float | None, form: str) -> str:
    """A formatted number; empty if there is none."""
    return "" if value is None else format(value, form)


def measured(
    folder: Path, measure: Callable[[Path], None], usable: Callable[[dict[str, Any]], bool] = lambda test: True
) -> dict[str, Any]:
    """The test results of a run's best model, measured now if necessary.

    If the results cannot be measured, the reason is printed and an empty dictionary returned, so that the other rows
    are still shown. A run whose model was not kept returns its stored results.

    Args:
        folder: run folder.
        measure: evaluates the best model and writes `test.json`; called if there are no usable results.
        usable: returns whether stored results were measured in the way that the table needs.
    """
    run = TrainingRun(folder)
    test = run.test()
    if run.model_checksum() is None or (test is not None and usable(test)):
        return test or {}
    try:
        measure(folder)
    except (RunError, ValueError, OSError, ModuleNotFoundError) as error:
        print(f"no test results for {folder}: {error}", file=sys.stderr)
        return {}
    return run.test() or {}


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: str, out: Path) -> int:
    """Print a table and write it to `out` as NAME.md.

    Args:
        name: name of the file.
        header: column titles.
        rows: cells as text; the first two are the task and the model. Each task is printed as a table of its own.
        notes: text below the table.
        out: folder to write to.

    Returns:
        An exit code: 1 if there are no rows.
    """
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("no run has been evaluated yet", file=sys.stderr)
        return 1
    for task in dict.fromkeys(row[0] for row in rows):
        table = Table(title=task, title_justify="left")
        for i, column in enumerate(header[1:], 1):
            widest = max(len(row[i]) for row in rows)  # in a narrow terminal, headers wrap and numbers do not
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
