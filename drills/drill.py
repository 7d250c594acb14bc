"""What a drill is, and how one is run.

A case depends only on the name of the drill, the seed and the number of the case, so failures can be reproduced. Drills
that send signals at random times reproduce the times, but not the exact instruction that is interrupted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Case = Callable[[random.Random], str]
"""Runs one case and returns its outcome in a few words, or raises `Failed`."""


class Failed(Exception):
    """A promise was broken. The details are saved so that the case can be examined."""

    def __init__(self, message: str, **details: Any):
        super().__init__(message)
        self.details = details


class Skipped(Exception):
    """The drill cannot run on this machine."""


@dataclass(frozen=True)
class Drill:
    """A drill: how many cases it has, and a context manager that prepares them in a scratch folder."""

    name: str
    short: int  # number of cases with --short
    full: int  # number of cases otherwise
    prepare: Callable[[Path], AbstractContextManager[Case]]


@dataclass(frozen=True)
class Plan:
    """Which cases of a drill to run."""

    seed: int
    first: int  # number of the first case
    count: int
    seconds: float  # time limit
    failures: Path
    """Folder for the cases that fail."""

    def progress(self, drill: Drill) -> Path:
        """File that contains the number of the current case, so that it can be reported if the process dies."""
        return self.failures / f"{drill.name}.current"

    def replay(self, drill: Drill, number: int) -> str:
        """The command that repeats one case."""
        return f"python -m drills {drill.name} --seed {self.seed} --first {number} --count 1"


def run(drill: Drill, plan: Plan) -> int:
    """Run the cases until the count or the time limit is reached; print one line; return the number of failures."""
    outcomes: Counter[str] = Counter()
    failures = 0
    start = time.monotonic()
    plan.failures.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f"drill-{drill.name}-") as scratch,
            drill.prepare(Path(scratch)) as case,
        ):
            for number in range(plan.first, plan.first + plan.count):
                if time.monotonic() - start > plan.seconds:
                    break
                plan.progress(drill).write_text(str(number))
                try:
                    outcomes[case(random.Random(f"{drill.name} {plan.seed} {number}"))] += 1
                except Exception as error:
                    failures += 1
                    _save(drill, plan, number, error)
    except Skipped as reason:
        print(f"{drill.name}: skipped: {reason}", flush=True)
        return 0
    plan.progress(drill).unlink(missing_ok=True)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())) or "none"
    cases, seconds = sum(outcomes.values()) + failures, time.monotonic() - start
    print(f"{drill.name}: {cases:,} cases in {seconds:.0f} s: {counts}; {failures:,} failures", flush=True)
    return failures


def _save(drill: Drill, plan: Plan, number: int, error: Exception) -> None:
    path = plan.failures / f"{drill.name}-{plan.seed}-{number}.json"
    values = {
        "replay": plan.replay(drill, number),
        "error": f"{type(error).__name__}: {error}",
        "details": error.details if isinstance(error, Failed) else {},
        "traceback": traceback.format_exc().splitlines(),
    }
    path.write_text(json.dumps(values, indent=1, default=repr) + "\n", encoding="utf-8")
    print(f"{drill.name}: case {number} failed: {values['error'][:300]}; saved in {path}", flush=True)


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `Failed` if the body uses more than `seconds` of CPU time; other work on the machine does not count."""

    def expire(*_: Any) -> None:
        raise Failed(f"used more than {seconds:g} seconds of CPU time")

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def environment() -> dict[str, str]:
    """Environment of the commands that drills start: one thread each, so that results are the same bit for bit."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
