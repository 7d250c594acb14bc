"""Show what trained models do with their stacks, as figures for print and as an HTML report."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import add_number, add_seed, check_output_folder, naming, path

if TYPE_CHECKING:
    from ..analysis.study import Study

EXAMPLE = "example"  # the run that is shipped with the package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        default=EXAMPLE,
        metavar="RUN",
        help="folder of a run, or of several runs (then only the report is written); `example` is a shipped run of a "
        "small model trained on brackets (default: %(default)s)",
    )
    strings = parser.add_mutually_exclusive_group()
    strings.add_argument(
        "--string",
        action="append",
        default=[],
        metavar="TEXT",
        help="string to step through (a sentence for runs of `lm`, a source sentence for runs of `mt`); may be "
        "repeated (default: sampled strings)",
    )
    sampled = "number of sampled strings, or of sentences from the validation set, to step through"
    add_number(strings, "--samples", sampled, "2, and the paper's string if there is one", least=1)
    add_number(parser, "--stack", "show only the stack with this number, counted from 1", "all stacks")
    add_seed(parser, "the sampled strings or sentences and of the sampled runs of the stacks")
    parser.add_argument(
        "--out", type=path, metavar="FOLDER", help="output folder (default: RUN/analysis, or out/example)"
    )
    parser.add_argument("--no-figures", action="store_true", help="write only the report, without SVG and PNG files")


def run(args: argparse.Namespace) -> int:
    from ..analysis.drawings import draw_strings, remove_stale_drawings
    from ..analysis.report import write_report
    from ..analysis.study import study
    from ..files import locked
    from .progress import status

    folder, out = Path(args.run), Path(args.run) / "analysis"
    if args.run == EXAMPLE and not folder.exists():
        folder, out = Path(str(files("stackattn.analysis"))) / EXAMPLE, Path("out", EXAMPLE)
    out = Path(args.out or out)
    check_output_folder(out)
    with status("reading the runs") as show_status:
        with naming(texts="--string", stack="--stack"):
            found = study(
                folder,
                texts=args.string,
                samples=args.samples,
                seed=args.seed,
                stack=args.stack,
                progress=show_status,
            )
        drawn: list[Path] = []
        no_figures = ""
        out.mkdir(parents=True, exist_ok=True)
        with locked(out, out / ".lock", temporary=True):
            if found.single and found.best and not args.no_figures:
                show_status("drawing")
                try:
                    drawn = draw_strings(found.best[0], out)
                except ModuleNotFoundError as error:
                    no_figures = f"no figures: {error}"
            report = write_report(found, out / "report.html", command(args))
            remove_stale_drawings(out, keep=drawn)
    show(found)
    if drawn:
        print(f"{len(drawn)} figures and listings in {out}")
    if no_figures:
        print(no_figures, file=sys.stderr)
    print(f"report: {report}")
    for name, reason in found.damaged.items():
        print(f"stackattn analyse: skipped run {name}: {reason}", file=sys.stderr)
    return 1 if found.damaged else 0


def command(args: argparse.Namespace) -> str:
    """The command line that makes the same report."""
    words = ["stackattn analyse", shlex.quote(args.run)]
    words += [f"--string={shlex.quote(text)}" for text in args.string]
    for name in ("samples", "stack", "out"):
        if (value := getattr(args, name)) is not None:
            words.append(f"--{name} {shlex.quote(str(value))}")
    words.append(f"--seed {args.seed}")
    return " ".join([*words, *["--no-figures"] * args.no_figures])


def show(study: Study) -> None:
    """Print a table of runs for each task, with one line per stack, and the shares of the baselines."""
    from rich.console import Console
    from rich.table import Table

    from ..analysis.labelled_strings import BATCH_SIZE, BATCHES, DERIVED_STRINGS
    from ..analysis.loaded_runs import LanguageRun
    from ..analysis.real_stack import REAL_TOP

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    for task in dict.fromkeys(study.task_name(studied.run) for studied in study.runs):
        table = Table("run", "model", "stack", title=task, title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.columns[0].min_width = 20
        table.columns[0].overflow = "fold"
        runs = [studied for studied in study.runs if study.task_name(studied.run) == task]
        compared = isinstance(runs[0].run, LanguageRun)  # corpora have no real stacks
        for name in (runs[0].run.METRIC.name, *(("real top", "best run") if compared else ())):
            table.add_column(name, justify="right", no_wrap=True)
        for studied in runs:
            run = studied.run
            score = "" if run.score is None else f"{run.score:.4f}"
            for name in studied.stacks or [run.without_model or "none"]:
                found = [agreements.get(name) for agreements in (studied.agreement, studied.derivation)]
                shares = [percent(one.share if one else None) for one in found] if compared else []
                table.add_row(run.name, run.label, name, score, *shares)
        for baseline_task, name, real, derived in study.baselines():
            if baseline_task == task:
                table.add_row(f"({name})", "", "", "", percent(real), percent(derived))
        Console(highlight=False).print(table, "", markup=False)
    if study.baselines():
        print("Rows in parentheses are baselines: stacks whose actions do not depend on the string.")
    names = {studied.run.METRIC.name for studied in study.runs}
    if "difference" in names:
        what = "cross-entropy minus that of the language itself, in nats per symbol, on validation strings"
        explain("difference", what)
    if "perplexity" in names:
        explain("perplexity", "on the validation set, at the best evaluation; EOS counts as a token")
    if any(studied.agreement for studied in study.runs):
        explain("real top", f"{REAL_TOP}; over {BATCHES * BATCH_SIZE} strings. {study.without_real_stack}")
    elif study.without_real_stack:
        explain("real top", study.without_real_stack)
    if any(studied.derivation for studied in study.runs):
        what = "share of steps at which the best run agrees with the string's derivation about the top of the stack"
        explain("best run", f"{what}; over {DERIVED_STRINGS} strings")
    if study.omitted:
        print(textwrap.fill(study.omitted, 100))


def explain(column: str, meaning: str) -> None:
    """Print the meaning of a column of the table."""
    print(textwrap.fill(meaning.strip(), 100, initial_indent=f"{column + ':':<12}", subsequent_indent=" " * 12))
