"""The paper's table of translation models from the runs that exist, beside the paper's numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.curves import LABELS
from ..files import write_json
from ..training.sweep import best_of
from .reproduce import Cell, tested

PAPER = {
    ("160", "tf"): (12.52, 12.21),
    ("160", "tf-sup"): (11.94, 12.03),
    ("160", "tf-nd"): (13.00, 11.86),
    ("240", "tf"): (12.54, 12.11),
    ("240", "tf-sup"): (11.53, 12.81),
    ("240", "tf-nd"): (12.46, 11.50),
    ("360", "tf"): (11.80, 12.69),
    ("360", "tf-sup"): (12.03, 12.03),
    ("360", "tf-nd"): (12.54, 11.74),
}
"""Validation perplexity and test BLEU of a tier and model. The tiers are named after d_model; the small one is ours."""


def show(cells: Sequence[Cell], out: Path) -> int:
    lines = [line for cell in cells if (line := _line(cell)) is not None]
    if not lines:
        print("no run has come to its first evaluation yet", file=sys.stderr)
        return 1
    _table(lines)
    write_json(out / "table-3.json", lines)
    print("The paper's corpus is Europarl v7; runs on another one cannot be compared with its numbers.")
    print(f"written to {out / 'table-3.json'}")
    return 0


def _line(cell: Cell) -> dict[str, Any] | None:
    if (found := best_of(cell.folders)) is None:
        return None
    folder, best = found
    paper = PAPER.get((cell.task, cell.model), (None, None))
    return {
        "tier": cell.task,
        "model": cell.model,
        "restarts": cell.begun,
        "run": folder.name,
        "perplexity": best["perplexity"],
        "paper_perplexity": paper[0],
        **_test(folder),
        "paper_bleu": paper[1],
    }


def _test(folder: Path) -> dict[str, Any]:
    """Parameters of a run's best model, and its BLEU, measured if that was not done yet. Without the model the test
    is kept as it is."""
    path = folder / "test.json"
    if not tested(folder) and (folder / "best/model.safetensors").exists():
        from ..training.mt import read_test_set
        from ..training.translator import Translator, write_scores

        print(f"translating the test set with {folder}", file=sys.stderr, flush=True)
        scores, translations = Translator.load(folder).evaluate(*read_test_set(folder))
        write_scores(folder / "test", {"split": "test", **scores}, translations)
    test = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {key: test.get(key) for key in ("parameters", "bleu", "bleu_signature")}


def _table(lines: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The best restart of each: perplexity on validation, BLEU on test", title_justify="left")
    for name in ("tier", "model", "runs", "parameters", "perplexity", "paper", "BLEU", "paper"):
        table.add_column(name, no_wrap=True, justify="left" if name == "model" else "right")
    tier = lines[0]["tier"]
    for line in lines:
        if line["tier"] != tier:
            table.add_section()
            tier = line["tier"]
        numbers = ("perplexity", "paper_perplexity", "bleu", "paper_bleu")
        table.add_row(
            tier,
            LABELS[line["model"]],
            str(line["restarts"]),
            "" if line["parameters"] is None else f"{line['parameters']:,}",
            *("" if line[name] is None else f"{line[name]:.2f}" for name in numbers),
        )
    Console().print(table)
