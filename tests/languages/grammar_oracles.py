"""Slow, independent computations from the rules of a grammar, and strategies for random grammars."""

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from stackattn.languages import PCFG


class NotConverged(Exception):
    """The iteration did not converge (a nearly critical grammar)."""


def string_distribution(grammar: PCFG, longest: int, rounds: int = 3000) -> dict[tuple[str, ...], float]:
    """Compute p(w) for all strings up to a length: iterate the grammar's equations from 0 to their least solution."""
    strings = [w for n in range(longest + 1) for w in itertools.product(grammar.symbols, repeat=n)]
    index = {w: i for i, w in enumerate(strings)}
    triples = [(index[z[:k]], index[z[k:]], i) for i, z in enumerate(strings) for k in range(len(z) + 1)]
    first, second, whole = (np.array(column) for column in zip(*triples, strict=True))
    value = {a: np.zeros(len(strings)) for a in grammar.nonterminals}
    units = {a: np.eye(len(strings))[index[(a,)]] for a in grammar.symbols} if longest else {}
    empty = np.eye(len(strings))[0]
    for _ in range(rounds):
        new = {a: np.zeros(len(strings)) for a in value}
        for lhs, rhs, weight in grammar.rules:
            total = empty
            for symbol in rhs:
                part = value[symbol] if symbol in value else units.get(symbol, np.zeros(len(strings)))
                total = np.bincount(whole, total[first] * part[second], len(strings))
            new[lhs] += float(weight) * total
        change = max(np.max(np.abs(new[a] - value[a])) for a in value)
        value = new
        if change < 1e-16:
            return dict(zip(strings, value[grammar.start].tolist(), strict=True))
    raise NotConverged


def derivations(grammar: PCFG, string: tuple[str, ...]) -> list[tuple[Fraction, tuple]]:
    """Return all derivation trees of a string with exact probabilities; there must be finitely many."""
    nonterminals = set(grammar.nonterminals)
    memory: dict[tuple[str, tuple[str, ...]], list[tuple[Fraction, tuple]]] = {}
    shortest = {**dict.fromkeys(nonterminals, math.inf), **dict.fromkeys(grammar.symbols, 1)}
    for _ in nonterminals:
        for lhs, rhs, weight in grammar.rules:
            if weight:
                shortest[lhs] = min(shortest[lhs], sum(shortest[symbol] for symbol in rhs))

    def trees(symbol: str, w: tuple[str, ...]) -> list[tuple[Fraction, tuple]]:
        if (symbol, w) not in memory:
            memory[symbol, w] = [
                (weight * p, (symbol, *children))
                for lhs, rhs, weight in grammar.rules
                if lhs == symbol and weight
                for p, children in sequences(rhs, w)
            ]
        return memory[symbol, w]

    def sequences(rhs: tuple[str, ...], w: tuple[str, ...]) -> list[tuple[Fraction, tuple]]:
        if not rhs:
            return [] if w else [(Fraction(1), ())]
        if rhs[0] not in nonterminals:
            if not w or w[0] != rhs[0]:
                return []
            return [(p, (rhs[0], *rest)) for p, rest in sequences(rhs[1:], w[1:])]
        # The remaining symbols need room, so the first part is bounded; this makes the recursion finite.
        follow = sum(shortest[symbol] for symbol in rhs[1:])
        return [
            (p * q, (tree, *rest))
            for k in range(len(w) + 1)
            if shortest[rhs[0]] <= k <= len(w) - follow
            for q, rest in sequences(rhs[1:], w[k:])
            for p, tree in trees(rhs[0], w[:k])
        ]

    return trees(grammar.start, string)


def entropy(probabilities: list[float]) -> float:
    """Return the entropy in nats of the probabilities, divided by their sum."""
    total = sum(probabilities)
    return -sum(p / total * math.log(p / total) for p in probabilities if p)


def nested(tree) -> tuple:
    """Convert a `Tree` to the form that `derivations` returns."""
    return (tree.label, *(child if isinstance(child, str) else nested(child) for child in tree.children))


@st.composite
def any_grammars(draw, terminals: str = "ab") -> PCFG:
    """Grammars with all features: empty and unary rules, cycles of them, left recursion, useless symbols."""
    names = [f"N{i}" for i in range(draw(st.integers(1, 4)))]
    symbols = st.sampled_from([*names, *terminals])
    rules = []
    for name in names:
        for _ in range(draw(st.integers(1, 3))):
            rules.append((name, draw(st.lists(symbols, max_size=3)), draw(st.integers(1, 9))))
    return PCFG(rules, terminals=terminals)


@st.composite
def finite_grammars(draw, terminals: str = "ab") -> PCFG:
    """Grammars with empty and unary rules in which each string has finitely many derivations.

    The nonterminals of a rule without terminals come later in the list than its left-hand side, so such rules form no
    cycle.
    """
    names = [f"N{i}" for i in range(draw(st.integers(1, 3)))]
    rules = []
    for i, name in enumerate(names):
        for _ in range(draw(st.integers(1, 3))):
            later = names[i + 1 :]
            if draw(st.booleans()):
                rhs = draw(st.lists(st.sampled_from(later), max_size=2)) if later else []
            else:
                rhs = draw(st.lists(st.sampled_from([*names, *terminals]), max_size=2))
                rhs.insert(draw(st.integers(0, len(rhs))), draw(st.sampled_from(terminals)))
            if (name, rhs) not in [(lhs, other) for lhs, other, _ in rules]:
                rules.append((name, rhs, draw(st.integers(1, 9))))
    return PCFG(rules, terminals=terminals)
