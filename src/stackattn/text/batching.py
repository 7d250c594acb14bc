"""Batches of sentences of similar length with a maximum number of tokens, including padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def token_batches(
    lengths: Sequence[int], costs: Sequence[int], budget: int, generator: torch.Generator | None = None
) -> list[list[int]]:
    """Divide examples into batches: in each, the number of examples times their largest cost is at most `budget`.

    The examples are sorted by length, and each batch is as large as the budget allows; an example that exceeds the
    budget gets a batch of its own.

    Args:
        lengths: length of each example, by which the examples are sorted.
        costs: number of tokens that each example takes in a batch.
        budget: maximum number of tokens of a batch.
        generator: shuffles the batches, and examples of the same length; None: no shuffling.

    Returns:
        The indices of the examples of each batch.

    Raises:
        ValueError: `budget` is less than 1.

    Example::

        >>> token_batches([3, 1, 2, 9], [3, 1, 2, 9], budget=6)
        [[1, 2], [0], [3]]
    """
    if budget < 1:
        raise ValueError(f"budget: expected at least 1 token, got {budget}")
    size = len(lengths)
    order = range(size) if generator is None else torch.randperm(size, generator=generator).tolist()
    batches: list[list[int]] = []
    largest = 0
    for i in sorted(order, key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * max(largest, costs[i]) <= budget:
            batches[-1].append(i)
            largest = max(largest, costs[i])
        else:
            batches.append([i])
            largest = costs[i]
    if generator is None:
        return batches
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def pad(sequences: Sequence[Sequence[int]], value: int = 0) -> tuple[Tensor, Tensor]:
    """Return (B, T) tokens, padded with `value` on the right, and their (B,) lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)  # (B,)
    longest = max(map(len, sequences), default=0)
    rows = [[*sequence, *[value] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), longest), lengths
