"""Tables by length: the probability that a symbol derives a string of each length, and the entropy of derivations.

Shapes: A symbols, P pairs, L maximum length. Tables contain natural logarithms, because the probabilities of long
strings underflow.
"""

from dataclasses import dataclass

import numpy as np

from .closure import ClosedGrammar


@dataclass(frozen=True)
class LengthTables:
    """ln of the total probability of all strings of one length."""

    symbol: np.ndarray  # (A, L+1) from a symbol; column 0 is -inf, since the closed grammar has no empty rules
    pair: np.ndarray  # (P, L+1) from the two symbols of a pair, one after the other

    @property
    def longest(self) -> int:
        """The maximum length L."""
        return self.symbol.shape[1] - 1


def log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    """Return ln Σ exp along an axis; -inf for an empty sum."""
    if values.shape[axis] == 0:
        return np.full(np.delete(values.shape, axis), -np.inf)
    top = np.max(values, axis=axis, keepdims=True)
    top[np.isneginf(top)] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(values - top), axis=axis)) + np.squeeze(top, axis=axis)


def length_tables(grammar: ClosedGrammar, longest: int, known: LengthTables | None = None) -> LengthTables:
    """Return the tables for the lengths 0..longest; `known` tables of shorter lengths are extended."""
    num_symbols, num_pairs = grammar.pair.shape
    symbol = np.full((num_symbols, longest + 1), -np.inf)
    pair = np.full((num_pairs, longest + 1), -np.inf)
    first = 1
    if known is not None:
        first = known.longest + 1
        symbol[:, :first], pair[:, :first] = known.symbol, known.pair
    for length in range(first, longest + 1):
        if length == 1:
            symbol[:, 1] = log_sum_exp(grammar.terminal, axis=1)
            continue
        # (P, length-1): the left part has 1, 2, … length-1 symbols
        splits = symbol[grammar.left, 1:length] + symbol[grammar.right, length - 1 : 0 : -1]
        pair[:, length] = log_sum_exp(splits, axis=1)
        symbol[:, length] = log_sum_exp(grammar.pair + pair[:, length], axis=1)
    return LengthTables(symbol, pair)


def expected_cost(
    grammar: ClosedGrammar, tables: LengthTables, terminal_cost: np.ndarray, pair_cost: np.ndarray
) -> np.ndarray:
    """(A, L+1): the expected total cost of a derivation from each symbol, by length.

    The costs of the steps are `terminal_cost` (A, V) and `pair_cost` (A, P). If they are the -ln p of the steps, the
    entropy of the derivations is their expected total cost plus the symbol's entry in `tables`.
    """
    cost = np.zeros_like(tables.symbol)
    for length in range(1, tables.longest + 1):
        if length == 1:
            chance = _posterior(grammar.terminal, tables.symbol[:, 1])
            cost[:, 1] = _expectation(chance, terminal_cost)
            continue
        splits = tables.symbol[grammar.left, 1:length] + tables.symbol[grammar.right, length - 1 : 0 : -1]
        below = cost[grammar.left, 1:length] + cost[grammar.right, length - 1 : 0 : -1]
        pair = _expectation(_posterior(splits, tables.pair[:, length]), below)
        chance = _posterior(grammar.pair + tables.pair[:, length], tables.symbol[:, length])
        cost[:, length] = _expectation(chance, pair_cost + pair)
    return cost


def _posterior(values: np.ndarray, total: np.ndarray) -> np.ndarray:
    possible = np.where(np.isneginf(total), 0.0, total)
    return np.exp(values - possible[:, None])


def _expectation(chance: np.ndarray, cost: np.ndarray) -> np.ndarray:
    # An impossible choice may have infinite cost.
    return np.sum(chance * np.where(chance > 0, cost, 0.0), axis=1)
