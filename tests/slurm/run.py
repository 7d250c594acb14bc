"""Run the array job of docs/clusters.md on a real SLURM cluster with one node: `python tests/slurm/run.py`.

Ten tiny runs go through a lost node, a requeued task and a killed process; two long runs reach their time limit, one
with and one without the warning signal. Interrupted runs must resume, the killed run must give the metrics of an
uninterrupted one, and the two long runs must agree. This takes about three minutes. Without SLURM (`apt install
slurm-wlm munge`), the script says so and exits with code 0, or 1 with `--required`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster, missing_programs, wait_until

ROOT = Path(__file__).parents[2]
TASKS = 10
MEMORY = 2048  # MB for each task, as in the recipe
TINY = [
    *("language.lengths=[5,10]", "language.train_batches=5", "language.validation_batches=2", "language.batch_size=4"),
    *("model.d_model=8", "training.stop_patience=100000"),
]
EPOCHS, ENDLESS = 40, 1_000_000


def recipe() -> str:
    """The script that the documentation shows."""
    page = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
    found = re.search(r"^## Array jobs.*?^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found, "docs/clusters.md: expected a bash block in the section Array jobs"
    return found[1]


def command(epochs: int) -> list[str]:
    """`stackattn` with the options that make the runs of `reproduce figure-2` tiny."""
    options = ["--tasks", "dyck", "--models", "tf", "--restarts", str(TASKS), "--set", *TINY]
    return [sys.executable, "-m", "stackattn", "reproduce", "figure-2", *options, f"training.max_epochs={epochs}"]


def evaluations(run: Path) -> list[dict]:
    """Metrics of a run at each evaluation, without those that depend on the time or the machine."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    measured = ("seconds", "train_seconds", "cpu_seconds", "memory", "crc32")
    return [{key: value for key, value in line.items() if key not in measured} for line in lines]


class Array:
    """The recipe with another output folder and another `stackattn`: a script that adds the options of `command`."""

    def __init__(self, cluster: Cluster, name: str, epochs: int):
        self.cluster, self.out = cluster, cluster.folder / name
        programs = cluster.folder / f"{name}-programs"
        programs.mkdir(exist_ok=True)
        program = programs / "stackattn"
        program.write_text(f'#!/bin/sh\nshift 2\nexec {shlex.join(command(epochs))} "$@"\n')
        program.chmod(0o755)
        self.script = cluster.folder / f"{name}.sh"
        text = recipe().replace("/shared/figure-2", str(self.out))
        self.script.write_text(re.sub(r"^stackattn ", f"{program} ", text, flags=re.MULTILINE))
        self.id = ""

    def submit(self, *options: str) -> None:
        """Submit the array; options override those of the recipe."""
        self.id = self.cluster.submit(self.script, *options)

    def task(self, number: int) -> str:
        return f"{self.id}_{number}"

    def run(self, number: int) -> Path:
        return self.out / "dyck/tf" / f"{number:02d}"

    def finished(self, number: int) -> bool:
        return (self.run(number) / "result.json").exists()

    def wait_for_evaluations(self, number: int, count: int, seconds: float = 60) -> None:
        what = f"{count} evaluations in {self.run(number)}"
        wait_until(lambda: len(evaluations(self.run(number))) >= count, what, seconds)

    def output(self, number: int) -> str:
        return (self.cluster.folder / f"slurm-{self.task(number)}.out").read_text(encoding="utf-8")

    def kill(self, number: int) -> None:
        """Send SIGKILL to the Python processes of a task, not to its shell."""
        mark = {f"SLURM_ARRAY_JOB_ID={self.id}".encode(), f"SLURM_ARRAY_TASK_ID={number}".encode()}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark <= set((entry / "environ").read_bytes().split(b"\0"))
                if ours and b"python" in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:  # the process has ended, or belongs to another user
                continue


def lose_node(first: Array) -> None:
    """Lose the node on which tasks 0 and 1 run; SLURM requeues them."""
    cluster = first.cluster
    for number in (0, 1):
        first.wait_for_evaluations(number, 2)
    assert not first.finished(0), "the runs are too short to be interrupted"
    assert not first.finished(1), "the runs are too short to be interrupted"
    cluster.lose_node()
    for number in (0, 1):
        cluster.wait_for(first.task(number), "PENDING", seconds=60)
    cluster.start_node()
    say("node lost; SLURM requeued its two tasks")


def requeue_and_kill(array: Array) -> None:
    """Requeue task 2, as a preemption does; kill the processes of task 3."""
    cluster = array.cluster
    array.wait_for_evaluations(2, 2)
    cluster.requeue(array.task(2))
    array.wait_for_evaluations(3, 2)
    array.kill(3)
    assert cluster.wait_for(array.task(3), "FAILED", "COMPLETED", seconds=30) == "FAILED"
    say("task 2 requeued, task 3 killed")


