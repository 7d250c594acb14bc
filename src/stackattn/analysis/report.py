"""The HTML report: one file that contains its data, style and scripts, and needs neither a network nor a server."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..files import write_text
from .report_data import page_data
from .study import Study

LIMIT = 2_000_000  # bytes
SCRIPTS = ("charts.js", "figures.js", "stepper.js", "page.js")


def write_report(study: Study, path: Path, command: str = "") -> Path:
    """Write the report of a study.

    Args:
        study: the study to show.
        path: file to write; its folder is created.
        command: the command line that makes the same report, shown at the end of the page.

    Returns:
        `path`.

    Raises:
        ValueError: the page would be larger than `LIMIT`, for example because of very long strings.
    """
    data = page_data(study, command)
    page = render(data)
    if len(page.encode()) > LIMIT:  # maps of single states and symbols take up most of the page
        for string in (string for run in data["runs"] for string in run["strings"]):
            for stack in string["stacks"]:
                stack.pop("split", None)
        data["lede"] += " Maps of single states and stack symbols are omitted to keep the page small."
        page = render(data)
    if (size := len(page.encode())) > LIMIT:
        limit = f"{LIMIT / 1e6:.0f} MB"
        raise ValueError(f"report: expected at most {limit}, got {size / 1e6:.1f} MB; use fewer or shorter strings")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def render(data: dict[str, Any]) -> str:
    """Return the HTML of the page. The data is inserted last, so no text in it is mistaken for a placeholder."""
    page = _read("report.html")
    for placeholder, text in (
        ("title", html.escape(data["title"])),
        ("style", _read("report.css")),
        ("script", "\n".join(map(_read, SCRIPTS))),
        ("data", _json(data)),
    ):
        page = page.replace(f"<!--{placeholder}-->", text)
    return page


def _read(name: str) -> str:
    return (files("stackattn.analysis") / "page" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """Return JSON that is safe in an HTML script element: it cannot close the element or begin a comment or entity."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
