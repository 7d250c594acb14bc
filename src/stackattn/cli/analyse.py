"""See what a trained model does with its stack: figures, runs and one HTML report, of a run or of a folder of runs."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..analysis.study import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="folder of a run, or of several (then only the report is written)")
    strings = parser.add_mutually_exclusive_group()
    strings.add_argument(
        "--string", action="append", default=[], metavar="TEXT", help="a string to step through; may be given again"
    )
    strings.add_argument(
        "--samples", type=int, metavar="N", help="so many strings of the language (default: the paper's string and 2)"
    )
    parser.add_argument("--stack", type=int, metavar="N", help="only the model's N-th stack (default: all of them)")
    parser.add_argument("--seed", type=int, default=0, help="of sampled strings and runs (default: %(default)s)")
    parser.add_argument("--out", help="folder for what is written (default: analysis in the folder of the run)")
    parser.add_argument("--no-figures", action="store_true", help="write only the report, no SVG and PNG files")


def run(args: argparse.Namespace) -> int:
    try:
        from rich.console import Console
        from rich.markup import escape

        from ..analysis.drawings import draw_strings, remove_drawings
        from ..analysis.report import write_report
        from ..analysis.study import study
        from ..training import RunError

        console = Console(highlight=False)
        try:
            if args.samples is not None and args.samples < 1:
                raise ValueError(f"--samples: expected at least 1, got {args.samples}")
            if args.seed < 0:
                raise ValueError(f"--seed: expected at least 0, got {args.seed}")
            out = Path(args.out or Path(args.run) / "analysis")
            if out.exists() and not out.is_dir():
                raise ValueError(f"--out: expected a folder, got the file {out}")
            with console.status("reading the runs") as status:
                found = study(
                    args.run,
                    texts=args.string,
                    samples=args.samples,
                    seed=args.seed,
                    stack=args.stack,
                    report=lambda text: status.update(escape(text)),
                )
                drawn: list[Path] = []
                trouble = ""
                remove_drawings(out)
                if found.single and found.best and not args.no_figures:
                    status.update("drawing")
                    try:
                        drawn = draw_strings(found.best[0], out, seed=args.seed)
                    except ModuleNotFoundError as error:
                        trouble = f"no figures: {error}"
                path = write_report(found, out / "report.html", command(args))
        except (ValueError, RunError, OSError) as error:
            print(f"stackattn analyse: {error}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    show(found)
    if drawn:
        print(f"{len(drawn)} figures and lists of runs in {out}")
    if trouble:
        print(trouble, file=sys.stderr)
    print(f"report: {path}")
    return 0


def command(args: argparse.Namespace) -> str:
    """What was asked for, to be asked again."""
    words = ["stackattn analyse", shlex.quote(args.run)]
    words += [f"--string={shlex.quote(text)}" for text in args.string]
    for name in ("samples", "stack", "out"):
        if (value := getattr(args, name)) is not None:
            words.append(f"--{name} {shlex.quote(str(value))}")
    words.append(f"--seed {args.seed}")
    return " ".join([*words, *["--no-figures"] * args.no_figures])


def show(study: Study) -> None:
    """For each task a table of its runs, with a line for each stack, and what stacks that know nothing would score."""
    from rich.console import Console
    from rich.table import Table

    from ..analysis.quality import BATCH_SIZE, BATCHES, DERIVED_STRINGS
    from ..analysis.real_stack import REAL_TOP

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    for task in dict.fromkeys(study.task_name(studied.run) for studied in study.runs):
        table = Table("run", "model", "stack", title=task, title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.columns[0].min_width = 20
        table.columns[0].overflow = "fold"
        for name in ("difference", "real top", "best run"):
            table.add_column(name, justify="right", no_wrap=True)
        for studied in (studied for studied in study.runs if study.task_name(studied.run) == task):
            run = studied.run
            difference = "" if run.best is None else f"{run.best['cross_entropy_difference']:.4f}"
            for name in studied.stacks or [run.without_model or "none"]:
                found = [agreements.get(name) for agreements in (studied.agreement, studied.derivation)]
                shares = [percent(one.share if one else None) for one in found]
                table.add_row(run.name, run.label, name, difference, *shares)
        for of, name, real, derived in study.baselines():
            if of == task:
                table.add_row(f"({name})", "", "", "", percent(real), percent(derived))
        Console(highlight=False).print(table, "", markup=False)
    if study.baselines():
        print("In brackets: what stacks would score that know nothing of the language.")
    explain("difference", "nats per symbol above what the language itself pays, on validation strings")
    if any(studied.agreement for studied in study.runs):
        explain("real top", f"{REAL_TOP}; over {BATCHES * BATCH_SIZE} strings. {study.without_real_stack}")
    elif study.without_real_stack:
        explain("real top", study.without_real_stack)
    if any(studied.derivation for studied in study.runs):
        what = "share of steps at which the best run has on top what the string's derivation says"
        explain("best run", f"{what}; over {DERIVED_STRINGS} strings")
    if study.left_out:
        print(textwrap.fill(study.left_out, 100))


def explain(column: str, meaning: str) -> None:
    print(textwrap.fill(meaning.strip(), 100, initial_indent=f"{column + ':':<12}", subsequent_indent=" " * 12))
