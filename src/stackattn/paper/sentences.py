"""Small language models of sentences: perplexity of all restarts, and subject-verb agreement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..training import TrainingRun
from ..training.lm import load_language_model, subject_verb_agreement
from ..training.sweep import best_of
from .cells import Cell
from .measurements import measured_once, results_of_test
from .names import ALL_LABELS
from .table_2 import write_test
from .tables import number, publish

PAIRS = 500
"""Minimal pairs for each condition of the test of subject-verb agreement."""
FILE = "subject-verb.json"


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print the tables of perplexity and of agreement, and write them to `out` as `sentences` and `subject-verb`.

    Returns:
        An exit code: 1 if no run has been evaluated.
    """
    header = ["task", "model", "finished", "params", "test", "best", "median", "worst"]
    rows = []
    for cell in cells:
        if (found := best_of(cell.folders)) is None:
            continue
        test = results_of_test(found[0], write_test)
        figures = [number(test.get("parameters"), ","), number(test.get("perplexity"), ".2f")]
        rows.append([cell.task, ALL_LABELS[cell.model], cell.finished, *figures, *cell.restarts("perplexity", ".2f")])
    notes = (
        "Perplexities, EOS counted: of the best run by validation on the test set, and of the restarts on the "
        "validation set, with the initial learning rate and the number of epochs. An asterisk marks a run that is not "
        "finished. Restarts with the same number have the same rate and seeds in all models."
    )
    if code := publish("sentences", [*header, "restarts (rate: perplexity, epochs)"], rows, notes, out):
        return code
    return _show_agreement(cells, out)


def _show_agreement(cells: Sequence[Cell], out: Path) -> int:
    measured = [
        (cell, folder, conditions)
        for cell in cells
        for folder in cell.folders
        if (conditions := measured_once(folder, FILE, _measure).get("conditions"))
    ]
    if not measured:
        return 0
    header = ["task", "model", "run", "finished", *map(_condition, measured[0][2])]
    rows = [
        [cell.task, ALL_LABELS[cell.model], folder.name, "yes" if TrainingRun(folder).finished else "no"]
        + [f"{condition['accuracy']:.3f}" for condition in conditions]
        for cell, folder, conditions in measured
    ]
    notes = (
        "Share of sentences in which the verb that agrees with the subject is more probable than the verb that does "
        f"not, on {PAIRS} sentences for each condition. A condition is the number of nouns between subject and verb. "
        "These nouns have the grammatical number of the subject or, if they are called misleading, the other number. "
        "Guessing gives 0.5."
    )
    return publish("subject-verb", header, rows, notes, out)


def _condition(condition: dict[str, Any]) -> str:
    misleading = ", misleading" if condition["misleading"] else ""
    return f"{condition['attractors']}{misleading}"


def _measure(folder: Path) -> dict[str, Any]:
    model, vocabulary = load_language_model(folder)
    return {"conditions": subject_verb_agreement(model, vocabulary, PAIRS)}
