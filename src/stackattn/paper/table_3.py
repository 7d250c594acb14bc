"""The paper's Table 3 (translation), from the runs that exist, beside the paper's numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..training import TrainingRun
from ..training.mt import read_sentence_pairs
from ..training.sweep import best_of
from ..training.translator import Translator, write_scores
from .cells import Cell
from .measurements import results_of_test
from .models import paper_count
from .names import LABELS, TRANSFORMERS
from .tables import number, publish

SEARCH = {"beam_size": 4, "max_tokens": 256}


class Paper(NamedTuple):
    """The paper's results for a model: parameters, validation perplexity and test BLEU."""

    parameters: int | None = None
    perplexity: float | None = None
    bleu: float | None = None


PAPER = {
    (tier, model): Paper(paper_count(f"mt-{tier}", LABELS[model]), *scores)
    for tier, results in {
        "160": ((12.52, 12.21), (11.94, 12.03), (13.00, 11.86)),
        "240": ((12.54, 12.11), (11.53, 12.81), (12.46, 11.50)),
        "360": ((11.80, 12.69), (12.03, 12.03), (12.54, 11.74)),
    }.items()
    for model, scores in zip(TRANSFORMERS, results, strict=True)
}
"""By tier and model. A tier is named after its d_model; the tier `small` is not in the paper."""


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the table, write it to `out` as `table-3`, and return an exit code: 1 if no run has been evaluated."""
    columns = [column for name in ("parameters", "perplexity", "BLEU") for column in (name, f"{name}, paper")]
    header = ["tier", "model", "runs", *columns]
    rows, signatures = [], set()
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        folder, best = found
        test, paper = results_of_test(folder, _measure, _used_paper_search), PAPER.get((cell.task, cell.model), Paper())
        signatures |= {test["bleu_signature"]} if "bleu_signature" in test else set()
        parameters = (number(x, ",") for x in (test.get("parameters"), paper.parameters))
        scores = best["perplexity"], paper.perplexity, test.get("bleu"), paper.bleu
        columns = *parameters, *(number(x, ".2f") for x in scores)
        rows.append([cell.task, LABELS[cell.model], str(cell.evaluated), *columns])
    notes = (
        "Each row is the best run by validation: perplexity on the validation set, BLEU on the test set"
        f"{''.join(f' ({x})' for x in sorted(signatures))}. "
        "The paper's corpus is Europarl v7; runs on another corpus cannot be compared with the paper's numbers."
    )
    return publish("table-3", header, rows, notes, out)


def _measure(folder: Path) -> None:
    test_set = read_sentence_pairs(folder)
    print(f"translating the test set with {folder}", file=sys.stderr, flush=True)
    scores, translations = Translator.load(folder, "cpu", **SEARCH).evaluate(*test_set)
    write_scores(
        folder / "test", {"split": "test", "model": TrainingRun(folder).model_checksum(), **scores}, translations
    )


def _used_paper_search(test: dict[str, Any]) -> bool:
    return all(test[key] == value for key, value in SEARCH.items())
