"""Exact sampling of strings of given lengths, without rejection: all strings are expanded together, level by level."""

from collections.abc import Callable

import numpy as np

from .closure import ClosedGrammar
from .lengths import LengthTables

_TABLE_CELLS = 4_000_000


def sample_flat(
    grammar: ClosedGrammar, tables: LengthTables, lengths: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return strings of the given positive lengths, concatenated in one array, and ln p of each sampled derivation.

    The derivations are those of the closed grammar. Each round expands all open symbols of all strings: it draws a pair
    of symbols and the length of the left one or, for a span of length 1, a terminal.
    """
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    log_probs = np.zeros(len(lengths))
    symbol = np.full(len(lengths), grammar.start, dtype=np.int64)
    length = lengths.astype(np.int64)
    position = ends - length
    string = np.arange(len(lengths))
    single = grammar.single
    num_pairs = len(grammar.left)
    stride = tables.longest + 1

    def pair_weights(keys: np.ndarray, _: int) -> np.ndarray:
        return grammar.pair[keys // stride] + tables.pair[:, keys % stride].T

    def split_weights(keys: np.ndarray, longest: int) -> np.ndarray:
        pair, total = keys // stride, keys % stride
        left = np.arange(1, longest)
        right = total[:, None] - left
        weights = (
            tables.symbol[grammar.left[pair], 1:longest]
            + tables.symbol[grammar.right[pair][:, None], np.maximum(right, 0)]
        )
        return np.where(right > 0, weights, -np.inf)

    while len(symbol):
        leaf = length == 1
        if leaf.any():
            terminal = _draw(lambda keys, _: grammar.terminal[keys], symbol[leaf], grammar.terminal.shape[1], generator)
            out[position[leaf]] = terminal
            np.add.at(log_probs, string[leaf], grammar.terminal[symbol[leaf], terminal])
        inner = ~leaf
        symbol, length, position, string = symbol[inner], length[inner], position[inner], string[inner]
        if not len(symbol):
            break
        pair = _draw(pair_weights, symbol * stride + length, num_pairs, generator)
        np.add.at(log_probs, string, grammar.pair[symbol, pair])
        left, right = grammar.left[pair], grammar.right[pair]
        split = np.where(single[left], 1, length - 1)
        free = ~(single[left] | single[right]) & (length > 2)
        if free.any():
            keys = pair[free] * stride + length[free]
            split[free] = 1 + _draw(split_weights, keys, int(length[free].max()), generator)
        symbol = np.concatenate([left, right])
        position = np.concatenate([position, position + split])
        length = np.concatenate([split, length - split])
        string = np.concatenate([string, string])
    return out, log_probs


def _draw(
    log_weights: Callable[[np.ndarray, int], np.ndarray], keys: np.ndarray, size: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw one index for each key, with probability proportional to exp of its row of `log_weights(keys, size)`."""
    uniform = generator.random(len(keys))
    rows, which = np.unique(keys, return_inverse=True)
    which = which.reshape(-1)
    out = np.empty(len(keys), dtype=np.int64)
    step = max(1, _TABLE_CELLS // max(size, 1))
    for first in range(0, len(rows), step):
        weights = log_weights(rows[first : first + step], size)
        sums = np.cumsum(np.exp(weights - weights.max(axis=1, keepdims=True)), axis=1)
        if len(rows) <= step:
            out[:] = _search(sums, which, uniform)
        else:
            here = np.flatnonzero((which >= first) & (which < first + step))
            out[here] = _search(sums, which[here] - first, uniform[here])
    return out


def _search(sums: np.ndarray, row: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the first index whose cumulative sum exceeds the drawn number, by a binary search in all rows at once."""
    width = sums.shape[1]
    # The sum at the last index with a positive weight is the total, which exceeds the target: no later index is found.
    target = np.minimum(uniform * sums[row, -1], np.nextafter(sums[row, -1], 0.0))
    low = np.zeros(len(row), dtype=np.int64)
    high = np.full(len(row), width - 1, dtype=np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        above = sums[row, middle] > target
        high = np.where(above, middle, high)
        low = np.where(above, low, middle + 1)
    return low
