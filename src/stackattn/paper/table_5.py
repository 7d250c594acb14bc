"""The paper's Table 5 (parameter counts on context-free languages), beside the counts of this package's models."""

from __future__ import annotations

from pathlib import Path

from .models import TABLE_5, count_parameters, paper_config
from .tables import publish


def show(out: Path) -> int:
    """Print the table, write it to `out` as `table-5`, and return an exit code: 1 if a count differs."""
    rows = [
        [task, label, f"{count_parameters(paper_config(task, label)):,}", f"{paper:,}"]
        for task, counts in TABLE_5.items()
        for label, paper in counts.items()
    ]
    different = sum(ours != paper for *_, ours, paper in rows)
    notes = f"{len(rows) - different} of {len(rows)} counts match the paper."
    return publish("table-5", ["task", "model", "parameters", "parameters, paper"], rows, notes, out) or int(
        different > 0
    )
