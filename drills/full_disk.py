"""Training on a disk that becomes full: an error that names the file, and the same bits after the run is resumed.

The disk is a small tmpfs, which only root can mount; without root, the drill is skipped.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from stackattn.training import RunError, TrainingRun, run_experiment

from . import samples
from .drill import Case, Drill, Failed, Skipped

EPOCHS = 6


def mount(folder: Path, kilobytes: int, options: str = "") -> None:
    """Mount a tmpfs of this size on the folder; raise `Skipped` if that is not possible."""
    command = ["mount", "-t", "tmpfs", "-o", f"{options}size={kilobytes}k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        raise Skipped(f"a tmpfs cannot be mounted here: {reason.strip()}") from None


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    torch.set_num_threads(1)
    config = samples.cfl_config(epochs=EPOCHS)
    run_experiment(config, folder / "undisturbed")
    expected = samples.outcome(folder / "undisturbed")
    kilobytes = sum(path.stat().st_size for path in (folder / "undisturbed").rglob("*")) // 1024
    disk = folder / "disk"
    disk.mkdir()
    mount(disk, 4)
    subprocess.run(["umount", str(disk)], check=True)

    def case(rng: random.Random) -> str:
        size = 4 * rng.randint(1, kilobytes // 2)
        mount(disk, size)
        run = disk / "run"
        try:
            attempts = 0
            while not TrainingRun(run).finished:
                attempts += 1
                if attempts > 100:
                    raise Failed(f"not finished after 100 attempts, with {size} kB")
                try:
                    run_experiment(config, run, resume=True)
                except RunError as error:
                    if str(run) not in str(error) or "No space left" not in str(error):
                        raise Failed(f"the error does not name the file and the cause: {error}") from error
                    size += 4 * rng.randint(1, 8)
                    mount(disk, size, "remount,")
            if samples.outcome(run) != expected:
                raise Failed(f"different results after {attempts} attempts")
            if left := [path.name for path in run.rglob(".*")]:
                raise Failed(f"temporary files are left: {left}")
        finally:
            shutil.rmtree(run, ignore_errors=True)
            subprocess.run(["umount", str(disk)], check=True)
        return "same bits after a full disk" if attempts > 1 else "the disk was large enough"

    yield case


DRILL = Drill("full_disk", 8, 200, prepare)
