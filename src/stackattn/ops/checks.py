"""Validation of the operators' arguments. Messages name the argument, what was expected, and what was found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .immediate import is_traced, reads_values
from .lengths import length_mask

MAX_LIMIT = 2**31 - 1
"""Maximum depth or window of a stack."""
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class SequenceError(ValueError):
    """An invalid value in one sequence of a batch.

    Args:
        message: the message, with `{}` in place of the position of the sequence.
        sequence: position of the sequence in the batch.
    """

    def __init__(self, message: str, sequence: int):
        super().__init__(message, sequence)
        self.message, self.sequence = message, sequence

    def __str__(self) -> str:
        return self.message.format(self.sequence)


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
        raise ValueError(f"log_push: expected at least one state and one symbol, got shape {tuple(log_push.shape)}")
    for name, expected in (("log_replace", log_push.shape), ("log_pop", log_push.shape[:5])):
        if named[name].shape != expected:
            matching = f"shape {tuple(expected)} to match log_push {tuple(log_push.shape)}"
            raise ValueError(f"{name}: expected {matching}, got {tuple(named[name].shape)}")
        for what in ("dtype", "device"):
            if getattr(named[name], what) != getattr(log_push, what):
                raise (TypeError if what == "dtype" else ValueError)(
                    f"{name}: expected {what} {getattr(log_push, what)} like log_push, got {getattr(named[name], what)}"
                )
    check_lengths(lengths, log_push)


def check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    _check_dense(name, x)
    if x.dtype not in FLOATS:
        hint = "" if x.is_complex() else "; convert it with .float()"
        raise TypeError(f"{name}: expected one of float32, float64, bfloat16, float16, got {x.dtype}{hint}")


def _check_dense(name: str, x: Tensor) -> None:
    """Check that `x` is neither sparse, nor nested, nor in the layout of another library."""
    if x.layout != torch.strided or x.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got {'a nested tensor' if x.is_nested else x.layout}")


def check_lengths(lengths: Tensor | None, x: Tensor) -> None:
    if lengths is None:
        return
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths: expected a tensor of shape ({x.shape[0]},) or None, got {type(lengths).__name__}")
    _check_dense("lengths", lengths)
    if not _has_integers(lengths):
        hint = "; convert it with .long()" if lengths.is_floating_point() else ""
        raise TypeError(f"lengths: expected an integer dtype, got {lengths.dtype}{hint}")
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"lengths: expected shape ({x.shape[0]},), got {tuple(lengths.shape)}")
    if lengths.device != x.device:
        raise ValueError(
            f"lengths: expected device {x.device} like the other arguments, got {lengths.device}; move it with .to"
        )


def check_count(name: str, count: int, *, least: int = 1) -> None:
    """Check that `count` is an integer of at least `least`, which is 0 or 1."""
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise ValueError(f"{name}: expected a {'positive' if least else 'non-negative'} integer, got {count!r}")


def check_limit(name: str, limit: int | None) -> None:
    """Check the depth or window of a stack; None means no limit."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"{name}: expected a positive integer, or None for no limit, got {limit!r}")
    if limit is not None and limit > MAX_LIMIT:
        raise ValueError(f"{name}: expected at most {MAX_LIMIT}, or None for no limit, got {limit}")


def check_values(values: Tensor, actions: Tensor, rows: int) -> None:
    """Check the vectors of the elements: (B, rows, m), on the device of `actions`."""
    check_tensor("values", values)
    if values.dim() != 3 or values.shape[:2] != (actions.shape[0], rows) or values.shape[2] == 0:
        expected = f"shape ({actions.shape[0]}, {rows}, m) with m >= 1"
        raise ValueError(f"values: expected {expected}, got {tuple(values.shape)}")
    if values.device != actions.device:
        raise ValueError(
            f"values: expected device {actions.device} like the other arguments, got {values.device}; move it with .to"
        )


def check_same_batch(name: str, x: Tensor, state: Any) -> None:
    """Check that `x` fits the batch size and device of a state."""
    if x.shape[0] != state.batch_size:
        raise ValueError(f"{name}: expected batch size {state.batch_size} like the state, got {x.shape[0]}")
    if x.device != state.device:
        raise ValueError(f"{name}: expected device {state.device} like the state, got {x.device}; move it with .to")


