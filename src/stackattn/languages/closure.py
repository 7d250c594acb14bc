r"""The exact closure of a grammar: the same distribution over strings, without empty and unary rules.

The grammar is first made binary: parts of long right-hand sides become new symbols, which rules share. Let e(A) be the
probability that A derives the empty string, and U(A, B) the probability that one step leads from A to B while the other
symbol of the rule, if any, derives the empty string. Then

    e = least solution of e(A) = Σ p(A → X₁…X_k) e(X₁)…e(X_k)            (Newton's method from 0)
    U* = I + U + U² + … = (I - U)⁻¹                                      (Gaussian elimination)

each for one strongly connected component of symbols at a time. A derives its non-empty strings by a chain of such steps
to a symbol B, whose total weight is U*(A, B), followed by a terminal rule of B, or by a binary rule of B both parts of
which derive non-empty strings. No sum is truncated, so the probabilities are those of the original grammar, even if a
string has infinitely many derivations. The arithmetic is decimal with 150 digits, because half of them are lost in a
critical grammar (a double root in e).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .decimals import (
    DIGITS,
    INFINITE,
    Budget,
    Matrix,
    SingularError,
    TooManyOperationsError,
    add,
    chained,
    components,
    log,
    product,
    ratio,
    solve,
)
from .notation import GrammarError, Rule

MAX_OPERATIONS = 10_000_000
"""Maximum number of decimal multiplications for removing empty and unary rules; this many take 10 to 30 seconds."""

_CONVERGED = Decimal("1e-50")
_ROUNDING = Decimal("1e-130")


class BinaryRule(NamedTuple):
    """A rule of the binary grammar: `rhs` has at most two symbols, and is empty if `terminal` is set."""

    lhs: int
    rhs: tuple[int, ...]
    terminal: int | None
    weight: Decimal
    rule: int | None  # index of the original rule; None if the rule expands a new symbol


@dataclass(frozen=True)
class BinaryGrammar:
    """The grammar with right-hand sides of at most two symbols; its first symbols are the original nonterminals."""

    rules: list[BinaryRule]
    num_symbols: int
    start: int
    num_terminals: int


@dataclass(frozen=True)
class ClosedGrammar:
    """A grammar whose rules are `A → v` and `A → left[p] right[p]`, with the natural logarithms of their weights.

    `terminal[A, v]` and `pair[A, p]` sum over all chains of steps from A that end in v or in the non-empty parts of p;
    `terminal_cost`, `pair_cost` and `empty_cost` are the expected -ln p of the derivations that are summed.
    """

    start: int  # -1 if the grammar has no non-empty string
    terminal: np.ndarray  # (A, V)
    left: np.ndarray  # (P,)
    right: np.ndarray  # (P,)
    pair: np.ndarray  # (A, P)
    terminal_cost: np.ndarray  # (A, V)
    pair_cost: np.ndarray  # (A, P)
    empty: float  # ln of the probability of the empty string
    empty_cost: float

    @cached_property
    def single(self) -> np.ndarray:
        """(A,): whether a symbol derives only strings of length 1."""
        return np.asarray(np.isneginf(self.pair).all(axis=1))


def binarise(rules: Sequence[Rule], start: str, terminals: Sequence[str]) -> BinaryGrammar:
    """Return the binary grammar of rules with normalised, positive weights."""
    names = dict.fromkeys([start, *(rule.lhs for rule in rules)])
    ids: dict[Hashable, int] = {name: i for i, name in enumerate(names)}
    terminal_ids = {symbol: v for v, symbol in enumerate(terminals)}
    out: list[BinaryRule] = []
    one = Decimal(1)

    def symbol_id(symbol: str) -> int:
        if symbol not in terminal_ids:
            return ids[symbol]
        key = ("terminal", symbol)
        if key not in ids:
            ids[key] = len(ids)
            out.append(BinaryRule(ids[key], (), terminal_ids[symbol], one, None))
        return ids[key]

    def cut_of(part: tuple[str, ...]) -> int:
        # Terminals are split off first: a pair with a side of one symbol is cheap, and more rules share the rest.
        return len(part) - 1 if part[-1] in terminal_ids and part[0] not in terminal_ids else 1

    def part_id(part: tuple[str, ...]) -> int:
        # A loop, because a recursion would be as deep as the right-hand side is long.
        split: list[
            tuple[int, int | None, str]
        ] = []  # part, the symbol split off its start or None, and that split off its end
        while len(part) > 1 and part not in ids:
            number = ids[part] = len(ids)
            if cut_of(part) == 1:
                split.append((number, symbol_id(part[0]), ""))
                part = part[1:]
            else:
                split.append((number, None, part[-1]))
                part = part[:-1]
        rest = symbol_id(part[0]) if len(part) == 1 else ids[part]
        for number, first, last in reversed(split):
            rhs = (rest, symbol_id(last)) if first is None else (first, rest)
            out.append(BinaryRule(number, rhs, None, one, None))
            rest = number
        return rest

    def halves(part: tuple[str, ...]) -> tuple[int, int]:
        cut = cut_of(part)
        return part_id(part[:cut]), part_id(part[cut:])

    for number, (lhs, rhs, weight) in enumerate(rules):
        exact = Decimal(weight.numerator) / Decimal(weight.denominator)
        if not rhs:
            out.append(BinaryRule(ids[lhs], (), None, exact, number))
        elif len(rhs) == 1 and rhs[0] in terminal_ids:
            out.append(BinaryRule(ids[lhs], (), terminal_ids[rhs[0]], exact, number))
        elif len(rhs) == 1:
            out.append(BinaryRule(ids[lhs], (ids[rhs[0]],), None, exact, number))
        else:
            out.append(BinaryRule(ids[lhs], halves(rhs), None, exact, number))
    return BinaryGrammar(out, len(ids), ids[start], len(terminal_ids))


def nullable_symbols(grammar: BinaryGrammar) -> set[int]:
    """Return the symbols that derive the empty string."""
    return _grow(grammar.rules, lambda rule, found: rule.terminal is None and all(x in found for x in rule.rhs))


def live_symbols(grammar: BinaryGrammar, nullable: set[int]) -> set[int]:
    """Return the symbols that derive some non-empty string."""

    def derives(rule: BinaryRule, live: set[int]) -> bool:
        if rule.terminal is not None:
            return True
        return any(x in live for x in rule.rhs) and all(x in live or x in nullable for x in rule.rhs)

    return _grow(grammar.rules, derives)


def close(rules: Sequence[Rule], start: str, terminals: Sequence[str]) -> ClosedGrammar:
    """Return the exact closure of a grammar with normalised, positive weights.

    Raises:
        GrammarError: removing the empty and unary rules takes more than `MAX_OPERATIONS` operations, or a cycle of
            them is left with a probability below 1e-100.
    """
    with localcontext() as context:
        context.prec = DIGITS
        try:
            return _close(binarise(rules, start, terminals), Budget(MAX_OPERATIONS))
        except SingularError:
            raise GrammarError(
                "a cycle of empty and unary rules is left with a probability below 1e-100, which cannot be computed "
                "exactly; use weights of more similar size"
            ) from None
        except TooManyOperationsError as error:
            raise GrammarError(
                f"removing the empty and unary rules takes {error}; use fewer nonterminals, or fewer empty and unary "
                "rules"
            ) from None


def _close(grammar: BinaryGrammar, budget: Budget) -> ClosedGrammar:
    nullable = nullable_symbols(grammar)
    live = live_symbols(grammar, nullable)
    costs = [rule.weight * -rule.weight.ln() for rule in grammar.rules]
    empty, empty_cost = _empty_probabilities(grammar, nullable, costs, budget)

    unary: Matrix = {}
    unary_cost: Matrix = {}
    steps: Matrix = {}  # to terminals (key: v) and to pairs (key: num_terminals + index of the pair)
    steps_cost: Matrix = {}
    pairs: dict[tuple[int, int], int] = {}
    for rule, cost in zip(grammar.rules, costs, strict=True):
        a, p = rule.lhs, rule.weight
        if a not in live:
            continue
        if rule.terminal is not None:
            add(steps, a, rule.terminal, p)
            add(steps_cost, a, rule.terminal, cost)
        elif len(rule.rhs) == 1:
            if rule.rhs[0] in live:
                add(unary, a, rule.rhs[0], p)
                add(unary_cost, a, rule.rhs[0], cost)
        elif len(rule.rhs) == 2:
            b, c = rule.rhs
            if b in live and c in live:
                key = grammar.num_terminals + pairs.setdefault((b, c), len(pairs))
                add(steps, a, key, p)
                add(steps_cost, a, key, cost)
            for kept, gone in ((b, c), (c, b)):
                if kept in live and gone in nullable:
                    add(unary, a, kept, p * empty[gone])
                    add(unary_cost, a, kept, cost * empty[gone] + p * empty_cost[gone])

    total, total_cost = chained(_star(unary, live, budget), unary_cost, steps, steps_cost, budget)
    return _as_arrays(grammar, live, list(pairs), total, total_cost, empty, empty_cost)


def _empty_probabilities(
    grammar: BinaryGrammar, nullable: set[int], costs: Sequence[Decimal], budget: Budget
) -> tuple[dict[int, Decimal], dict[int, Decimal]]:
    """For each nullable symbol: e, and the sum of p (-ln p) over its derivations of the empty string."""
    of: dict[int, list[tuple[Decimal, Decimal, tuple[int, ...]]]] = {a: [] for a in nullable}
    for rule, cost in zip(grammar.rules, costs, strict=True):
        if rule.terminal is None and all(x in nullable for x in rule.rhs):
            of[rule.lhs].append((rule.weight, cost, rule.rhs))
    e: dict[int, Decimal] = {}
    e_cost: dict[int, Decimal] = {}
    zero, one = Decimal(0), Decimal(1)
    edges = {a: {x for _, _, rhs in of[a] for x in rhs} for a in nullable}
    for component in components(edges):
        inside = set(component)
        e.update(dict.fromkeys(component, zero))
        while True:
            residual: Matrix = {a: {0: -e[a]} for a in component}
            jacobian: Matrix = {a: {} for a in component}
            for a in component:
                for p, _, rhs in of[a]:
                    residual[a][0] += p * product(e[x] for x in rhs)
                    for n, x in enumerate(rhs):
                        if x in inside:
                            add(jacobian, a, x, p * product(e[y] for m, y in enumerate(rhs) if m != n))
            if all(abs(residual[a][0]) <= _ROUNDING * e[a] for a in component):
                break
            step = {a: row.get(0, zero) for a, row in solve(jacobian, residual, budget).items()}
            for a in component:
                e[a] = min(e[a] + step[a], one)
            if all(abs(step[a]) <= _CONVERGED * e[a] for a in component):
                break
        jacobian = {a: {} for a in component}
        known: Matrix = {a: {0: zero} for a in component}
        for a in component:
            for p, cost, rhs in of[a]:
                known[a][0] += cost * product(e[x] for x in rhs)
                for n, x in enumerate(rhs):
                    others = p * product(e[y] for m, y in enumerate(rhs) if m != n)
                    if x in inside:
                        add(jacobian, a, x, others)
                    else:
                        known[a][0] += others * e_cost[x]
        try:
            solved = {a: row.get(0, zero) for a, row in solve(jacobian, known, budget).items()}
        except SingularError:
            solved = dict.fromkeys(component, INFINITE * INFINITE)
        for a, cost in solved.items():
            # Rounding may give a singular (critical) system a negative solution.
            e_cost[a] = cost if cost >= 0 else INFINITE * INFINITE
    return e, e_cost


def _star(unary: Matrix, live: set[int], budget: Budget) -> Matrix:
    """(I - unary)⁻¹, component by component, in reverse topological order."""
    star: Matrix = {}
    for component in components({a: set(unary.get(a, ())) for a in live}):
        inside = set(component)
        onward: Matrix = {}  # the identity plus the closed edges that leave the component
        for a in component:
            add(onward, a, a, Decimal(1))
            for b, weight in unary.get(a, {}).items():
                if b not in inside:
                    budget.spend(len(star[b]))
                    for c, value in star[b].items():
                        add(onward, a, c, weight * value)
        if len(component) == 1 and component[0] not in unary.get(component[0], ()):
            star[component[0]] = onward[component[0]]
            continue
        cyclic = {a: {b: x for b, x in unary.get(a, {}).items() if b in inside} for a in component}
        star.update(solve(cyclic, onward, budget))
    return star


def _as_arrays(
    grammar: BinaryGrammar,
    live: set[int],
    pairs: list[tuple[int, int]],
    total: Matrix,
    total_cost: Matrix,
    empty: dict[int, Decimal],
    empty_cost: dict[int, Decimal],
) -> ClosedGrammar:
    """Keep the symbols that the start symbol can reach, and convert decimals to logarithms."""
    num_terminals = grammar.num_terminals
    order: dict[int, None] = {}
    queue = [grammar.start] if grammar.start in live else []
    while queue:
        a = queue.pop()
        if a not in order:
            order[a] = None
            for key in sorted(total.get(a, {})):
                if key >= num_terminals:
                    queue.extend(pairs[key - num_terminals])
    row = {a: i for i, a in enumerate(order)}
    used = sorted({key for a in order for key in total.get(a, {}) if key >= num_terminals})
    column = {key: i for i, key in enumerate(used)}
    terminal = np.full((len(order), num_terminals), -np.inf)
    pair = np.full((len(order), len(used)), -np.inf)
    terminal_cost, pair_cost = np.zeros_like(terminal), np.zeros_like(pair)
    for a in order:
        for key, weight in total.get(a, {}).items():
            values, costs, at = (
                (terminal, terminal_cost, key) if key < num_terminals else (pair, pair_cost, column[key])
            )
            values[row[a], at] = log(weight)
            costs[row[a], at] = ratio(total_cost[a][key], weight)
    e = empty.get(grammar.start, Decimal(0))
    ends = np.array([pairs[key - num_terminals] for key in used], dtype=np.int64).reshape(-1, 2)
    ends = np.array([[row[b], row[c]] for b, c in ends.tolist()], dtype=np.int64).reshape(-1, 2)
    return ClosedGrammar(
        start=row.get(grammar.start, -1),
        terminal=terminal,
        left=ends[:, 0],
        right=ends[:, 1],
        pair=pair,
        terminal_cost=terminal_cost,
        pair_cost=pair_cost,
        empty=log(e),
        empty_cost=ratio(empty_cost[grammar.start], e) if e else 0.0,
    )


def _grow(rules: Sequence[BinaryRule], holds: Callable[[BinaryRule, set[int]], bool]) -> set[int]:
    """Return the left-hand sides of the rules for which `holds` is true, given the symbols found so far."""
    users: dict[int, list[BinaryRule]] = {}
    for rule in rules:
        for x in rule.rhs:
            users.setdefault(x, []).append(rule)
    found: set[int] = set()
    queue = list(rules)
    while queue:
        rule = queue.pop()
        if rule.lhs not in found and holds(rule, found):
            found.add(rule.lhs)
            queue.extend(users.get(rule.lhs, ()))
    return found
