"""Packed documents: several sequences in one row of a batch, each computed as if it were alone.

The documents are gathered into batches of similar lengths, so that a batch has at most twice as many steps as its
documents. This works for every causal function without a mask, and attention costs the sum of the squared lengths of
the documents instead of the squared length of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import checks
from .lengths import length_mask


def by_documents(
    function: Callable[..., Any], starts: Tensor, *tensors: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """Apply a function of sequences to each document of packed rows.

    Args:
        function: called as `function(*tensors, lengths)` with documents (N, L, ...) and their lengths (N,), once for
            each range of lengths; returns (N, L, ...).
        starts: (B, T), bool
            The first step of each document. The first step of a row always starts a document.
        tensors: (B, T, ...) each
        lengths: (B,), optional
            Number of steps of each row. Later steps are ignored; their results are zero.

    Returns:
        (B, T, ...): the results of all documents, in their places.

    Raises:
        TypeError, ValueError: wrong dtype, shape or device of `starts` or `lengths`.

    Examples::

        >>> import torch
        >>> from stackattn import by_documents, superposition_readings
        >>> actions, values = torch.rand(1, 5, 3).softmax(-1), torch.rand(1, 5, 2)
        >>> starts = torch.tensor([[True, False, False, True, False]])
        >>> readings = by_documents(superposition_readings, starts, actions, values)
        >>> second = superposition_readings(actions[:, 3:], values[:, 3:])  # the second document alone
        >>> torch.testing.assert_close(readings[:, 3:], second)
    """
    B, T = _check(starts, tensors[0])
    checks.check_lengths(lengths, tensors[0])
    lengths = checks.copy_lengths(lengths, T)
    valid = starts.new_ones(B, T) if lengths is None else length_mask(lengths, T)
    begins = starts.clone()
    begins[:, :1] = True
    begins &= valid
    first = begins.flatten().nonzero()[:, 0]  # (D,): where each document begins in the flattened batch
    sizes = torch.bincount((begins.flatten().cumsum(0) - 1)[valid.flatten()], minlength=len(first))  # (D,)
    if len(first) == 0 or len(first) == B:
        return function(*tensors, lengths)
    rows = [x.flatten(0, 1) for x in tensors]
    classes = (sizes - 1).double().clamp(min=0.5).log2().floor()  # lengths 1..2, 3..4, 5..8, 9..16, ...
    places, results = [], []
    for size_class in classes.unique().tolist():
        chosen = (classes == size_class).nonzero()[:, 0]
        longest = int(sizes[chosen].max())
        index = first[chosen, None] + torch.arange(longest, device=starts.device)  # (N, L)
        inside = length_mask(sizes[chosen], longest)
        documents = [x[index.clamp(max=B * T - 1)] for x in rows]
        results.append(function(*documents, sizes[chosen])[inside])
        places.append(index[inside])
    found = torch.cat(results)
    return found.new_zeros(B * T, *found.shape[1:]).index_copy(0, torch.cat(places), found).unflatten(0, (B, T))


def extend_by_documents(
    state: Any,
    extend: Callable[..., tuple[Tensor, Any]],
    alone: Callable[..., Tensor],
    starts: Tensor,
    *tensors: Tensor,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Extend states by packed rows; what comes before the first start of a row continues the document of its state.

    Args:
        state: states of B sequences, with a method `restart`.
        extend: called as `extend(state, *tensors, lengths)`; returns (N, L, ...) and the new state.
        alone: like `function` of `by_documents`, for documents that begin and end in the row.
        starts: (B, T), bool
            The first step of each new document.
        tensors: (B, T, ...) each
        lengths: (B,), optional
            Number of steps of each row.

    Returns:
        (B, T, ...): the results of all steps, in their places; and the states after the last document of each row.
    """
    B, T = _check(starts, tensors[0])
    checks.check_lengths(lengths, tensors[0])
    lengths = checks.copy_lengths(lengths, T)
    ends = starts.new_full((B,), T, dtype=torch.long) if lengths is None else lengths.long()
    begins = starts & length_mask(ends, T)
    restarted = begins.any(1)  # (B,)
    if not restarted.any():
        return extend(state, *tensors, lengths)
    times = torch.arange(T, device=starts.device)
    first = ends.minimum(times.where(begins, T).amin(1))  # (B,): end of the part that continues the state
    last = times.where(begins, 0).amax(1)  # (B,): start of the last document
    result, new_state = _part(partial(extend, state.restart(restarted)), tensors, last, ends)
    parts = [result]
    if (first[restarted] > 0).any():
        end = first.where(restarted, 0)
        parts.append(_part(partial(extend, state), tensors, torch.zeros_like(end), end)[0])
    if (first < last).any():
        by_starts = lambda s, *x: (by_documents(alone, s, *x[:-1], lengths=x[-1]), None)  # noqa: E731
        parts.append(_part(by_starts, (starts, *tensors), first.where(restarted, 0), last)[0])
    return sum(parts[1:], parts[0]), new_state


def _part(extend: Callable[..., tuple[Tensor, Any]], tensors: Sequence[Tensor], first: Tensor, end: Tensor):
    """Results of the steps from `first` to `end` (B,) of each row, in their places and zero elsewhere; the state."""
    B, T = tensors[0].shape[:2]
    sizes = end - first
    steps = torch.arange(int(sizes.max()), device=first.device)
    index = first[:, None] + steps  # (B, L)
    rows = torch.arange(B, device=first.device)[:, None]
    found, state = extend(*(x[rows, index.clamp(max=T - 1)] for x in tensors), sizes)
    inside = steps < sizes[:, None]
    places = (rows.expand_as(index)[inside], index[inside])
    return found.new_zeros(B, T, *found.shape[2:]).index_put(places, found[inside]), state


def _check(starts: Tensor, x: Tensor) -> tuple[int, int]:
    if not isinstance(starts, Tensor) or starts.dtype != torch.bool:
        found = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise TypeError(f"starts: expected a tensor of bool, got {found}")
    if starts.shape != x.shape[:2]:
        raise ValueError(f"starts: expected shape {tuple(x.shape[:2])}, got {tuple(starts.shape)}")
    if starts.device != x.device:
        raise ValueError(f"starts: expected device {x.device} like the other arguments, got {starts.device}")
    return x.shape[0], x.shape[1]
