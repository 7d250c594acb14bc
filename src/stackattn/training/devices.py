"""The device of a model: its name, its random state, and the precision of its computations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def find_device(name: str) -> torch.device:
    """Return the PyTorch device with this name, such as `cpu` or `cuda:1`, if it is available on this machine.

    Raises:
        ValueError: PyTorch has no device with this name, or the device is not available on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: expected a PyTorch device, such as cpu or cuda, got {name!r}") from error
    if device.type in ("cpu", "meta"):
        return device
    module: Any = getattr(torch, device.type, None)  # torch.cuda, torch.mps, torch.xpu
    count = module.device_count() if hasattr(module, "device_count") else 0
    if (device.index or 0) >= count:
        found = "no device of this type on this machine; use cpu"
        if count:
            found = f"{count} device{'s' * (count > 1)} of this type, numbered from 0; choose another number"
        raise ValueError(f"device: {name!r} is not available: PyTorch finds {found}")
    return device


def random_state(device: torch.device) -> Tensor:
    """Return the state of the CPU's random generator and, for CUDA, that of the GPU, which draws the dropout masks."""
    own = torch.get_rng_state()
    return torch.cat([own, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else own


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Restore a state from `random_state`: only that of the CPU if it was saved on another kind of device."""
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the autocast context for a precision; see `TrainingConfig.precision`."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
