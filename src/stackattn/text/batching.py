"""Batches of sentences of similar length, limited by how many tokens they take with their padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def token_batches(
    lengths: Sequence[int], costs: Sequence[int], budget: int, generator: torch.Generator | None = None
) -> list[list[int]]:
    """Divide examples, by their numbers, into batches: size times the largest cost of a batch is at most `budget`.

    The examples are taken in order of `lengths`, and each batch is as large as it can be; an example over the budget is
    a batch of its own. With a generator, examples of the same length come in random order, and so do the batches.
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
    """(B, T) tokens, padded on the right, and (B,) lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    tokens = torch.full((len(sequences), max(map(len, sequences), default=0)), value)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.as_tensor(sequence)
    return tokens, lengths
