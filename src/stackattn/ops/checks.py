"""What the operators ask of their arguments. Every message names the argument, what was expected and what came."""

from __future__ import annotations

import torch
from torch import Tensor

from .lengths import length_mask

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_actions(actions: Tensor, lengths: Tensor | None) -> None:
    check_tensor("actions", actions)
    if actions.dim() != 3 or actions.shape[2] != 3:
        raise ValueError(f"actions: expected shape (B, T, 3) for push, no-op and pop, got {tuple(actions.shape)}")
    check_lengths(lengths, actions)


def check_transitions(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> None:
    named = {"log_push": log_push, "log_replace": log_replace, "log_pop": log_pop}
    for name, x in named.items():
        check_tensor(name, x)
    if log_push.dim() != 6 or log_push.shape[2:4] != log_push.shape[4:6]:
        raise ValueError(f"log_push: expected shape (B, T, Q, S, Q, S), got {tuple(log_push.shape)}")
    if 0 in log_push.shape[2:]:
        raise ValueError(f"log_push: expected at least one state and one symbol, got {tuple(log_push.shape)}")
    for name, expected in (("log_replace", log_push.shape), ("log_pop", log_push.shape[:5])):
        if named[name].shape != expected:
            pair = f"shape {tuple(expected)} to go with log_push {tuple(log_push.shape)}"
            raise ValueError(f"{name}: expected {pair}, got {tuple(named[name].shape)}")
        for what in ("dtype", "device"):
            if getattr(named[name], what) != getattr(log_push, what):
                raise (TypeError if what == "dtype" else ValueError)(
                    f"{name}: expected {what} {getattr(log_push, what)} like log_push, got {getattr(named[name], what)}"
                )
    check_lengths(lengths, log_push)


def check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name}: expected one of float32, float64, bfloat16, float16, got {x.dtype}")


def check_lengths(lengths: Tensor | None, x: Tensor) -> None:
    if lengths is None:
        return
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths: expected a tensor of shape ({x.shape[0]},) or None, got {type(lengths).__name__}")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths: expected an integer dtype, got {lengths.dtype}")
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"lengths: expected shape ({x.shape[0]},), got {tuple(lengths.shape)}")
    if lengths.device != x.device:
        raise ValueError(f"lengths: expected device {x.device} like the other arguments, got {lengths.device}")


# What follows looks at the numbers, so it lives inside the operators, where torch.compile does not trace.


def copy_lengths(lengths: Tensor | None, T: int) -> Tensor | None:
    """A validated int64 copy: the caller may overwrite the memory of `lengths` at any time, for instance through NumPy,
    and the kernel computes addresses from it."""
    if lengths is None:
        return None
    lengths = lengths.to(torch.int64, copy=True)
    bad = ((lengths < 0) | (lengths > T)).nonzero()
    if len(bad):
        b = int(bad[0])
        raise ValueError(f"lengths: expected values from 0 to T = {T}, got {int(lengths[b])} for sequence {b}")
    return lengths


def check_numbers(name: str, x: Tensor, lengths: Tensor | None, minus_infinity: bool) -> None:
    """No nan and no infinity inside the lengths; -inf is allowed where it means a forbidden transition."""
    good = (x < torch.inf) if minus_infinity else x.isfinite()
    good = good.flatten(2).all(2)
    if lengths is not None:
        good |= ~length_mask(lengths, x.shape[1])
    if not good.all():
        b, t = (~good).nonzero()[0].tolist()
        raise bad_number(name, b, t, minus_infinity)


def bad_number(name: str, sequence: int, step: int, minus_infinity: bool) -> ValueError:
    allowed = "finite numbers or -inf" if minus_infinity else "finite numbers"
    return ValueError(f"{name}: expected {allowed}, got nan or inf in sequence {sequence} at step {step}")
