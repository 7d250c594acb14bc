"""A run is a folder: what was asked for, on what machine, what came out, and enough to go on after being killed.

    config.json        the configuration
    environment.json   versions, threads, hardware
    metrics.jsonl      one line for each evaluation
    last/              the checkpoint to go on from (model, optimiser, counters)
    best/              the model with the best validation score
    result.json        written at the end: a run that has it is finished
    tensorboard/       the same figures for TensorBoard, on request

Each file appears whole or not at all. `last/state.json` says how many lines of metrics.jsonl belong to it; what was
written after it is cut off when the run goes on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..config import from_values, to_values
from ..files import remove_partial, write_atomically, write_json, write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}  # what file servers answer that have none
STATE = {"plateau", "stopping", "progress", "learning_rate", "metrics", "tensors"}


class RunError(RuntimeError):
    """A run that cannot start, go on or be read; the message has the folder and what to do."""


class RunBusy(RunError):
    """Another process is working on the run."""


class TrainingRun:
    def __init__(self, folder: str | Path, tensorboard: bool = False):
        self.folder = Path(folder)
        self._tensorboard = tensorboard
        self._scalars: Any = None
        self._lock: int | None = None

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def begun(self) -> bool:
        return (self.folder / "config.json").exists()

    def check(self, config: Any, resume: bool) -> None:
        """Whether this configuration may run here, before anything slow is done."""
        if self.finished:
            raise RunError(f"{self.folder}: this run is finished; choose another folder")
        if not self.begun:
            return
        if not resume:
            raise RunError(f"{self.folder}: there is a run already; go on with --resume or choose another folder")
        if there := self.differs(config):
            raise RunError(f"{self.folder}: the run there has another configuration ({there}); choose another folder")
        # One evaluation may have been all before the first checkpoint: such a run is begun again.
        if self.state() is None and (len(self.metrics()) > 1 or (self.folder / "test.json").exists()):
            missing = "its checkpoint (last/) was not kept, so it cannot go on"
            raise RunError(f"{self.folder}: {missing}; its results can be shown; to train it, choose another folder")

    def start(self, config: Any, resume: bool) -> dict[str, Any] | None:
        """Make or enter the folder. Returns the state to go on from (see `state`)."""
        self.check(config, resume)
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            remove_partial(self.folder)
            if not self.begun:
                write_json(self.folder / "config.json", to_values(config))
            write_json(self.folder / "environment.json", environment())
            state = self.state()
            lines = state["metrics"] if state else 0
            self._cut_metrics(lines)
            if self._tensorboard:
                self._scalars = _summary_writer(self.folder / "tensorboard", lines + 1)
        return state

    def close(self) -> None:
        """Leave the folder to others."""
        if self._scalars is not None:
            self._scalars.close()
        if self._lock is not None:
            os.close(self._lock)
        self._scalars = self._lock = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns what a full disk or a folder without permission raises into a RunError."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            kept = (self.folder / "last/state.json").exists()
            whole = "; what was written before is whole, --resume goes on from it" if kept else ""
            raise RunError(f"{self.folder}: cannot write: {reason}{whole}") from error

    def differs(self, config: Any) -> str | None:
        """The first key of this configuration, a dataclass, that is another one there, and how."""
        there = from_values(type(config), self.config(), source=str(self.folder / "config.json"))  # with new keys too
        return _different(to_values(there), to_values(config))

    def config(self) -> dict[str, Any]:
        return self._read("config.json")

    def result(self) -> dict[str, Any]:
        return self._read("result.json")

    def model_checksum(self) -> str | None:
        """Of the best model, if it is there. A test has it, so that one of an earlier model counts for nothing."""
        path = self.folder / "best/model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None

    @property
    def without_model(self) -> str:
        """Why there is no best model; empty if there is one."""
        if (self.folder / "best/model.safetensors").exists():
            return ""
        metrics = self.metrics()
        if any(math.isfinite(values["score"]) for values in metrics):
            return "model not kept"
        return "no finite score" if metrics else "no evaluation yet"

    def test(self) -> dict[str, Any] | None:
        """What was measured of the best model on test data, and kept in `test.json`; not if it was another model."""
        if not (self.folder / "test.json").exists():
            return None
        found, known = self._read("test.json"), self.model_checksum()
        return found if known is None or found.get("model") == known else None

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # what has no newline behind it was never finished

    def seconds(self) -> float:
        """How long it has been running, over all the times that it was taken up."""
        state = self.state()
        return state["progress"]["seconds"] if state else 0.0

    def log(self, values: dict[str, Any]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._scalars is not None:
            for name, value in values.items():
                if isinstance(value, int | float) and name != "evaluation":
                    self._scalars.add_scalar(name, value, values["evaluation"])
            self._scalars.flush()

    def save_checkpoint(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        random_states: Sequence[Tensor],
    ) -> None:
        """The state names its tensor file, so the one rename of state.json moves from one checkpoint to the next.

        `random_states` are those of all processes that train the model.
        """
        last = self.folder / "last"
        last.mkdir(exist_ok=True)
        name = f"{state['progress']['examples']:09d}.safetensors"
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, values in optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in values.items()})
        tensors.update({f"rng.{rank}": x for rank, x in enumerate(random_states)})
        _save(tensors, last / name)
        write_json(last / "state.json", {**state, "tensors": name})
        for old in last.glob("*.safetensors"):
            if old.name != name:
                old.unlink()

    def load_checkpoint(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], rank: int = 0
    ) -> None:
        path = self.folder / "last" / state["tensors"]
        try:
            tensors = load_file(path)
            model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
            saved = optimizer.state_dict()
            saved["state"] = {}
            for key, value in tensors.items():
                if key.startswith("optimizer."):
                    _, i, name = key.split(".")
                    saved["state"].setdefault(int(i), {})[name] = value
            optimizer.load_state_dict(saved)
            if f"rng.{rank}" in tensors or rank == 0:  # there may have been fewer processes
                torch.set_rng_state(tensors[f"rng.{rank}"])
        except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
            raise RunError(_damaged(path, error)) from error

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.folder / "result.json", result)

    def _cut_metrics(self, lines: int) -> None:
        path = self.folder / "metrics.jsonl"
        kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines] if path.exists() else []
        if len(kept) < lines:
            reason = f"it belongs to {lines} lines of metrics.jsonl, which has {len(kept)}"
            raise RunError(_damaged(self.folder / "last/state.json", reason))
        write_text(path, "".join(kept))

    def state(self) -> dict[str, Any] | None:
        """Of the last checkpoint, or None at the beginning."""
        path = self.folder / "last/state.json"
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            missing = STATE - state.keys()
        except (ValueError, AttributeError) as error:
            raise RunError(_damaged(path, error)) from None
        if missing:
            raise RunError(_damaged(path, f"missing {', '.join(sorted(missing))}"))
        return state

    def _take_lock(self) -> None:
        """Two processes in one folder would spoil it. The system lets go of the lock when the process ends."""
        if fcntl is None:
            return
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunBusy(f"{self.folder}: another process is working on this run") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            alone = "see to it that no other process works on this run"
            logging.getLogger(__name__).warning(f"{self.folder}: no locks here ({error.strerror}); {alone}")

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path}: no such file; is {self.folder} the folder of a run?") from None
        except json.JSONDecodeError as error:
            raise RunError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None


def _damaged(path: Path, reason: object) -> str:
    return f"{path}: the checkpoint cannot be read: {reason}; remove {path.parent.parent} to start again"


def _different(there: Any, here: Any, prefix: str = "") -> str | None:
    """The first key where two configurations differ, and how."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return None if there == here else f"{prefix}: {there!r}, not {here!r}"
    for key in [*there, *(key for key in here if key not in there)]:
        name = f"{prefix}.{key}" if prefix else key
        if (found := _different(there.get(key), here.get(key), name)) is not None:
            return found
    return None


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RunError("TensorBoard is not there: pip install 'stackattn[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=step)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    contiguous = {k: v.detach().contiguous() for k, v in tensors.items()}
    write_atomically(path, lambda partial: save_file(contiguous, partial))


def environment() -> dict[str, Any]:
    from .. import __version__
    from ..ops import backends

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
    """The most memory this process has used so far, in bytes: on the GPU if there is one in use."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    for line in _lines("/proc/self/status"):  # Linux; its getrusage counts the process, too, that started this one
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _lines(path: str) -> list[str]:
    """Of a file that only some systems have."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
