"""See what a trained model does with its stack: figures, runs and one HTML report, of a run or of a folder of runs."""

from __future__ import annotations

import argparse
import sys
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

        from ..analysis.drawings import draw_strings
        from ..analysis.report import write_report
        from ..analysis.study import study
        from ..training import RunError

        console = Console(highlight=False)
        try:
            if args.samples is not None and args.samples < 1:
                raise ValueError(f"--samples: expected at least 1, got {args.samples}")
            with console.status("reading the runs") as status:
                found = study(
                    args.run,
                    texts=args.string,
                    samples=args.samples,
                    seed=args.seed,
                    stack=args.stack,
                    report=lambda text: status.update(escape(text)),
                )
                out = Path(args.out or Path(args.run) / "analysis")
                drawn: list[Path] = []
                trouble = ""
                if found.single and found.best and not args.no_figures:
                    status.update("drawing")
                    try:
                        drawn = draw_strings(found.best[0], out, stack=args.stack, seed=args.seed)
                    except ModuleNotFoundError as error:
                        trouble = f"no figures: {error}"
                path = write_report(found, out / "report.html")
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


def show(study: Study) -> None:
    """A short table, and what could not be looked at."""
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "model", "stack", "difference", "real top", "only pushes", "best run")
    table.columns[0].overflow = "fold"
    for studied in study.best:
        run, best = studied.run, studied.run.best
        assert best is not None
        names = [stack["name"] for stack in studied.strings[0]["stacks"]] if studied.strings else []
        for name in names or ["none"]:
            real, derived = studied.agreement.get(name), studied.derivation.get(name)
            shares = [
                "" if real is None else f"{real.share:.1%}",
                "" if real is None else f"{real.only_pushes / real.steps:.1%}",
                "" if derived is None else f"{derived.share:.1%}",
            ]
            table.add_row(run.name, run.label, name, f"{best['cross_entropy_difference']:.4f}", *shares)
    if study.best:
        Console(highlight=False).print(table, markup=False)
    if any(studied.agreement for studied in study.best):
        print("real top: share of steps at which the most weighted token is the one a real stack would have on top")
    if any(studied.derivation for studied in study.best):
        print("best run: share of steps at which the best run has on top what the string's derivation says")
    if missing := [studied.run.name for studied in study.runs if not studied.run.has_model]:
        print(f"without a best model yet, so only in the report's table of runs: {', '.join(missing)}")