def check_same_automaton(name: str, steps: Tensor, num_states: int, num_symbols: int) -> None:
    """Check that joined transitions (B, c, Q, S, Q S + Q S + Q) fit the automaton of a state."""
    if (got := tuple(steps.shape[2:4])) != (num_states, num_symbols):
        expected = f"Q = {num_states} and S = {num_symbols}, with which the state was created"
        raise ValueError(f"{name}: expected {expected}, got Q = {got[0]} and S = {got[1]}")


def check_rows(rows: Tensor, state: Any) -> Tensor:
    """The mask of sequences in the batch of a state, validated."""
    expected = f"rows: expected a bool tensor of shape ({state.batch_size},), got"
    if not isinstance(rows, Tensor) or rows.dtype != torch.bool:
        raise TypeError(f"{expected} {_description(rows)}")
    if rows.shape != (state.batch_size,):
        raise ValueError(f"{expected} {_description(rows)}")
    if rows.device != state.device:
        raise ValueError(f"rows: expected device {state.device} like the state, got {rows.device}")
    return rows


def _has_integers(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _description(x: object) -> str:
    return f"shape {tuple(x.shape)} and {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


# The following checks read values. Operators call them in their implementations, which torch.compile does not trace.


def copy_lengths(lengths: Tensor | None, T: int) -> Tensor | None:
    """Return an int64 copy of `lengths`, validated, or clamped where values are not read (immediate.py).

    The copy is necessary because the kernel computes addresses from the lengths, and the caller may overwrite the
    original at any time, for instance through NumPy.
    """
    if lengths is None:
        return None
    lengths = lengths.to(torch.int64, copy=True)
    if not reads_values(lengths.device):
        return lengths.clamp_(0, T)
    bad = ((lengths < 0) | (lengths > T)).nonzero()
    if len(bad):
        b = int(bad[0])
        raise SequenceError(f"lengths: expected values from 0 to T = {T}, got {int(lengths[b])} for sequence {{}}", b)
    return lengths


def checked_lengths(lengths: Tensor | None, T: int) -> Tensor | None:
    """Like `copy_lengths`, for callers that are traced: then nothing is checked, and the result is `lengths` itself."""
    return lengths if is_traced() else copy_lengths(lengths, T)


def check_index(index: Tensor, state: Any) -> Tensor:
    """The positions of sequences in the batch of a state, validated, as int64."""
    if not isinstance(index, Tensor) or not _has_integers(index):
        raise TypeError(f"index: expected a tensor of integers of shape (N,), got {_description(index)}")
    if index.dim() != 1:
        raise ValueError(f"index: expected a tensor of integers of shape (N,), got {_description(index)}")
    if index.device != state.device:
        raise ValueError(f"index: expected device {state.device} like the state, got {index.device}")
    if reads_values(index.device) and (wrong := (index < 0) | (index >= state.batch_size)).any():
        raise ValueError(f"index: expected integers from 0 to {state.batch_size - 1}, got {int(index[wrong][0])}")
    return index.long()


def check_numbers(name: str, x: Tensor, lengths: Tensor | None, minus_infinity: bool) -> None:
    """Raise ValueError for nan or infinity within the lengths; with `minus_infinity`, -inf is allowed.

    Where values are not read (immediate.py), nothing is checked: nan and infinity make the results nan.
    """
    if not reads_values(x.device):
        return
    good = (x < torch.inf) if minus_infinity else x.isfinite()
    good = good.flatten(2).all(2)
    if lengths is not None:
        good |= ~length_mask(lengths, x.shape[1])
    if not good.all():
        b, t = (~good).nonzero()[0].tolist()
        raise bad_number(name, b, t, minus_infinity)


def bad_number(name: str, sequence: int, step: int, minus_infinity: bool) -> SequenceError:
    allowed = "finite numbers or -inf" if minus_infinity else "finite numbers"
    return SequenceError(f"{name}: expected {allowed}, got nan or inf in sequence {{}} at step {step}", sequence)
