r"""The inside algorithm: the probabilities of a batch of strings.

β(A, i, w) is the probability that A derives the w symbols that start at i. For a pair p of symbols (B, C),

    β_p(i, w) = Σ_m β(B, i, m) β(C, i+m, w-m)          β(A, i, w) = Σ_p pair(A, p) β_p(i, w)

All strings of a batch and all spans of one width are computed together. A pair with a side that derives only single
terminals needs no sum over m. The other pairs store their sides in two arrays, indexed by the start and by the end of a
span, so that the sum over m is a dot product of two contiguous rows.

The plain algorithm multiplies probabilities, scaled by a constant at each position. This is accurate as long as all
numbers are well inside the range of float64; strings for which this does not hold are computed again with logarithms.
"""

from collections.abc import Sequence

import numpy as np

from .closure import ClosedGrammar
from .lengths import log_sum_exp

# The product of two numbers in this range and a weight of the grammar is in the range of float64.
_SMALLEST, _LARGEST = 1e-95, 1e95
_BATCH_BYTES = 2**24


def inside(grammar: ClosedGrammar, strings: Sequence[np.ndarray], totals: int | None = None) -> np.ndarray:
    """Return ln of the probability of each string (N,) or, with `totals`, of its continuations (N, totals+1).

    Strings are arrays of terminal ids; -1 stands for an unknown symbol. With `totals`, entry n is ln of the probability
    that the start symbol derives a string of length n that starts with the given one. The closed grammar does not
    derive the empty string, so its entry (with `totals`, entry 0 of an empty prefix) is -inf; the caller replaces it.
    """
    num_terminals = grammar.terminal.shape[1]
    anything, nothing = num_terminals, num_terminals + 1
    sizes = np.array([len(s) for s in strings], dtype=np.int64)
    charted = sizes if totals is None else np.full(len(strings), totals)
    result = np.full(len(strings), -np.inf) if totals is None else np.full((len(strings), totals + 1), -np.inf)
    if len(strings) == 0 or grammar.start < 0:
        return result
    order = np.argsort(charted, kind="stable")
    plan = _Plan(grammar)
    num_symbols, num_pairs = grammar.pair.shape

    def size_in_bytes(n: int) -> int:
        return 8 * n * ((len(plan.lefts) + len(plan.rights)) * n + 4 * (num_symbols + num_pairs))

    at = 0
    while at < len(order):
        # Strings of similar length share a batch: a little padding costs less than more batches.
        room = 1.08 * charted[order[at]] + 2
        stop = at + 1
        while stop < len(order) and charted[order[stop]] <= room:
            if (stop + 1 - at) * size_in_bytes(int(charted[order[stop]])) > _BATCH_BYTES:
                break
            stop += 1
        batch = order[at:stop]
        at = stop
        n = int(charted[batch].max())
        if n == 0:
            continue
        ids = np.full((len(batch), n), nothing if totals is None else anything)
        for row, which in enumerate(batch):
            string = strings[which][:n]
            ids[row, : len(string)] = np.where(string < 0, nothing, string)
        chart = _inside_batch(grammar, ids)
        if totals is None:
            result[batch] = chart[np.arange(len(batch)), sizes[batch]]
        else:
            chart[np.arange(n + 1) < sizes[batch, None]] = -np.inf
            result[batch] = chart
    return result


def _inside_batch(grammar: ClosedGrammar, ids: np.ndarray) -> np.ndarray:
    """(N, n+1): ln of the probability of the first 0, 1, …, n symbols."""
    table = np.concatenate([grammar.terminal, log_sum_exp(grammar.terminal, axis=1)[:, None]], axis=1)
    table = np.concatenate([table, np.full((len(table), 1), -np.inf)], axis=1)
    num_terminals = grammar.terminal.shape[1]
    known = ids < num_terminals
    scale = np.cumsum(np.where(known, np.log(max(num_terminals, 2)), 0.0), axis=1)
    terminal = np.moveaxis(table[:, ids], 0, 1)  # (N, A, n)
    plain, safe = _plain(grammar, terminal + np.where(known, np.log(max(num_terminals, 2)), 0.0)[:, None])
    out = np.full((len(ids), ids.shape[1] + 1), -np.inf)
    out[:, 1:] = plain - scale
    if not safe.all():
        out[~safe, 1:] = _logs(grammar, terminal[~safe])
    return out


class _Plan:
    """The pairs with a side that derives only single terminals, and the rows that store the sides of the others."""

    def __init__(self, grammar: ClosedGrammar) -> None:
        left, right = grammar.left, grammar.right
        self.short_left = grammar.single[left]
        self.short_right = grammar.single[right] & ~self.short_left
        self.long = ~(self.short_left | self.short_right)
        self.lefts, left_at = np.unique(left[self.long], return_inverse=True)
        self.rights, right_at = np.unique(right[self.long], return_inverse=True)
        places = np.flatnonzero(self.long).tolist()
        self.long_pairs = list(zip(places, left_at.tolist(), right_at.tolist(), strict=True))
        self.uses = [(a, np.flatnonzero(row)) for a, row in enumerate(~np.isneginf(grammar.pair)) if row.any()]


