"""Packed documents: several sequences in one row of a batch, each computed as if it were alone.

Documents of similar lengths are gathered into batches, so that padding at most doubles the number of steps. This works
for every causal function and needs no mask. The cost of attention is proportional to the sum of the squared lengths of
the documents, not to the squared length of the row. The assignment of steps to batches is computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checks
from .lengths import without_padding


def by_documents(
    function: Callable[..., Any], starts: Tensor, *tensors: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """Apply a function of sequences to each document of packed rows.

    Args:
        function: called as `function(*tensors, lengths)` with documents (N, L, ...) and their lengths (N,), once for
            each range of lengths; returns (N, L, ...). If each row is one document, it is called once, with the
            tensors and lengths that `by_documents` received; `lengths` may then be None.
        starts: (B, T), bool
            True at the first step of each document. The first step of a row always starts a document. If the tensors
            are on a GPU, `starts` may be on the CPU; then the call does not wait for the GPU unless `lengths` is given.
        tensors: (B, T, ...) each
        lengths: (B,), optional
            Number of steps of each row. Later steps are ignored; their results are zero.

    Returns:
        (B, T, ...): the results of all documents, in their places.

    Raises:
        TypeError, ValueError: `starts` or `lengths` has the wrong type, dtype, shape or device, or a length is out of
            range.

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
    begins = starts.cpu().numpy().copy()
    begins[:, :1] = True
    return _by_documents(function, begins, _ends(lengths, B, T), tensors, lengths)


def _by_documents(
    function: Callable[..., Any],
    begins: np.ndarray,
    ends: np.ndarray,
    tensors: Sequence[Tensor],
    lengths: Tensor | None,
) -> Tensor:
    """`by_documents`, where `begins` (B, T) and `ends` (B,) are arrays of the starts and of the lengths of the rows."""
    B, T = begins.shape
    valid = np.arange(T) < ends[:, None]
    begins = begins & valid
    if not begins[:, 1:].any():
        return without_padding(function(*tensors, lengths), lengths)
    device = tensors[0].device
    first = begins.ravel().nonzero()[0]  # (D,): where each document begins in the flattened batch
    sizes = np.bincount((begins.ravel().cumsum() - 1)[valid.ravel()], minlength=len(first))  # (D,)
    rows = [x.flatten(0, 1) for x in tensors]
    classes = np.floor(np.log2(np.maximum(sizes - 1, 0.5)))  # lengths 1, 2, 3..4, 5..8, 9..16, ...
    places, results = [], []
    for size_class in np.unique(classes):
        chosen = classes == size_class
        steps = np.arange(sizes[chosen].max())
        index = first[chosen, None] + steps  # (N, L)
        inside = steps < sizes[chosen, None]
        index_on_device = _to(device, index.clip(max=B * T - 1))
        found = function(*(x[index_on_device] for x in rows), _to(device, sizes[chosen]))
        results.append(found.flatten(0, 1)[_to(device, inside.ravel().nonzero()[0])])
        places.append(index[inside])
    found = torch.cat(results)
    place = _to(device, np.concatenate(places))
    return found.new_zeros(B * T, *found.shape[1:]).index_copy(0, place, found).unflatten(0, (B, T))


def extend_by_documents(
    state: Any,
    extend: Callable[..., tuple[Tensor, Any]],
    alone: Callable[..., Tensor],
    starts: Tensor,
    *tensors: Tensor,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Extend states by packed rows; the steps before the first start in a row continue the document of its state.

    Args:
        state: states of B sequences, with a method `restart`.
        extend: called as `extend(state, *tensors, lengths)`, where `lengths` may be None; returns (N, L, ...) and the
            new state.
        alone: like `function` of `by_documents`, for documents that begin and end in the row.
        starts: (B, T), bool
            True at the first step of each new document.
        tensors: (B, T, ...) each
        lengths: (B,), optional
            Number of steps of each row.

    Returns:
        (B, T, ...): the results of all steps, in their places; and the states after the last document of each row.
    """
    B, T = _check(starts, tensors[0])
    checks.check_lengths(lengths, tensors[0])
    lengths = checks.copy_lengths(lengths, T)
    device, ends = tensors[0].device, _ends(lengths, B, T)
    begins = starts.cpu().numpy() & (np.arange(T) < ends[:, None])
    restarted = np.asarray(begins.any(1))  # (B,)
    if not restarted.any():
        return extend(state, *tensors, lengths)
    first = np.where(restarted, begins.argmax(1), ends)  # (B,): end of the part that continues the state
    last = np.where(restarted, T - 1 - begins[:, ::-1].argmax(1), 0)  # (B,): start of the last document

    def extend_from(before: Any) -> Callable[..., tuple[Tensor, Any]]:
        return lambda _, sizes, *parts: extend(before, *parts, _to(device, sizes))

    def between(index: tuple[np.ndarray, ...], sizes: np.ndarray, *parts: Tensor) -> tuple[Tensor, None]:
        return _by_documents(alone, begins[index], sizes, parts, _to(device, sizes)), None

    result, new_state = _part(extend_from(state.restart(_to(device, restarted))), tensors, last, ends)
    parts = [result]
    end = np.where(restarted, first, 0)
    if end.any():
        parts.append(_part(extend_from(state), tensors, np.zeros_like(end), end)[0])
    if (first < last).any():
        parts.append(_part(between, tensors, end, last)[0])
    return sum(parts[1:], parts[0]), new_state


def _part(extend: Callable[..., tuple[Tensor, Any]], tensors: Sequence[Tensor], first: np.ndarray, end: np.ndarray):
    """Results of the steps from `first` to `end` (B,) of each row, in their places and zero elsewhere; and the state.

    `extend` is called with the indices of these steps in a (B, T) array, their number in each row, and their tensors.
    """
    (B, T), device = tensors[0].shape[:2], tensors[0].device
    sizes = end - first
    steps = np.arange(sizes.max())
    index = first[:, None] + steps  # (B, L)
    rows = np.arange(B)[:, None]
    read = rows, index.clip(max=T - 1)
    on_device = tuple(_to(device, x) for x in read)
    found, state = extend(read, sizes, *(x[on_device] for x in tensors))
    inside = steps < sizes[:, None]
    place = _to(device, (rows * T + index)[inside])
    taken = found.flatten(0, 1)[_to(device, inside.ravel().nonzero()[0])]
    return found.new_zeros(B * T, *found.shape[2:]).index_copy(0, place, taken).unflatten(0, (B, T)), state


def _ends(lengths: Tensor | None, B: int, T: int) -> np.ndarray:
    return np.full(B, T) if lengths is None else lengths.cpu().numpy()


def _to(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _check(starts: Tensor, x: Tensor) -> tuple[int, int]:
    if not isinstance(starts, Tensor) or starts.dtype != torch.bool:
        found = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise TypeError(f"starts: expected a bool tensor, got {found}")
    if starts.shape != x.shape[:2]:
        raise ValueError(f"starts: expected shape {tuple(x.shape[:2])}, got {tuple(starts.shape)}")
    if starts.device != x.device and starts.device.type != "cpu":
        other = "" if x.device.type == "cpu" else ", or cpu"
        raise ValueError(f"starts: expected device {x.device} like the other arguments{other}, got {starts.device}")
    return x.shape[0], x.shape[1]
