"""A table of results: printed, and written as Markdown beside the runs it is made of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..files import write_text


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: str, out: Path) -> int:
    """Rows begin with their task and their model. Returns an exit code: without a row there is nothing to show."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("no run has come to its first evaluation yet", file=sys.stderr)
        return 1
    for task in dict.fromkeys(row[0] for row in rows):
        table = Table(title=task, title_justify="left")
        for column in header[1:]:
            table.add_column(column, no_wrap=True, justify="left" if column == "model" else "right")
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
