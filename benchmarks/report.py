"""Results as files: all rows as JSON, and tables as Markdown."""

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import stackattn
from stackattn.ops.dispatch import kernel

from .registry import CASES
from .steps import Shape
from .targets import TARGETS, Results, Row

FOLDER = Path(__file__).parent / "results"
LEGEND = """Times are the best of several runs on one batch (`reference`: one run). `×` compares the times with
backward, `over T/2` is time(T) / time(T/2), `of float64 rate` counts useful multiply-adds, and `peak` is the memory
beyond inputs, outputs and gradients with the largest number of threads."""


def environment(command: str, threads: list[int]) -> dict[str, Any]:
    """How the results were made: command, date, commit, versions and machine."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "kernel": kernel.name() if kernel is not None else stackattn.backends()["cpp"],
    }


def _commit() -> str:
    call = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(call, cwd=FOLDER.parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    """Name, family and model of the processor; on a virtual machine, the name alone says little."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = [re.search(rf"^{field}\s*: (.+)$", info, re.MULTILINE) for field in ("model name", "cpu family", "model")]
    if not all(found):
        return platform.processor() or platform.machine()
    name, family, model = (x[1] for x in found if x)
    return f"{name} (family {family}, model {model})"


def write(name: str, environment: dict[str, Any], rows: list[Row]) -> list[Path]:
    """Write results/NAME.json and results/NAME.md, and return both paths."""
    FOLDER.mkdir(exist_ok=True)
    data = json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n"
    return [_replace(FOLDER / f"{name}.json", data), _replace(FOLDER / f"{name}.md", markdown(environment, rows))]


def _replace(path: Path, text: str) -> Path:
    """Write the whole file, or leave the old one unchanged."""
    part = path.with_suffix(f"{path.suffix}.part")
    part.write_text(text)
    part.replace(path)
    return path


def markdown(environment: dict[str, Any], rows: list[Row]) -> str:
    results = Results(rows)
    parts = ["# Benchmark results", LEGEND, "\n".join(f"- {key}: {value}" for key, value in environment.items())]
    parts += ["## Targets", "B=10, Q=S=3, float32 inputs, two threads, forward and backward, unless stated otherwise."]
    parts.append(_table(("target", "limit", "measured", ""), (target.line(results) for target in TARGETS)))
    for name, case in CASES.items():
        if mine := [row for row in rows if row["case"] == name]:
            first = next(iter(case.contenders))
            heads = (
                "",
                "threads",
                "",
                "forward, ms",
                "with backward, ms",
                f"× {first}",
                "of float64 rate",
                "over T/2",
                "peak, MB",
            )
            lines = (_line(results, row, case.fields, first) for row in mine)
            parts += [f"## {name}", case.about, _table(heads, lines)]
    return "\n\n".join(parts) + "\n"


def _line(results: Results, row: Row, fields: str, first: str) -> list[str]:
    return [
        Shape(**row["shape"]).label(fields),
        str(row["threads"]),
        row["contender"],
        f"{1e3 * row['forward']:.4g}",
        f"{1e3 * row['total']:.4g}",
        _known(lambda: f"{row['total'] / results.same(row, first)['total']:.3g}"),
        _known(lambda: f"{results.share(row):.1%}"),
        _known(lambda: f"{results.growth(row):.2f}"),
        _known(lambda: f"{row['peak'] / 1e6:.4g}"),
    ]


def _known(figure: Callable[[], str]) -> str:
    """The figure, or an empty string if something that it needs was not measured."""
    try:
        return figure()
    except KeyError:
        return ""


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *lines))
