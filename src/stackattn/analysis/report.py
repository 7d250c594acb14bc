"""The report: one HTML file with its data, style and scripts in it, which needs no network and no server."""

from __future__ import annotations

import html
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..files import write_text
from .folders import RunFolder
from .study import AGREEMENT_BATCHES, DERIVED_STRINGS, StudiedRun, Study

LIMIT = 2_000_000  # bytes
SCRIPTS = ("charts.js", "figures.js", "stepper.js", "page.js")
COLUMNS = [
    ["run", ""],
    ["language", ""],
    ["model", ""],
    ["parameters", "number"],
    ["learning rate", "number"],
    ["difference", "number"],
    ["epoch", "number"],
    ["minutes", "number"],
    ["real top", "number"],
    ["best run", "number"],
    ["", ""],
]


def write_report(study: Study, path: Path) -> Path:
    """Write the page. A ValueError if it would be too large to be pleasant, which only very long strings make it."""
    data = page_data(study)
    page = render(data)
    if len(page.encode()) > LIMIT:  # keeping states and symbols apart takes most of the room
        for string in (string for run in data["runs"] for string in run["strings"]):
            for stack in string["stacks"]:
                stack.pop("split", None)
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


def page_data(study: Study) -> dict[str, Any]:
    runs = [_run_data(studied, study) for studied in study.runs]
    first = study.runs[0]
    if study.single:
        title = f"{first.run.label} on {first.run.config.language.name.replace('-', ' ')}"
        shortest, longest = first.run.config.language.lengths
        lede = f"Run {first.run.name}, trained on strings of {shortest} to {longest} symbols."
        tiles = _tiles(first)
    else:
        title = f"{len(runs)} runs in {study.folder.resolve().name}"
        lede = "The best run of each model that has a stack can be stepped through."
        tiles = _sweep_tiles(study)
    strings = f"{10 * AGREEMENT_BATCHES} strings of training lengths"
    return {
        "title": title,
        "lede": lede,
        "tiles": tiles,
        "columns": COLUMNS,
        "tableNote": "Difference: nats per symbol above the language’s own entropy on validation strings, at the best "
        f"epoch. Real top: share of steps of {strings} at which the most weighted token is the one that a real stack "
        "would have on top, where the language has such a stack. Best run: share of steps of "
        f"{DERIVED_STRINGS} strings at which the run of the largest weight has on top what the most probable "
        "derivation says. Both only for the best of a model’s runs.",
        "made": f"Made by stackattn {__version__}, seed {study.seed}: stackattn analyse {study.folder}",
        "runs": runs,
    }


def _run_data(studied: StudiedRun, study: Study) -> dict[str, Any]:
    run, best = studied.run, studied.run.best
    finite = [row for row in run.metrics if math.isfinite(row["cross_entropy_difference"])]
    row = [
        run.name,
        run.config.language.name,
        run.label,
        "" if studied.parameters is None else f"{studied.parameters:,}",
        f"{run.config.training.learning_rate:.2g}",
        "" if best is None else f"{best['cross_entropy_difference']:.4f}",
        "" if best is None else str(best["epoch"]),
        f"{run.metrics[-1]['seconds'] / 60:.1f}" if run.metrics else "",
        ", ".join(f"{found.share:.1%}" for found in studied.agreement.values()),
        ", ".join(f"{found.share:.1%}" for found in studied.derivation.values()),
        run.state,
    ]
    return {
        "name": run.name,
        "label": run.label,
        "language": run.config.language.name,
        "symbols": [*run.language.symbols, "end"] if studied.strings else [],
        "best": not study.single and run is best_on(study, run.config.language.name),
        "row": row,
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
    }


def _tiles(studied: StudiedRun) -> list[list[str]]:
    """What is to be seen first: name, value and a note each."""
    run, tiles = studied.run, []
    if best := run.best:
        difference = f"{best['cross_entropy_difference']:.4f}"
        tiles.append(["Nats per symbol above the language", difference, f"validation, epoch {best['epoch']}"])
    for name, found in studied.agreement.items():
        note = f"of {found.steps:,} steps, {name}; a stack that only pushes: {found.only_pushes / found.steps:.1%}"
        tiles.append(["A real stack’s top has most weight", f"{found.share:.1%}", note])
    for name, found in studied.derivation.items():
        note = f"of {found.steps:,} steps, {name}"
        tiles.append(["The best run’s top is the derivation’s", f"{found.share:.1%}", note])
    if studied.parameters is not None:
        tiles.append(["Parameters", f"{studied.parameters:,}", _layers(studied)])
    if run.metrics:
        tiles.append(["Minutes of training", f"{run.metrics[-1]['seconds'] / 60:.1f}", run.state])
    return tiles


def _layers(studied: StudiedRun) -> str:
    options = studied.run.config.model
    return getattr(options, "layers", None) or getattr(options, "stack", None) or ""


def _sweep_tiles(study: Study) -> list[list[str]]:
    finished = sum(studied.run.state != "not finished" for studied in study.runs)
    tiles = [["Runs", str(len(study.runs)), f"{finished} finished"]]
    for language in dict.fromkeys(studied.run.config.language.name for studied in study.best):
        run = best_on(study, language)
        if run is not None and run.best is not None:
            difference = f"{run.best['cross_entropy_difference']:.4f}"
            tiles.append([f"Best on {language.replace('-', ' ')}", difference, f"{run.label}, nats above the language"])
    return tiles


def best_on(study: Study, language: str) -> RunFolder | None:
    """The run with the lowest cross-entropy difference on a language."""
    of = [
        (s.run.best["cross_entropy_difference"], s.run)
        for s in study.best
        if s.run.best and s.run.config.language.name == language
    ]
    return min(of, key=lambda pair: pair[0])[1] if of else None