def check_array(first: Array, array: Array) -> None:
    """All runs but the killed one are finished; a second submission finishes that run and changes no other."""
    cluster, others = array.cluster, [number for number in range(TASKS) if number != 3]
    for number in others:
        submitted = first if number < 2 else array
        cluster.wait_for(submitted.task(number), "COMPLETED", seconds=150)
        assert array.finished(number), submitted.output(number)
        if number < 3:
            attempts = submitted.output(number).count("runs are finished")
            assert attempts == 2, f"expected the output of 2 attempts, got {attempts}: {submitted.output(number)}"
    assert not array.finished(3)
    before = [(array.run(number) / "result.json").stat().st_mtime_ns for number in others]
    array.submit("--array=0,3")
    for number in (0, 3):
        cluster.wait_for(array.task(number), "COMPLETED", seconds=60)
    assert array.finished(3)
    assert before == [(array.run(number) / "result.json").stat().st_mtime_ns for number in others]
    say("all 10 runs finished after the array was submitted again")


def check_metrics(array: Array) -> None:
    """The killed run has the metrics of an uninterrupted one, and `reproduce` shows the runs."""
    control = array.out.with_name("control")
    subprocess.run([*command(EPOCHS), "--out", control, "--job", "3"], check=True, stdout=subprocess.DEVNULL)
    found, expected = (evaluations(out / "dyck/tf/03") for out in (array.out, control))
    assert len(expected) == EPOCHS
    assert found == expected, "run 3 differs from an uninterrupted one"
    shown = [*command(EPOCHS), "--out", array.out, "--budget", "0"]
    printed = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    assert "dyck" in printed, printed
    say("the killed run has the metrics of an uninterrupted one")


def check_time_limit(warned: Array, unwarned: Array) -> None:
    """The warned task requeues itself; the other one times out and resumes when submitted again."""
    cluster = warned.cluster
    wait_until(
        lambda: int(cluster.job(warned.task(0)).get("Restarts", 0)) > 0, "a requeue of the task at its time limit", 150
    )
    cluster.wait_for(warned.task(0), "RUNNING", seconds=60)
    reached = len(evaluations(warned.run(0)))
    warned.wait_for_evaluations(0, reached + 2)
    cluster.cancel(warned.id)
    say(f"time limit near: the task requeued itself after {reached} evaluations and resumed")
    assert cluster.wait_for(unwarned.task(0), "TIMEOUT", seconds=150) == "TIMEOUT"
    reached = len(evaluations(unwarned.run(0)))
    assert reached
    assert not unwarned.finished(0)
    unwarned.submit("--array=0")
    unwarned.wait_for_evaluations(0, reached + 2)
    cluster.cancel(unwarned.id)
    say(f"time limit hit after {reached} evaluations; resumed when submitted again")
    both = list(zip(evaluations(warned.run(0)), evaluations(unwarned.run(0)), strict=False))
    assert all(one == other for one, other in both), "the two runs differ"


def run(folder: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with Cluster(folder, cpus=4, memory=4 * MEMORY) as cluster:
        say("SLURM is up")
        first = Array(cluster, "array", EPOCHS)
        first.submit("--array=0-1")
        lose_node(first)
        warned, unwarned = (Array(cluster, name, ENDLESS) for name in ("warned", "unwarned"))
        # the signal may arrive up to a minute early; CONT has no effect, so the second array gets no warning
        warned.submit("--array=0", "--time=2", "--signal=B:USR1@60")
        unwarned.submit("--array=0", "--time=1", "--signal=B:CONT@10")
        array = Array(cluster, "array", EPOCHS)
        array.submit(f"--array=2-{TASKS - 1}")
        requeue_and_kill(array)
        check_array(first, array)
        check_time_limit(warned, unwarned)
        check_metrics(array)


STARTED = time.monotonic()


def say(what: str) -> None:
    print(f"{time.monotonic() - STARTED:4.0f} s: {what}", flush=True)


@contextmanager
def time_limit(seconds: int):
    def stop(*_):
        raise TimeoutError(f"expected to finish within {seconds} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is shut down
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--required", action="store_true", help="fail if SLURM is not installed")
    parser.add_argument(
        "--limit", type=int, default=290, metavar="SECONDS", help="stop after SECONDS (default: %(default)s)"
    )
    args = parser.parse_args()
    if missing := missing_programs():
        print(f"skipped: {', '.join(missing)} not found; run `apt install slurm-wlm munge`", file=sys.stderr)
        return 1 if args.required else 0
    with tempfile.TemporaryDirectory(prefix="stackattn-slurm-") as folder, time_limit(args.limit):
        try:
            run(Path(folder))
        except BaseException:
            for log in sorted([*Path(folder).glob("logs/*"), *Path(folder).glob("slurm-*.out")]):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-20:], sep="\n", file=sys.stderr)
            raise
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
