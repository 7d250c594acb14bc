"""`python -m drills`: run the drills, each in its own process, and print one line with counts for each."""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .drill import Drill, Plan, run

NAMES = (  # the slowest first, because drills run in parallel with --short
    "workers",
    "interruptions",
    "full_disk",
    "writers",
    "mutations",
    "layers",
    "operators",
    "configurations",
    "grammars",
)
SECONDS = {True: 60.0, False: 3600.0}
"""Default time limit of a drill, for --short and otherwise."""
PARALLEL = {True: 2, False: 1}
"""Number of drills that run at the same time; short drills mostly wait for other processes."""
GRACE = 240.0
"""Seconds by which a drill may exceed its time limit, in its last case or its preparation, before it counts as hung."""


def find(name: str) -> Drill:
    """The drill with this name, from the module of the same name."""
    return importlib.import_module(f"drills.{name}").DRILL


def _count(name: str, short: bool) -> int:
    return find(name).short if short else find(name).full


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="DRILL", help=f"drills to run: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--short", action="store_true", help="run only as many cases as CI does (about two minutes)")
    parser.add_argument("--count", type=int, help="number of cases (default: from the drill)")
    parser.add_argument("--seconds", type=float, help="time limit of each drill (default: 3600, or 60 with --short)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument(
        "--failures", type=Path, default=Path("out/drills"), help="folder for failed cases (default: %(default)s)"
    )
    parser.add_argument("--in-process", action="store_true", help="run in this process, for a debugger")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in NAMES]:
        parser.error(f"DRILL: expected one of {', '.join(NAMES)}, got {unknown[0]!r}")
    seconds = SECONDS[args.short] if args.seconds is None else args.seconds
    names = args.names or NAMES
    if args.in_process:
        counts = {name: _count(name, args.short) if args.count is None else args.count for name in names}
        plans = {name: Plan(args.seed, args.first, count, seconds, args.failures) for name, count in counts.items()}
        return int(sum(run(find(name), plan) for name, plan in plans.items()) > 0)
    with ThreadPoolExecutor(PARALLEL[args.short]) as pool:
        passed = pool.map(lambda name: run_in_process(name, argv, args.failures, seconds + GRACE), names)
        failed = [name for name, ok in zip(names, passed, strict=True) if not ok]
    if failed:
        print(f"failed: {', '.join(failed)}; the cases are in {args.failures}")
    return 1 if failed else 0


def run_in_process(name: str, argv: list[str], failures: Path, limit: float) -> bool:
    """Run a drill in its own process; a crash or a hang of the process is a failure."""
    options = [word for word in argv if word not in NAMES]
    current = failures / f"{name}.current"
    current.unlink(missing_ok=True)
    start = time.monotonic()
    try:
        code = subprocess.run(
            [sys.executable, "-m", "drills", name, *options, "--in-process"], timeout=limit
        ).returncode
    except subprocess.TimeoutExpired:
        code = None
    number = current.read_text() if current.exists() else "?"
    if code is None:
        print(f"{name}: case {number}: still running after {time.monotonic() - start:.0f} s")
    elif code < 0:
        print(f"{name}: case {number}: killed by {signal.Signals(-code).name}")
    elif code not in (0, 1) or (code and current.exists()):
        print(f"{name}: case {number}: exit status {code}")
    return code == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
