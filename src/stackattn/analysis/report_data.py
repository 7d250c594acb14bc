"""The data of the HTML report: a study as lists and dictionaries for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..ops import AutomatonRun
from .labelled_strings import BATCH_SIZE, BATCHES, DERIVED_STRINGS
from .loaded_runs import LanguageRun, LoadedRun
from .real_stack import REAL_TOP
from .sentences import TracedSentence
from .strings import TracedStack, TracedString
from .study import StudiedRun, Study
from .traces import StackTrace, SuperpositionTrace

LONGEST_SPLIT = 128  # length in symbols; maps of single states and stack symbols of longer strings take too much space
COLUMNS = {  # columns of the table of runs, with their CSS classes
    "run": "",
    "model": "",
    "difference": "number",
    "perplexity": "number",
    "real top": "number",
    "best run": "number",
    "state": "",
    "language": "",
    "lengths": "number",
    "corpus": "",
    "layers": "long",
    "parameters": "number",
    "learning rate": "number",
    "epoch": "number",
    "minutes": "number",
}


def page_data(study: Study, command: str = "") -> dict[str, Any]:
    """Return all data of the page; `command` is the command line that makes the page."""
    runs = [_run_data(studied, study) for studied in study.runs]
    tiles = _tiles(study.runs[0]) if study.single else _sweep_tiles(study)
    lede = f"{_lede(study)} {study.omitted}".strip()
    if study.damaged:
        lede += f" Runs that could not be analysed: {', '.join(study.damaged)}."
    return {
        "title": _title(study),
        "lede": lede,
        "sentences": _only_sentences(study),
        "tiles": tiles,
        "columns": list(COLUMNS.items()),
        "baselines": [
            {"language": task, "row": _baseline_row(task, name, shares)} for task, name, *shares in study.baselines()
        ],
        "tableNote": _table_note(study),
        "curveNote": _curve_note(study),
        "made": f"Made by stackattn {__version__}"
        + (f": {command}" if command else f", seed {study.seed}, from {study.folder}"),
        "runs": runs,
    }


def _title(study: Study) -> str:
    """What is compared: the models and their tasks."""
    runs = [studied.run for studied in study.runs]
    models = _listed([run.label for run in runs], 4, "models")
    what = "languages" if all(isinstance(run, LanguageRun) for run in runs) else "tasks"
    tasks = _listed([run.data_name.replace("-", " ") for run in runs], 2, what)
    return f"{models} on {tasks}" + ("" if study.single else f": {len(runs)} runs")


def _listed(names: Sequence[str], most: int, what: str) -> str:
    """The distinct names as text, or their number if there are more than `most`."""
    names = list(dict.fromkeys(names))
    if len(names) > most:
        return f"{len(names)} {what}"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _only_sentences(study: Study) -> bool:
    """Whether all runs read sentences of a corpus, not strings of a language."""
    return not any(isinstance(studied.run, LanguageRun) for studied in study.runs)


def _lede(study: Study) -> str:
    """Two sentences: what the page shows, and how to read it."""
    how = (
        "Step through a {text} with the arrow keys or the buttons: for each {token} that the model reads, the panels "
        "show what it does with its stack, what is on the stack, and what it predicts next."
    )
    runs = [studied.run for studied in study.runs]
    sentences = _only_sentences(study)
    how = how.format(text="sentence" if sentences else "string", token="token" if sentences else "symbol")
    has_stack = any(string.stacks for studied in study.runs for string in studied.strings)
    if study.single:
        what = f"This page shows the stack of one model: run {runs[0].name}, trained on {runs[0].trained_on}."
        without = f"Results of run {runs[0].name}, trained on {runs[0].trained_on}. It has no stack to step through."
    else:
        what = f"This page shows the stack of each model’s best training run, and the results of all {len(runs)} runs."
        without = f"Results of {len(runs)} runs. None of them has a stack to step through."
    return f"{what} {how}" if has_stack else without


def _table_note(study: Study) -> str:
    runs, notes = [studied.run for studied in study.runs], []
    if any(isinstance(run, LanguageRun) for run in runs):
        notes.append(
            "Difference: cross-entropy minus that of the language’s own distribution on the same validation strings, "
            f"in nats per symbol, at the best epoch. Real top: {REAL_TOP}; over {BATCHES * BATCH_SIZE} strings with "
            f"training lengths. {study.without_real_stack} Best run: share of steps, over {DERIVED_STRINGS} strings, "
            "at which the automaton’s run with the largest weight agrees with the most probable derivation about the "
            "top of the stack. A model with several stacks has one value per stack. All runs on a language are "
            "compared on the same strings. So are the two baselines, which do not depend on the language: one "
            "pushes every symbol and never pops, the other stays empty."
        )
    if not all(isinstance(run, LanguageRun) for run in runs):
        notes.append("Perplexity: on the validation set, at the best evaluation; EOS counts as a token.")
    return " ".join(notes)


def _curve_note(study: Study) -> str:
    runs, notes = [studied.run for studied in study.runs], []
    if any(isinstance(run, LanguageRun) for run in runs):
        notes.append(
            "Cross-entropy on validation strings minus that of the language itself, in nats per symbol. A perfect "
            "model is at 0."
        )
    if not all(isinstance(run, LanguageRun) for run in runs):
        notes.append("Cross-entropy on the validation set of a corpus, in nats per token.")
    return " ".join(notes)


def _baseline_row(task: str, name: str, shares: Sequence[float | None]) -> list[str]:
    real, derived = ("" if share is None else f"{share:.1%}" for share in shares)
    return _row({"run": f"a stack that {name}", "language": task, "real top": real, "best run": derived})


def _row(values: dict[str, str]) -> list[str]:
    return [values.get(column, "") for column in COLUMNS]


def _run_data(studied: StudiedRun, study: Study) -> dict[str, Any]:
    run, (curve, curve_name) = studied.run, studied.run.CURVE
    finite = [row for row in run.metrics if math.isfinite(row[curve])]
    values = {
        "run": run.name,
        "model": run.label,
        "real top": ", ".join(f"{found.share:.1%}" for found in studied.agreement.values()),
        "best run": ", ".join(f"{found.share:.1%}" for found in studied.derivation.values()),
        "layers": run.layers,
        "parameters": "" if studied.parameters is None else f"{studied.parameters:,}",
        "learning rate": f"{run.config.training.learning_rate:.2g}",
        "minutes": f"{run.metrics[-1]['seconds'] / 60:.1f}" if run.metrics else "",
        "state": ", ".join(filter(None, [run.ending, run.without_model])),
    }
    if isinstance(run, LanguageRun):
        values |= {"language": run.data_name, "lengths": "–".join(map(str, run.config.language.lengths))}
    else:
        values |= {"corpus": run.data_name}
    if run.best_evaluation is not None:
        values |= {run.METRIC.name: _score(run), "epoch": str(run.best_evaluation["epoch"])}
    task = study.task_name(run)
    return {
        "name": run.name,
        "label": run.label,
        "language": task,
        "symbols": [*run.language.symbols, "end"] if isinstance(run, LanguageRun) and studied.strings else [],
        "best": not study.single and run is study.best_runs.get(task),
        "row": _row(values),
        "curve": [[row["epoch"], round(row[curve], 5)] for row in finite],
        "curveName": curve_name,
        "fromZero": isinstance(run, LanguageRun),
        "test": _test_data(studied),
        "strings": [_traced_data(string, split=study.full) for string in studied.strings],
    }


def _test_data(studied: StudiedRun) -> dict[str, Any] | None:
    if studied.test is None:
        return None
    rows = studied.test["lengths"]
    seen = [row for row in rows if row["difference_from_floor"] is not None]
    return {
        "model": [[row["length"], round(row["cross_entropy"], 5)] for row in rows],
        "entropy": [[row["length"], round(row["lower_bound"], 5)] for row in rows],
        "perfect": [[row["length"], round(row["cross_entropy"] - row["difference_from_floor"], 5)] for row in seen],
        "longest": studied.run.config.language.lengths[1],
        "strings": studied.test["per_length"],
    }


def _tiles(studied: StudiedRun) -> list[list[str]]:
    """The key figures at the top of the page, each with a name, a value and a note."""
    run, tiles = studied.run, []
    if best := run.best_evaluation:
        name = "Nats per symbol above the language" if isinstance(run, LanguageRun) else "Perplexity"
        tiles.append([name, _score(run), f"validation, epoch {best['epoch']}"])
    for title, agreements in (
        ("Most weight is on a real stack’s top", studied.agreement),
        ("The best run agrees with the derivation", studied.derivation),
    ):
        for name, found in agreements.items():
            baselines = ", ".join(f"{what}: {share:.1%}" for what, share in found.baselines.items())
            note = f"of {found.steps:,} steps, {name}; a stack that {baselines}"
            tiles.append([title, f"{found.share:.1%}", note])
    if studied.parameters is not None:
        tiles.append(["Parameters", f"{studied.parameters:,}", run.layers])
    if run.metrics:
        tiles.append(["Minutes of training", f"{run.metrics[-1]['seconds'] / 60:.1f}", run.ending])
    return tiles


def _sweep_tiles(study: Study) -> list[list[str]]:
    finished = sum(studied.run.finished for studied in study.runs)
    tiles = [["Runs", str(len(study.runs)), f"{finished} finished"]]
    for task in dict.fromkeys(study.task_name(studied.run) for studied in study.runs):
        if (run := study.best_runs.get(task)) is not None:
            what = "nats above the language" if isinstance(run, LanguageRun) else "perplexity"
            tiles.append([f"Best on {task.replace('-', ' ')}", _score(run), f"{run.label}, {what}"])
    return tiles


def _score(run: LoadedRun) -> str:
    return f"{run.score:.{4 if isinstance(run, LanguageRun) else 2}f}"


def _traced_data(traced: TracedString | TracedSentence, *, split: bool) -> dict[str, Any]:
    """Return the data of a string or sentence for the stepper; probabilities are in thousandths to save space."""
    data = _sentence_data(traced) if isinstance(traced, TracedSentence) else _string_data(traced)
    split = split and len(traced.tokens) - 1 <= LONGEST_SPLIT
    stacks = [_stack_data(stack, split) for stack in traced.stacks]
    return {"tokens": traced.tokens, "stacks": stacks, **data}


def _beginning(tokens: Sequence[str]) -> str:
    separator = " " if any(len(token) > 1 for token in tokens) else ""
    return separator.join(tokens[:20]) + ("…" if len(tokens) > 20 else "")


def _sentence_data(traced: TracedSentence) -> dict[str, Any]:
    likely = [[[token, _thousandth(p)] for token, p in row] for row in traced.likely]
    following = [[token, _thousandth(p)] for token, p in traced.following]
    words = [token for token in traced.tokens if token not in ("BOS", "EOS")]
    return {
        "title": f"{len(words)} token{'s' * (len(words) != 1)}, {traced.origin}: {_beginning(words)}",
        "real": None,
        "likely": likely,
        "following": following,
        "loss": [round(-math.log(max(p, 1e-30)), 4) for _, p in traced.following],
        "lossName": "surprisal",
        "lossNote": "the surprisal −ln p of the next token, in nats" if likely else "",
    }


def _thousandth(p: float) -> int:
    return round(1000 * p)


def _string_data(traced: TracedString) -> dict[str, Any]:
    rows, symbols = enumerate(traced.truth), traced.tokens[1:]
    return {
        "title": f"{len(symbols)} symbol{'s' * (len(symbols) != 1)}, {traced.origin}: {_beginning(symbols)}",
        "lengths": list(traced.lengths),
        "seenLength": traced.seen_length,
        "inLanguage": traced.in_language,
        "whyExcluded": traced.why_excluded,
        "model": _thousandths(traced.log_probs.exp()),
        "truth": [None if row is None else _thousandths(row) for row in traced.truth],
        "loss": [None if row is None else _divergence(row, traced.log_probs[t]) for t, row in rows],
        "lossName": "KL, nats",
        "lossNote": "the KL divergence D(language ‖ model) of the next-symbol distributions, in nats",
        # indices of tokens, where BOS is 0
        "real": None if traced.real is None else [-1, *(top + 1 if top >= 0 else -1 for top in traced.real)],
    }


def _divergence(truth: np.ndarray, log_model: Tensor) -> float:
    """Kullback-Leibler divergence D(true || model) of the next-symbol distributions, in nats."""
    positive = truth > 0
    return round(float((truth[positive] * (np.log(truth[positive]) - log_model.numpy()[positive])).sum()), 4)


def _stack_data(stack: TracedStack, split: bool) -> dict[str, Any]:
    trace, first = stack.trace, stack.trace.first
    bottom, bottom_name = trace.BOTTOM
    found: dict[str, Any] = {
        "name": trace.name,
        "kind": trace.KIND,
        "bottom": bottom,
        "bottomName": bottom_name,
        "hasStates": trace.HAS_STATES,
        "depth": trace.limit if isinstance(trace, SuperpositionTrace) else None,
        "actionNames": list(trace.ACTIONS),
        "actions": [None] * first + _thousandths(trace.actions()[0]),
        "tops": _with_unread(trace.tops()[0], first),
        "contents": [[0] * first] * first + _rows(trace.contents()[0], first),
        "heights": [0.0] * first + [round(x, 3) for x in trace.heights()[0].tolist()],
        "runs": [_automaton_run_data(name, run, trace) for name, run in stack.runs],
    }
    weights = trace.split_tops() if split else None  # (1, T, T + 1, Q, S)
    if weights is not None:
        found["split"] = [
            {"state": q, "symbol": s, "tops": _with_unread(weights[0, :, :, q, s], first, int(q == s == 0))}
            for q in range(weights.shape[3])
            for s in range(weights.shape[4])
        ]
    return found


def _automaton_run_data(name: str, run: AutomatonRun, trace: StackTrace) -> dict[str, Any]:
    """Return a run; its steps are [index of the action, state, symbol or -1], or None where nothing is read."""
    kinds = ("push", "replace", "pop")
    steps = [
        [kinds.index(step.kind), step.state, -1 if step.symbol is None else step.symbol] for step in run.operations
    ]
    share = float(np.exp(run.log_weight - trace.log_totals()[0].item()))
    return {"name": name, "share": float(f"{share:.3g}"), "steps": [None] * trace.first + steps}


def _with_unread(tops: Tensor, first: int, bottom: int = 1) -> list[list[int]]:
    """Return the weights by token. If BOS is not read, the bottom is on top at step 0, and the column of BOS is 0."""
    if first:
        tops = torch.cat([tops[:, :1], torch.zeros_like(tops[:, :1]), tops[:, 1:]], dim=1)
    return [[1000 * bottom]] * first + _rows(tops, 0, 1 + first)


def _rows(x: Tensor, first: int, extra: int = 0) -> list[list[int]]:
    """Return a lower triangle and `extra` columns by row: `first` zeros, then thousandths without trailing zeros."""
    found = []
    for t, row in enumerate(_thousandths(x)):
        row = [0] * first + row[: t + 1 + extra]
        while row and row[-1] == 0:
            row.pop()
        found.append(row)
    return found


def _thousandths(x: Tensor | np.ndarray) -> Any:
    return (torch.as_tensor(x) * 1000).round().long().tolist()