def _plain(grammar: ClosedGrammar, terminal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln β(start, 0, w) for w = 1..n from plain probabilities, and whether each string stays within the range."""
    num, num_symbols, n = terminal.shape
    result = np.zeros((num, n))
    safe = np.ones(num, dtype=bool)
    for table in (grammar.pair, grammar.terminal):
        if ((table < np.log(_SMALLEST)) & ~np.isneginf(table)).any():
            return result, ~safe
    plan = _Plan(grammar)
    by_start = np.zeros((len(plan.lefts), num, n, n))  # [.., .., start, width-1]
    by_end = np.zeros((len(plan.rights), num, n, n))  # [.., .., end, n-width]
    first = np.exp(np.moveaxis(terminal, 1, 0))  # (A, N, n)
    first_left, first_right = first[grammar.left[plan.short_left]], first[grammar.right[plan.short_right]]
    rest_left, rest_right = grammar.right[plan.short_left], grammar.left[plan.short_right]
    # Most weights are usually 0; then a product with the whole matrix is slower, especially with threads.
    filled = np.count_nonzero(~np.isneginf(grammar.pair))
    dense = np.exp(grammar.pair) if filled > max(1000, grammar.pair.size / 4) else None
    weights = [(a, [(p, float(np.exp(grammar.pair[a, p]))) for p in used.tolist()]) for a, used in plan.uses]
    current = first
    for width in range(1, n + 1):
        spans = n - width + 1
        if width > 1:
            pairs = np.empty((len(grammar.left), num, spans))
            pairs[plan.short_left] = first_left[:, :, :spans] * current[rest_left, :, 1:]
            pairs[plan.short_right] = current[rest_right, :, :spans] * first_right[:, :, width - 1 :]
            for p, left, right in plan.long_pairs:
                heads = by_start[left, :, :spans, : width - 1]
                np.einsum("nim,nim->ni", heads, by_end[right, :, width - 1 :, n - width + 1 :], out=pairs[p])
            if dense is not None:
                current = (dense @ pairs.reshape(len(pairs), num * spans)).reshape(num_symbols, num, spans)
            else:
                current = np.zeros((num_symbols, num, spans))
                for a, ((p, weight), *others) in weights:
                    np.multiply(pairs[p], weight, out=current[a])
                    for p, weight in others:
                        current[a] += pairs[p] * weight
        outside = (current > _LARGEST) | ((current < _SMALLEST) & (current > 0))
        if outside.any():
            safe &= ~outside.any(axis=(0, 2))
            current[:, ~safe] = 0.0
            if not safe.any():
                break
        by_start[:, :, :spans, width - 1] = current[plan.lefts]
        by_end[:, :, width - 1 :, n - width] = current[plan.rights]
        result[:, width - 1] = current[grammar.start, :, 0]
    with np.errstate(divide="ignore"):
        return np.log(result), safe


def _logs(grammar: ClosedGrammar, terminal: np.ndarray) -> np.ndarray:
    """ln β(start, 0, w) like `_plain`, computed with logarithms: slower, but with unlimited range."""
    num, num_symbols, n = terminal.shape
    plan = _Plan(grammar)
    by_start = np.full((len(plan.lefts), num, n, n), -np.inf)
    by_end = np.full((len(plan.rights), num, n, n), -np.inf)
    first_left, first_right = grammar.left[plan.short_left], grammar.right[plan.short_right]
    rest_left, rest_right = grammar.right[plan.short_left], grammar.left[plan.short_right]
    first = current = np.moveaxis(terminal, 1, 0)
    result = np.empty((num, n))
    for width in range(1, n + 1):
        spans = n - width + 1
        if width > 1:
            pairs = np.empty((len(grammar.left), num, spans))
            pairs[plan.short_left] = first[first_left, :, :spans] + current[rest_left, :, 1:]
            pairs[plan.short_right] = current[rest_right, :, :spans] + first[first_right, :, width - 1 :]
            for p, left, right in plan.long_pairs:
                heads = by_start[left, :, :spans, : width - 1]
                pairs[p] = log_sum_exp(heads + by_end[right, :, width - 1 :, n - width + 1 :], axis=2)
            current = np.full((num_symbols, num, spans), -np.inf)
            for a, used in plan.uses:
                current[a] = log_sum_exp(pairs[used] + grammar.pair[a, used, None, None], axis=0)
        by_start[:, :, :spans, width - 1] = current[plan.lefts]
        by_end[:, :, width - 1 :, n - width] = current[plan.rights]
        result[:, width - 1] = current[grammar.start, :, 0]
    return result
