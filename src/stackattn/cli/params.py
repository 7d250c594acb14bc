"""Count the parameters of the paper's 42 models and compare them with the counts in the paper's tables.

The exit code is 1 if a count differs.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..paper.models import count_parameters, paper_config, paper_models

    table = Table("table", "task", "model", title="Parameters of the paper's models", title_justify="left")
    for name in ("ours", "paper", ""):
        table.add_column(name, justify="right")
    differences = []
    shown = None
    for number, task, label, paper in paper_models():
        if shown not in (None, task):
            table.add_section()
        shown = task
        ours = count_parameters(paper_config(task, label))
        differences.append(ours - paper)
        result = "equal" if ours == paper else f"differs by {ours - paper:+,}"
        table.add_row(number, task, label, f"{ours:,}", f"{paper:,}", result)
    console = Console(highlight=False)
    console.print(table, markup=False)
    console.print(f"{differences.count(0)} of {len(differences)} counts match the paper.")
    return 1 if any(differences) else 0
