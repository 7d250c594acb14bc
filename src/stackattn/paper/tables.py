"""Tables of results: printed, and written as Markdown, CSV and LaTeX to the folder of the runs."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..files import write_text

GROUPED_NUMBER = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
"""How to write special characters in LaTeX."""


def number(value: float | None, form: str) -> str:
    """The value as text in the format `form`; empty if it is None."""
    return "" if value is None else format(value, form)


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: str, out: Path) -> int:
    """Print a table and write it to `out` as NAME.md, NAME.csv and NAME.tex.

    Args:
        name: name of the files, without suffix.
        header: column titles, all different.
        rows: cells as text; the first two are the task and the model. Each task is printed as a table of its own.
        notes: text below the table; a comment above it in LaTeX; omitted in CSV.
        out: folder to write to.

    Returns:
        An exit code: 1 if there are no rows.
    """
    if not rows:
        print("no run has been evaluated yet, or none can be measured", file=sys.stderr)
        return 1
    widest = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    words = [max(map(len, column.split())) for column in header]
    needed = sum(max(pair) + 3 for pair in list(zip(widest, words, strict=True))[1:]) + 1
    for task in dict.fromkeys(row[0] for row in rows):
        table = Table(title=task, title_justify="left")
        for i, column in enumerate(header[1:], 1):
            # in a narrow terminal, headers wrap between words, and numbers do not wrap
            width = max(widest[i], words[i])
            table.add_column(column, min_width=width, justify="left" if column == "model" else "right")
        for row in rows:
            if row[0] == task:
                table.add_row(*row[1:])
        # Rich would leave out columns that do not fit; a line that the terminal wraps loses nothing.
        console = Console()
        console.print(table, width=max(needed, console.width), soft_wrap=True)
    print(textwrap.fill(notes, 100))
    out.mkdir(parents=True, exist_ok=True)
    path = out / name
    for suffix, text in (
        (".md", _markdown(header, rows, notes)),
        (".csv", _csv(header, rows)),
        (".tex", _latex(header, rows, notes)),
    ):
        write_text(path.with_suffix(suffix), text)
    print(f"written to {path}.md, .csv and .tex")
    return 0


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent p of the power law `value = c * size ** p` closest to the points; nan if a value is not positive.

    Example:
        >>> round(fitted_exponent([10, 20, 40], [3, 12, 48]), 6)
        2.0
    """
    if not all(value > 0 for value in values):
        return math.nan
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values]).slope


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], notes: str) -> str:
    lines = [header, ["---", "---", *["---:"] * (len(header) - 2)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{notes}\n"


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as CSV, with numbers that programs can read: without thousands separators."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([x.replace(",", "") if GROUPED_NUMBER.fullmatch(x) else x for x in row] for row in rows)
    return text.getvalue()


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]], notes: str) -> str:
    """The table as a LaTeX tabular, which needs the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return f"    {' & '.join(map(_escape, cells))} \\\\\n"

    body, last = "", rows[0][0]
    for row in rows:
        body += ("" if row[0] == last else "    \\midrule\n") + line(row)
        last = row[0]
    comment = "".join(f"% {part}\n" for part in textwrap.wrap(notes, 100))
    columns = "ll" + "r" * (len(header) - 2)
    return (
        f"{comment}\\begin{{tabular}}{{{columns}}}\n    \\toprule\n{line(header)}    \\midrule\n{body}"
        "    \\bottomrule\n\\end{tabular}\n"
    )


def _escape(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
