r"""The symbols that can follow each prefix of a string, for strings of any length.

All spans of a string are recognised from short to long, as in the inside algorithm but with truth values. Each symbol
has two sets of bits, indexed by the start and by the end of a span, so that a split point exists if two sets intersect.
Then the prefixes are read from left to right. A symbol C is *open* at position j if some string of the language has the
given prefix of length j and a part derived from C that starts at j:

    open(0) = {start}          open(j) ∋ C  if  A ∈ open(i),  A → B C,  and B derives symbols i+1..j

where each set also contains the possible first parts of its symbols. The terminals of the open symbols can follow.
"""

from collections.abc import Sequence

import numpy as np

from .closure import ClosedGrammar

_WORD = 64


def continuations(grammar: ClosedGrammar, strings: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each string of n symbols, (n+1, V+1): whether each symbol can follow the first 0, 1, ..., n symbols.

    The last column is the end of the string. The id -1 stands for an unknown symbol.
    """
    num_terminals = grammar.terminal.shape[1]
    longest = max(map(len, strings), default=0)
    ids = np.full((len(strings), longest), -1)
    for row, string in zip(ids, strings, strict=True):
        row[: len(string)] = string
    found = np.zeros((len(strings), longest + 1, num_terminals + 1), dtype=bool)
    found[:, 0, -1] = not np.isneginf(grammar.empty)
    if grammar.start >= 0 and len(strings):
        rules = _Rules(grammar)
        starts = _recognise(rules, ids)
        found[:, 1:, -1] = (starts[grammar.start, 1:, :, 0] & np.uint64(1)).T != 0
        found[:, :, :-1] = _follow(rules, grammar.start, starts)
    return [rows[: len(string) + 1] for rows, string in zip(found, strings, strict=True)]


class _Rules:
    """Truth tables of the rules; every symbol of a closed grammar derives some non-empty string."""

    def __init__(self, grammar: ClosedGrammar) -> None:
        self.terminal = ~np.isneginf(grammar.terminal)  # (A, V)
        self.pair = ~np.isneginf(grammar.pair)  # (A, P)
        self.left, self.right = grammar.left, grammar.right
        first = np.eye(len(self.pair), dtype=bool)  # (A, B): B is A or a possible first part of it
        for pair_number, left in enumerate(self.left):
            first[self.pair[:, pair_number], left] = True
        while True:
            more = first @ first
            if (more == first).all():
                break
            first = more
        self.first = first


def _recognise(rules: _Rules, ids: np.ndarray) -> np.ndarray:
    """(A, n+1, N, words): the set of starts i, as bits, of the spans i..j that symbol A derives, for each end j."""
    num, n = ids.shape
    words = n // _WORD + 1
    shape = (len(rules.terminal), n + 1, num, words)
    starts = np.zeros(shape, dtype=np.uint64)  # [A, end]
    ends = np.zeros(shape, dtype=np.uint64)  # [A, start]
    known = np.concatenate([rules.terminal, np.zeros((len(rules.terminal), 1), dtype=bool)], axis=1)
    current = known[:, ids.T]  # (A, n, N); the id -1 is the last column
    bit = np.uint64(1) << (np.arange(n + 1) % _WORD).astype(np.uint64)
    for width in range(1, n + 1):
        first, last = np.arange(n - width + 1), np.arange(width, n + 1)
        if width > 1:
            current = np.zeros((len(rules.terminal), len(first), num), dtype=bool)
            for number, (left, right) in enumerate(zip(rules.left, rules.right, strict=True)):
                split = (ends[left, : n - width + 1] & starts[right, width:]).any(axis=-1)  # (spans, N)
                current[rules.pair[:, number]] |= split
        starts[:, last, :, first // _WORD] |= np.where(current, bit[first, None], np.uint64(0)).swapaxes(0, 1)
        ends[:, first, :, last // _WORD] |= np.where(current, bit[last, None], np.uint64(0)).swapaxes(0, 1)
    return starts


def _follow(rules: _Rules, start: int, starts: np.ndarray) -> np.ndarray:
    """(N, n+1, V): whether each terminal can follow each prefix."""
    _, positions, num, words = starts.shape
    found = np.zeros((num, positions, rules.terminal.shape[1]), dtype=bool)
    waiting = np.zeros((len(rules.left), num, words), dtype=np.uint64)  # starts at which an A with A → B C is open
    for at in range(positions):
        opened = np.zeros((num, len(rules.terminal)), dtype=bool)
        if at == 0:
            opened[:, start] = True
        else:
            complete = (waiting & starts[rules.left, at]).any(axis=-1)  # (P, N): its left part ends here
            for right, row in zip(rules.right, complete, strict=True):
                opened[:, right] |= row
        opened = opened @ rules.first
        found[:, at] = opened @ rules.terminal
        waiting[:, :, at // _WORD] |= np.where(
            (opened @ rules.pair).T, np.uint64(1) << np.uint64(at % _WORD), np.uint64(0)
        )
    return found
