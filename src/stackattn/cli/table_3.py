"""The paper's table of translation models from the runs that exist, beside the paper's numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.curves import LABELS
from ..training import Run
from ..training.sweep import best_of
from .reproduce import Cell
from .tables import number, publish

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
    header = ["tier", "model", "runs", "parameters", "perplexity", "paper", "BLEU", "paper"]
    rows, signatures = [], set()
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        test, paper = _test(folder), PAPER.get((cell.task, cell.model), (None, None))
        signatures |= {test["bleu_signature"]} if "bleu_signature" in test else set()
        numbers = best["perplexity"], paper[0], test.get("bleu"), paper[1]
        parameters = number(test.get("parameters"), ",")
        rows.append([cell.task, LABELS[cell.model], str(cell.begun), parameters, *(number(x, ".2f") for x in numbers)])
    notes = (
        "The best run of each: perplexity on validation, BLEU on test"
        f"{''.join(f' ({x})' for x in sorted(signatures))}. "
        "The paper's corpus is Europarl v7; runs on another one cannot be compared with its numbers."
    )
    return publish("table-3", header, rows, notes, out)


def _test(folder: Path) -> dict[str, Any]:
    """The test of a run's best model, made if that was not done yet. Without the model the test is kept as it is."""
    run = Run(folder)
    if run.test() is None and (model := run.model_checksum()):
        from ..training.mt import read_test_set
        from ..training.translator import Translator, write_scores

        print(f"translating the test set with {folder}", file=sys.stderr, flush=True)
        scores, translations = Translator.load(folder).evaluate(*read_test_set(folder))
        write_scores(folder / "test", {"split": "test", "model": model, **scores}, translations)
    return run.test() or {}
