"""The processes that train one model: one by default, several under `torchrun`.

Each process computes its share of every batch, and DistributedDataParallel averages the gradients. Without dropout, the
results therefore equal those of a single process up to rounding; with dropout, each process draws its own masks. Only
the first process evaluates and writes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .devices import find_device, random_state
from .run_files import RunError


class Processes:
    """The rank and the device of this process, and the number of processes, from the environment set by `torchrun`.

    Args:
        device: a PyTorch device; `cuda` without a number is the GPU with the local rank of the process.

    Raises:
        ValueError: the device is not available, or it is a GPU with a number and this machine has several processes.
    """

    def __init__(self, device: str = "cpu"):
        self.rank, self.count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = find_device(device)
        if self.device.type == "cuda":
            if self.device.index is None:
                self.device = find_device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
            elif int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
                raise ValueError(
                    f"device: expected cuda without a number under torchrun, which assigns the GPUs, got {device!r}"
                )
            torch.cuda.set_device(self.device)

    @property
    def first(self) -> bool:
        """Whether this process has rank 0."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Connect the processes; if one of them is lost, the others raise RunError."""
        if self.count == 1:
            yield
            return
        try:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(hours=12))  # the other ranks wait while rank 0 evaluates
            with self._sigterm_as_error():  # not earlier: Python handles no signals while connecting
                yield
        except RunError:
            raise
        except RuntimeError as error:  # gloo and nccl have no specific exception class for this
            if not any(word in str(error).lower() for word in ("gloo", "nccl", "peer", "connection", "timed out")):
                raise
            raise self._lost(f"lost the connection to the others: {str(error).splitlines()[0]}") from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    @contextmanager
    def _sigterm_as_error(self) -> Iterator[None]:
        """Raise RunError on SIGTERM, which torchrun sends to the remaining processes when one has died."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
            yield
            return

        def end(*_: Any) -> None:
            raise self._lost("received SIGTERM, probably because another process has died")

        before = signal.signal(signal.SIGTERM, end)
        try:
            yield
        except BaseException:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the error handling
            raise
        signal.signal(signal.SIGTERM, before)

    def _lost(self, what: str) -> RunError:
        return RunError(
            f"rank {self.rank} of {self.count} processes {what}; pass --resume to continue from the last checkpoint"
        )

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that its backward pass averages the gradients of all processes."""
        if self.count == 1:
            return model
        return DistributedDataParallel(
            model, find_unused_parameters=getattr(model, "may_leave_parameters_unused", False)
        )

    def mean(self, *numbers: float) -> list[float]:
        """Return the mean of each number over all processes; the result is bitwise identical in all of them."""
        if self.count == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return (total / self.count).tolist()

    def from_first(self, values: Any) -> Any:
        """Broadcast the values of the first process to all processes."""
        if self.count == 1:
            return values
        box = [values]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def random_states(self) -> list[Tensor]:
        """Return the states of the random generators of all processes."""
        own = random_state(self.device)
        if self.count == 1:
            return [own]
        states = [torch.empty_like(own, device=self.device) for _ in range(self.count)]
        dist.all_gather(states, own.to(self.device))
        return [state.cpu() for state in states]
