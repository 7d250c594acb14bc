"""Signals during training: a resumed run ends with the same bits as an undisturbed one.

Each case starts the real command and sends SIGKILL, SIGTERM or SIGINT after a random time. If the command ends first,
its run is finished and is compared with the undisturbed one; the next case starts a new run.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stackattn.training import TrainingRun

from . import samples
from .drill import Case, Drill, Failed, environment

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMIT = 300.0  # seconds for a whole command
BATCHES, EPOCHS = 12, 60  # many evaluations and checkpoints in a few seconds


def command(config: Path, out: Path) -> list[str]:
    """The training command, which also resumes an interrupted run."""
    words = ["cfl", "train", str(config), "--out", str(out), "--resume", "--threads", "1"]
    return [sys.executable, "-m", "stackattn", *words]


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    config = samples.write_config(folder / "config.yaml", samples.cfl_values(BATCHES, EPOCHS))
    start = time.monotonic()
    subprocess.run(command(config, folder / "undisturbed"), check=True, capture_output=True, env=environment())
    whole = time.monotonic() - start
    training = TrainingRun(folder / "undisturbed").result()["seconds"]
    expected = samples.outcome(folder / "undisturbed")
    out = folder / "run"

    def case(rng: random.Random) -> str:
        # Most signals arrive during training, which begins after the imports.
        delay = rng.uniform(max(whole - 1.5 * training, 0), whole) if rng.random() < 0.9 else rng.uniform(0, whole)
        number = rng.choice(SIGNALS)
        details = {"delay": delay, "signal": number.name}
        process = subprocess.Popen(
            command(config, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
        )  # fmt: skip
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
        if process.returncode not in (0, -number, 130):
            raise Failed(f"exit status {process.returncode} after {number.name}: {errors[-2000:]}", **details)
        if "Traceback" in errors and process.returncode != -signal.SIGINT:
            raise Failed(f"a traceback after {number.name}: {errors[-2000:]}", **details)
        if TrainingRun(out).finished:
            compare(out, **details)
            return "finished with the same bits"
        return f"resumed after {number.name}"

    def compare(run: Path, **details: object) -> None:
        if samples.outcome(run) != expected:
            kept = Path(shutil.copytree(run, Path("out/drills") / f"interrupted-{time.time_ns()}"))
            raise Failed(f"the resumed run in {kept} differs from the undisturbed one", **details)
        shutil.rmtree(run)

    yield case
    if out.exists():
        subprocess.run(command(config, out), check=True, capture_output=True, env=environment())
        compare(out)


DRILL = Drill("interruptions", 3, 100, prepare)
