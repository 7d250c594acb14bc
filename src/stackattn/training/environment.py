"""The environment of a run: versions, hardware and memory."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..ops import backends


def describe_environment() -> dict[str, Any]:
    """Return the versions, threads, processes, hardware and backends that a run stores in its environment.json."""
    return {
        "stackattn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", 1)),
        "backends": backends(),
    }


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes (GPU memory if a GPU is in use), or None if it is unknown."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    for line in _lines("/proc/self/status"):  # on Linux, getrusage may report the peak of the parent process
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_freed_memory() -> bool:
    """Make the process keep freed memory instead of returning it to the system; return whether this succeeded.

    Every training step allocates the same large tensors. The GNU C library returns their memory to the system,
    which has to clear and map the pages again at the next step. With other C libraries, nothing is changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_max, never = -1, -4, -1  # M_TRIM_THRESHOLD and M_MMAP_MAX in malloc.h
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(mmap_max, 0) and libc.mallopt(trim_threshold, never))


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _lines(path: str) -> list[str]:
    """The lines of a system file; empty if it cannot be read."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
