"""`python -m benchmarks`: measure the cases, compare the results with the targets, and write them."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from stackattn.cli.arguments import naming
from stackattn.training.devices import find_device

from . import gpu, measure, report
from .registry import CASES, Contender
from .steps import Shape
from .targets import Row

ROOT = Path(__file__).parents[1]


def _shape(text: str) -> Shape:
    try:
        return Shape(**{key: int(value) for key, value in (item.split("=") for item in text.split(","))})
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"expected letters and sizes such as B=10,T=60,Q=3,S=3,m=32, got {text!r}"
        ) from None


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, metavar="CASE", help=f"cases to measure: {', '.join(CASES)} (default: all)"
    )
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, metavar="SHAPE", help="sizes such as T=60,Q=2 (default: those of each case)"
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="contenders to leave out, such as reference"
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="numbers of threads (default: 1 2)")
    parser.add_argument(
        "--budget", type=float, default=3.0, help="minimum seconds per comparison (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        metavar="NAME",
        help="write benchmarks/results/NAME.json and NAME.md (default: all, or selection if only a part is measured)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="with cuda, time only the operators, on the GPU, and print a table (default: cpu)",
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the tests; print the results, but do not write them"
    )
    return parser.parse_args(argv)


def _verify(cases: list[str]) -> bool:
    """Whether the tests of the cases pass."""
    tests = list(dict.fromkeys(test for case in cases for test in CASES[case].tests))
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "not slow", *tests], cwd=ROOT).returncode == 0


def _groups(args: argparse.Namespace, cases: list[str]) -> Iterator[tuple[str, Shape, dict[str, Contender]]]:
    """The case, the shape and the contenders of each comparison."""
    for name in cases:
        for shape in args.shapes or CASES[name].shapes:
            contenders = CASES[name].contenders.items()
            yield name, shape, {key: x for key, x in contenders if x.longest >= shape.T and key not in args.without}


def _measure(
    name: str, shape: Shape, contenders: dict[str, Contender], threads: list[int], budget: float
) -> Iterator[Row]:
    alone = {key: measure.weigh(x.build, shape, threads[-1]) for key, x in contenders.items()}
    torch.manual_seed(0)
    steps = {key: x.build(shape) for key, x in contenders.items() if not x.once}
    for count in threads:
        timed = measure.compare(steps, count, budget)
        for key, x in contenders.items():
            found = (alone[key] if count == threads[-1] else {}) | timed.get(key, {})
            if found:
                row = {"case": name, "shape": shape._asdict(), "threads": count, "contender": key, **found}
                yield row | ({"multiply_adds": x.multiply_adds(shape)} if x.multiply_adds else {})


def main(argv: list[str]) -> int:
    args, console = _arguments(argv), Console()
    try:
        with naming(device="--device"):
            device = find_device(args.device)
    except ValueError as error:
        print(f"python -m benchmarks: nothing was measured; {error}", file=sys.stderr)
        return 2
    if device.type != "cpu":
        for line in (*gpu.environment(device), "", *gpu.table(device)):
            print(line, flush=True)
        return 0
    cases, threads = args.cases or list(CASES), sorted(set(args.threads))
    environment = report.environment(shlex.join(["python", "-m", "benchmarks", *argv]), threads)
    if not args.no_verify and not _verify(cases):
        console.print("[red]The tests of these cases must pass first, but some failed: no speed is reported.[/]")
        return 1
    rows: list[Row] = []
    groups = list(_groups(args, cases))
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(groups))
        for name, shape, contenders in groups:
            progress.update(task, description=f"{name} {shape.label(CASES[name].fields)}")
            rows += _measure(name, shape, contenders, threads, args.budget)
            progress.advance(task)
    environment["cores used by other processes"] = measure.busy_elsewhere(rows)
    print(report.markdown(environment, rows))
    if not args.no_verify:
        whole = not (args.cases or args.shapes or args.without) and threads == [1, 2]
        for path in report.write(args.output or ("all" if whole else "selection"), environment, rows):
            console.print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
