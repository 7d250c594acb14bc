"""How fast strings are sampled and scored: `python benchmarks/languages.py [--out benchmarks/results/languages.md]`.

Each case starts from scratch (a new grammar, its closure and its tables) and is run several times; the table has the
median and the slowest run, and the CPU time, which other work on the machine affects less. No speed is reported unless
the recorded probabilities are reproduced first.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stackattn.languages import dyck, evaluation_set, get_language, hardest_cfl

ROOT = Path(__file__).resolve().parent.parent


def sample_10_000() -> None:
    grammar, generator = hardest_cfl(), np.random.default_rng(0)
    grammar.sample_lengths(generator.choice(grammar.valid_lengths(40, 80), 10_000), generator)


def scorer(num: int) -> Callable[[], None]:
    grammar, generator = hardest_cfl(), np.random.default_rng(0)
    strings = grammar.sample_lengths(generator.choice(grammar.valid_lengths(40, 80), num), generator)
    return lambda: hardest_cfl().log_prob_given_length(strings)


def next_symbols() -> None:
    grammar = hardest_cfl()
    (string,) = grammar.sample(60, generator=np.random.default_rng(0))
    grammar.next_symbol_distribution([string[:n] for n in range(61)], (40, 80))


def best_parse() -> None:
    grammar = hardest_cfl()
    (string,) = grammar.sample(80, generator=np.random.default_rng(0))
    grammar.best_parse(string)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "hardest CFL, lengths 40..80: 10,000 strings sampled, set-up included": (sample_10_000, "< 5 s"),
    "hardest CFL, lengths 40..80: 1,000 strings scored, set-up included": (scorer(1000), "< 3 s"),
    "hardest CFL: true next-symbol distribution after all 61 prefixes of a string": (next_symbols, ""),
    "hardest CFL: best parse of a string of length 80": (best_parse, ""),
    "Dyck, published: test set (3,100 strings, lengths 40..100) and its bounds": (
        lambda: evaluation_set(dyck(variant="published")).lower_bounds_by_length(),
        "",
    ),
    "padded reversal, published: test set (6,100 strings) and its bounds": (
        lambda: evaluation_set(get_language("padded-reversal", variant="published")).lower_bounds_by_length(),
        "",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: %(default)s)")
    args = parser.parse_args()
    checks = [sys.executable, "-m", "pytest", "-q", "tests/languages/test_language_tasks.py", "-k", "recorded"]
    if subprocess.run(checks, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        print("the recorded probabilities are not reproduced: no speed is reported", file=sys.stderr)
        return 1
    lines = ["| case | median | slowest | median CPU time | target |", "| --- | --- | --- | --- | --- |"]
    for name, (case, goal) in CASES.items():
        times, cpu = [], []
        for _ in range(args.repeats):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            case()
            times.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
        middle, busy = statistics.median(times), statistics.median(cpu)
        lines.append(f"| {name} | {middle:.2f} s | {max(times):.2f} s | {busy:.2f} s | {goal} |")
        print(lines[-1], flush=True)
    threads = os.environ.get("OMP_NUM_THREADS", "one per core")
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
    )
    text = (
        "# Languages: sampling and scoring\n\n"
        f"`python benchmarks/languages.py --repeats {args.repeats}` on {machine}; BLAS threads: {threads}.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    if args.out is not None:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
