"""Rows of a fixed number of tokens that contain several documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .vocabulary import Vocabulary


@dataclass(frozen=True)
class PackedRows:
    """Rows of N tokens that documents share: what a language model reads, and what it should predict."""

    inputs: Tensor  # (R, N)
    targets: Tensor  # (R, N)
    starts: Tensor  # (R, N), bool: whether a token is BOS, which begins a document
    lengths: Tensor  # (R,): N, except for the last row

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, rows: Sequence[int]) -> PackedRows:
        """Return the rows with these indices."""
        index = torch.as_tensor(rows)
        return PackedRows(self.inputs[index], self.targets[index], self.starts[index], self.lengths[index])

    def to(self, device: torch.device) -> PackedRows:
        """Return the rows with all tensors on a device, except `starts`, which models read on the CPU."""
        inputs, targets, lengths = (x.to(device, non_blocking=True) for x in (self.inputs, self.targets, self.lengths))
        return PackedRows(inputs, targets, self.starts, lengths)


def pack_documents(documents: Sequence[Sequence[int]], size: int, vocabulary: Vocabulary, ignored: int) -> PackedRows:
    """Write documents one after another into rows of `size` tokens.

    Each document is read from BOS and predicted up to EOS. A document that does not fit into its row continues in the
    next one, without its beginning as context. Targets after the last document have the value `ignored`.
    """
    inputs = [token for document in documents for token in (vocabulary.bos, *document)]
    targets = [token for document in documents for token in (*document, vocabulary.eos)]
    rows, count = -(-len(inputs) // size), len(inputs)
    missing = rows * size - count
    tokens = torch.tensor(inputs + [vocabulary.pad] * missing).view(rows, size)
    wanted = torch.tensor(targets + [ignored] * missing).view(rows, size)
    lengths = torch.full((rows,), size)
    lengths[-1] -= missing
    return PackedRows(tokens, wanted, tokens == vocabulary.bos, lengths)
