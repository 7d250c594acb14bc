"""Packed documents: several sequences in one row of a batch, each computed as if it were alone.

The documents are gathered into batches of similar lengths, so that a batch has at most twice as many steps as its
documents. This works for every causal function without a mask, and attention costs the sum of the squared lengths of
the documents instead of the squared length of the row.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _check(starts: Tensor, x: Tensor) -> tuple[int, int]:
    if not isinstance(starts, Tensor) or starts.dtype != torch.bool:
        found = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise TypeError(f"starts: expected a tensor of bool, got {found}")
    if starts.shape != x.shape[:2]:
        raise ValueError(f"starts: expected shape {tuple(x.shape[:2])}, got {tuple(starts.shape)}")
    if starts.device != x.device:
        raise ValueError(f"starts: expected device {x.device} like the other arguments, got {starts.device}")
    return x.shape[0], x.shape[1]
