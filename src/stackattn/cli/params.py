"""Count the parameters of the paper's models, beside the paper's own counts; exit code 1 if one differs."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from stackattn.paper.models import ARCHITECTURES, COUNTS, count_parameters, paper_config

    table = Table("task", "model", title="Parameters of the paper's models", title_justify="left")
    for name in ("ours", "paper", ""):
        table.add_column(name, justify="right")
    equal = 0
    total = 0
    for task, counts in COUNTS.items():
        for architecture, paper in zip(ARCHITECTURES, counts, strict=True):
            if paper is None:
                continue
            ours = count_parameters(paper_config(task, architecture))
            total += 1
            equal += ours == paper
            mark = "equal" if ours == paper else f"differs by {ours - paper:+,}"
            table.add_row(task, architecture, f"{ours:,}", f"{paper:,}", mark)
        table.add_section()
    console = Console(highlight=False)
    console.print(table, markup=False)
    console.print(f"{equal} of {total} are equal.")
    return 0 if equal == total else 1
