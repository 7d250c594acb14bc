"""The report: one HTML file with its data, style and scripts in it, which needs no network and no server."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..files import write_text
from .quality import BATCH_SIZE, BATCHES, DERIVED_STRINGS
from .real_stack import REAL_TOP
from .study import StudiedRun, Study

LIMIT = 2_000_000  # bytes
SCRIPTS = ("charts.js", "figures.js", "stepper.js", "page.js")
COLUMNS = {  # of the table of runs, with their kinds
    "run": "",
    "model": "",
    "difference": "number",
    "real top": "number",
    "best run": "number",
    "state": "",
    "language": "",
    "lengths": "number",
    "layers": "",
    "parameters": "number",
    "learning rate": "number",
    "epoch": "number",
    "minutes": "number",
}


def write_report(study: Study, path: Path, command: str = "") -> Path:
    """Write the page, which ends with the command that made it, if there was one.

    A ValueError if it would be too large to be pleasant, which only very long strings make it.
    """
    data = page_data(study, command)
    page = render(data)
    if len(page.encode()) > LIMIT:  # keeping states and symbols apart takes most of the room
        for string in (string for run in data["runs"] for string in run["strings"]):
            for stack in string["stacks"]:
                stack.pop("split", None)
        data["lede"] += " To keep the page small, there are no maps of single states and stack symbols."
        page = render(data)
    if (size := len(page.encode())) > LIMIT:
        raise ValueError(f"the report would have {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}: take fewer strings")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def render(data: dict[str, Any]) -> str:
    """The page with everything in its place. The data goes in last, so that nothing in it is taken for a place."""
    page = _read("report.html")
    for place, text in (
        ("title", html.escape(data["title"])),
        ("style", _read("report.css")),
        ("script", "\n".join(map(_read, SCRIPTS))),
        ("data", _json(data)),
    ):
        page = page.replace(f"<!--{place}-->", text)
    return page


def _read(name: str) -> str:
    return (files("stackattn.analysis") / "page" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON that may stand in a page: in it nothing can end the script or begin a comment or an entity."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(study: Study, command: str = "") -> dict[str, Any]:
    runs = [_run_data(studied, study) for studied in study.runs]
    first = study.runs[0]
    if study.single:
        title = f"{first.run.label} on {first.run.config.language.name.replace('-', ' ')}"
        shortest, longest = first.run.config.language.lengths
        lede = f"Run {first.run.name}, trained on strings of {shortest} to {longest} symbols."
        tiles = _tiles(first)
    else:
        title = f"{len(runs)} runs in {study.folder.resolve().name}"
        lede = f"Of each model that has a stack, the best run can be stepped through. {study.left_out}".strip()
        tiles = _sweep_tiles(study)
    return {
        "title": title,
        "lede": lede,
        "tiles": tiles,
        "columns": list(COLUMNS.items()),
        "baselines": [
            {"language": task, "row": _baseline_row(task, name, shares)} for task, name, *shares in study.baselines()
        ],
        "tableNote": "Difference: nats per symbol above what the language’s own distribution pays for the same "
        f"validation strings, at the best epoch. Real top: {REAL_TOP}; over {BATCHES * BATCH_SIZE} strings of training "
        f"lengths. {study.without_real_stack} Best run: share of steps of {DERIVED_STRINGS} strings at which the run "
        "of the largest weight has on top what the most probable derivation says. A model "
        "with several stacks has a share for each. All runs on a language are judged by the same strings, and so are "
        "the two stacks below them, which know nothing: one pushes every symbol and never pops, the other one stays "
        "empty.",
        "made": f"Made by stackattn {__version__}"
        + (f": {command}" if command else f", seed {study.seed}, from {study.folder}"),
        "runs": runs,
    }


def _baseline_row(task: str, name: str, shares: Sequence[float | None]) -> list[str]:
    real, derived = ("" if share is None else f"{share:.1%}" for share in shares)
    return _row({"run": f"a stack that {name}", "language": task, "real top": real, "best run": derived})


def _row(values: dict[str, str]) -> list[str]:
    return [values.get(column, "") for column in COLUMNS]


def _run_data(studied: StudiedRun, study: Study) -> dict[str, Any]:
    run, best = studied.run, studied.run.best
    finite = [row for row in run.metrics if math.isfinite(row["cross_entropy_difference"])]
    language = run.config.language
    values = {
        "run": run.name,
        "model": run.label,
        "real top": ", ".join(f"{found.share:.1%}" for found in studied.agreement.values()),
        "best run": ", ".join(f"{found.share:.1%}" for found in studied.derivation.values()),
        "language": language.name,
        "lengths": "–".join(map(str, language.lengths)),
        "layers": run.layers,
        "parameters": "" if studied.parameters is None else f"{studied.parameters:,}",
        "learning rate": f"{run.config.training.learning_rate:.2g}",
        "minutes": f"{run.metrics[-1]['seconds'] / 60:.1f}" if run.metrics else "",
        "state": ", ".join(filter(None, [run.state, run.without_model])),
    }
    if best is not None:
        values |= {"difference": f"{best['cross_entropy_difference']:.4f}", "epoch": str(best["epoch"])}
    task = study.task_name(run)
    return {
        "name": run.name,
        "label": run.label,
        "language": task,
        "symbols": [*run.language.symbols, "end"] if studied.strings else [],
        "best": not study.single and run is study.best_on(task),
        "row": _row(values),
        "curve": [[row["epoch"], round(row["cross_entropy_difference"], 5)] for row in finite],
        "test": _test_data(studied),
        "strings": studied.strings,
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
    """What is to be seen first: name, value and a note each."""
    run, tiles = studied.run, []
    if best := run.best:
        difference = f"{best['cross_entropy_difference']:.4f}"
        tiles.append(["Nats per symbol above the language", difference, f"validation, epoch {best['epoch']}"])
    for title, agreements in (
        ("A real stack’s top has most weight", studied.agreement),
        ("The best run’s top is the derivation’s", studied.derivation),
    ):
        for name, found in agreements.items():
            baselines = ", ".join(f"{what}: {share:.1%}" for what, share in found.baselines.items())
            note = f"of {found.steps:,} steps, {name}; a stack that {baselines}"
            tiles.append([title, f"{found.share:.1%}", note])
    if studied.parameters is not None:
        tiles.append(["Parameters", f"{studied.parameters:,}", run.layers])
    if run.metrics:
        tiles.append(["Minutes of training", f"{run.metrics[-1]['seconds'] / 60:.1f}", run.state])
    return tiles


def _sweep_tiles(study: Study) -> list[list[str]]:
    finished = sum(studied.run.state != "not finished" for studied in study.runs)
    tiles = [["Runs", str(len(study.runs)), f"{finished} finished"]]
    for task in dict.fromkeys(study.task_name(studied.run) for studied in study.runs):
        run = study.best_on(task)
        if run is not None and run.best is not None:
            difference = f"{run.best['cross_entropy_difference']:.4f}"
            tiles.append([f"Best on {task.replace('-', ' ')}", difference, f"{run.label}, nats above the language"])
    return tiles
