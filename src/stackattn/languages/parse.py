"""The most probable derivation of a string as a tree, which can be drawn or written in bracket notation.

The maximum is over all derivations of the original grammar, including empty and unary rules: the sums of the exact
closure become maxima, and each maximum stores the rules that attain it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from decimal import localcontext
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .closure import binarise, live_symbols, nullable_symbols
from .decimals import DIGITS

if TYPE_CHECKING:
    from .grammar import PCFG

MAX_PARSED = 2_000
"""Maximum length of a string to parse: its chart grows with the square of the length."""
_BRACKETS = {"(": "-LRB-", ")": "-RRB-"}


@dataclass(frozen=True)
class Tree:
    """A derivation: a nonterminal and its children, which are trees or terminal symbols; no children means ε."""

    label: str
    children: tuple[Tree | str, ...]

    def leaves(self) -> list[str]:
        """Return the symbols of the string that the tree derives."""
        return [item for _, item in self._walk() if isinstance(item, str)]

    def bracket(self) -> str:
        """Return the tree on one line, such as `(S a (S ) a)`; the terminals ( and ) become -LRB- and -RRB-."""
        parts: list[str] = []
        depth = 0
        for level, item in self._walk():
            parts.append(")" * (depth - level))
            depth = level
            if isinstance(item, str):
                parts.append(" " + _BRACKETS.get(item, item))
            else:
                parts.append(f"{' ' if level else ''}({item.label}{'' if item.children else ' '}")
                depth += 1
        return "".join(parts) + ")" * depth

    def draw(self) -> str:
        """Return the tree as text, one node per line."""
        lines: list[str] = []
        stack: list[tuple[Tree | str, str, str]] = [(self, "", "")]
        while stack:
            item, first, rest = stack.pop()
            if isinstance(item, str):
                lines.append(first + item)
                continue
            lines.append(first + item.label)
            children: tuple[Tree | str, ...] = item.children or ("ε",)
            stack.append((children[-1], rest + "└── ", rest + "    "))
            stack.extend((child, rest + "├── ", rest + "│   ") for child in children[-2::-1])
        return "\n".join(lines)

    def _walk(self) -> list[tuple[int, Tree | str]]:
        """Return all nodes in pre-order with their depths."""
        found: list[tuple[int, Tree | str]] = []
        stack: list[tuple[int, Tree | str]] = [(0, self)]
        while stack:
            level, item = stack.pop()
            found.append((level, item))
            if isinstance(item, Tree):
                stack.extend((level + 1, child) for child in reversed(item.children))
        return found


@dataclass(frozen=True)
class Parse:
    """The most probable tree of a string and ln of its probability."""

    tree: Tree
    log_prob: float

    def __str__(self) -> str:
        return self.tree.draw()


_Span: TypeAlias = "tuple[int, int] | None"  # start and width; None is the empty string


@dataclass(eq=False)
class _Node:
    """A step of a derivation in the binary grammar, with a slot for each symbol of the rule's right-hand side."""

    rule: int
    slots: list[_Node]


class Viterbi:
    """Tables of a grammar for finding best parses."""

    def __init__(self, grammar: PCFG) -> None:
        with localcontext() as context:
            context.prec = DIGITS
            self.binary = binarise([rule for rule in grammar.rules if rule.weight], grammar.start, grammar.symbols)
            context.prec = 25
            self.logs = [float(rule.weight.ln()) for rule in self.binary.rules]
        nullable = nullable_symbols(self.binary)
        live = live_symbols(self.binary, nullable)
        self._best_empty(nullable)
        self._best_chains(live)
        self._best_steps(live)

    def _best_empty(self, nullable: set[int]) -> None:
        """Find the best derivation of ε for each nullable symbol, in order of probability (Knuth's algorithm).

        A rule is considered only after all its symbols are final, which excludes cyclic derivations.
        """
        self.empty: dict[int, float] = {}
        self.empty_rule: dict[int, int] = {}
        waiting = {r: set(rule.rhs) for r, rule in enumerate(self.binary.rules) if set(rule.rhs) <= nullable}
        queue = [
            (-self.logs[r], self.binary.rules[r].lhs, r)
            for r, symbols in waiting.items()
            if not symbols and self.binary.rules[r].terminal is None
        ]
        heapq.heapify(queue)
        users: dict[int, list[int]] = {}
        for r, symbols in waiting.items():
            for x in symbols:
                users.setdefault(x, []).append(r)
        while queue:
            cost, a, rule = heapq.heappop(queue)
            if a in self.empty:
                continue
            self.empty[a], self.empty_rule[a] = -cost, rule
            for r in users.get(a, ()):
                waiting[r].discard(a)
                if not waiting[r]:
                    user = self.binary.rules[r]
                    total = self.logs[r] + sum(self.empty[x] for x in user.rhs)
                    heapq.heappush(queue, (-total, user.lhs, r))

    def _best_chains(self, live: set[int]) -> None:
        """Find the best chain of steps that each keep one symbol, for each pair of symbols (Floyd-Warshall)."""
        size = self.binary.num_symbols
        edge = np.full((size, size), -np.inf)
        self.edge_rule: dict[tuple[int, int], tuple[int, int]] = {}  # rule, and which of its symbols is kept
        for r, rule in enumerate(self.binary.rules):
            for at, kept in enumerate(rule.rhs):
                others = [x for m, x in enumerate(rule.rhs) if m != at]
                if kept in live and all(x in self.empty for x in others):
                    weight = self.logs[r] + sum(self.empty[x] for x in others)
                    if weight > edge[rule.lhs, kept]:
                        edge[rule.lhs, kept] = weight
                        self.edge_rule[rule.lhs, kept] = (r, at)
        self.next = np.where(np.isneginf(edge), -1, np.arange(size)[None, :])
        np.fill_diagonal(edge, 0.0)
        for k in range(size):
            through = edge[:, k, None] + edge[k]
            better = through > edge
            edge[better] = through[better]
            self.next = np.where(better, self.next[:, k, None], self.next)
        self.chain = edge

    def _best_steps(self, live: set[int]) -> None:
        """Compute the closed grammar with maxima instead of sums, and the rule at the end of each chain."""
        size, num_terminals = self.binary.num_symbols, self.binary.num_terminals
        terminal_rule: dict[tuple[int, int], int] = {}
        pair_rule: dict[tuple[int, tuple[int, int]], int] = {}
        for r, rule in enumerate(self.binary.rules):
            if rule.terminal is not None:
                key = (rule.lhs, rule.terminal)
                if key not in terminal_rule or self.logs[r] > self.logs[terminal_rule[key]]:
                    terminal_rule[key] = r
            elif len(rule.rhs) == 2 and all(x in live for x in rule.rhs):
                pair_key = (rule.lhs, (rule.rhs[0], rule.rhs[1]))
                if pair_key not in pair_rule or self.logs[r] > self.logs[pair_rule[pair_key]]:
                    pair_rule[pair_key] = r
        pairs = list(dict.fromkeys(pair for _, pair in pair_rule))
        self.left = np.array([b for b, _ in pairs], dtype=np.int64)
        self.right = np.array([c for _, c in pairs], dtype=np.int64)
        self.terminal, self.terminal_end = self._close(terminal_rule, size, num_terminals)
        column = {pair: i for i, pair in enumerate(pairs)}
        self.pair, self.pair_end = self._close(
            {(a, column[pair]): r for (a, pair), r in pair_rule.items()}, size, len(pairs)
        )

    def _close(self, steps: dict[tuple[int, int], int], size: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        best = np.full((size, columns), -np.inf)
        end = np.full((size, columns), -1)
        for (b, c), r in steps.items():
            value = self.chain[:, b] + self.logs[r]
            better = value > best[:, c]
            best[better, c], end[better, c] = value[better], r
        return best, end

    def chart(self, ids: np.ndarray) -> np.ndarray:
        """(A, n, n): ln of the probability of the best derivation of each span, by its start and its width - 1."""
        n = len(ids)
        single = np.asarray(np.isneginf(self.pair).all(axis=1))
        chart = np.full((self.binary.num_symbols, n, n), -np.inf)
        by_end = {int(a): np.full((n, n), -np.inf) for a in self.right}
        chart[:, :, 0] = self.terminal[:, ids]
        for a, ends in by_end.items():
            ends[:, n - 1] = chart[a, :, 0]
        uses = [(a, np.flatnonzero(row)) for a, row in enumerate(~np.isneginf(self.pair)) if row.any()]
        for width in range(2, n + 1):
            spans = n - width + 1
            pairs = np.empty((len(self.left), spans))
            for p, (left, right) in enumerate(zip(self.left.tolist(), self.right.tolist(), strict=True)):
                if single[left]:
                    pairs[p] = chart[left, :spans, 0] + chart[right, 1 : spans + 1, width - 2]
                elif single[right]:
                    pairs[p] = chart[left, :spans, width - 2] + chart[right, width - 1 :, 0]
                else:
                    heads = chart[left, :spans, : width - 1]
                    pairs[p] = np.max(heads + by_end[right][width - 1 :, n - width + 1 :], axis=1)
            for a, used in uses:
                value = np.max(pairs[used] + self.pair[a, used, None], axis=0)
                chart[a, :spans, width - 1] = value
                if a in by_end:
                    by_end[a][width - 1 :, n - width] = value
        return chart

    def last_step(self, chart: np.ndarray, ids: np.ndarray, a: int, span: tuple[int, int]) -> tuple[int, list[_Span]]:
        """Return the rule at the end of the best chain from `a`, and the spans of the rule's symbols."""
        start, width = span
        if width == 1:
            return int(self.terminal_end[a, ids[start]]), []
        used = np.flatnonzero(~np.isneginf(self.pair[a]))
        widths = np.arange(1, width)
        heads = chart[self.left[used], start, : width - 1]
        tails = chart[self.right[used][:, None], start + widths, width - widths - 1]
        values = heads + tails + self.pair[a, used, None]
        p, m = divmod(int(np.argmax(values)), width - 1)
        return int(self.pair_end[a, used[p]]), [(start, m + 1), (start + m + 1, width - m - 1)]

    def chain_steps(self, a: int, b: int) -> list[tuple[int, int]]:
        """Return the rules of the best chain from a to b, and the position of the symbol that each of them keeps."""
        steps = []
        while a != b:
            onward = int(self.next[a, b])
            r, at = self.edge_rule[a, onward]
            steps.append((r, at))
            a = onward
        return steps

    def new_node(self, r: int, nodes: list[_Node]) -> _Node:
        """Append a node for rule number `r`, with slots that are still to be filled, to `nodes`."""
        node = _Node(r, [_Node(-1, [])] * len(self.binary.rules[r].rhs))
        nodes.append(node)
        return node


def best_parse(grammar: PCFG, ids: np.ndarray) -> Parse | None:
    """Return the most probable derivation tree of a string of ids, or None if the string is not in the language."""
    if len(ids) > MAX_PARSED:
        raise ValueError(f"string: expected at most {MAX_PARSED:,} symbols, got {len(ids):,}")
    viterbi = grammar._viterbi
    start = viterbi.binary.start
    if (ids < 0).any():
        return None
    if len(ids) == 0:
        if start not in viterbi.empty:
            return None
        chart, span = np.zeros((0, 0, 0)), None
    else:
        chart, span = viterbi.chart(ids), (0, len(ids))
        if np.isneginf(chart[start, 0, len(ids) - 1]):
            return None

    top: list[_Node] = [_Node(-1, [])]
    nodes: list[_Node] = []
    todo: list[tuple[int, _Span, list[_Node], int]] = [(start, span, top, 0)]
    while todo:
        a, where, slots, at = todo.pop()
        if where is None:
            end, spans = viterbi.empty_rule[a], None
        else:
            end, spans = viterbi.last_step(chart, ids, a, where)
        rule = viterbi.binary.rules[end]
        for r, kept in viterbi.chain_steps(a, rule.lhs):
            step = viterbi.new_node(r, nodes)
            slots[at] = step
            todo.extend((x, None, step.slots, m) for m, x in enumerate(viterbi.binary.rules[r].rhs) if m != kept)
            slots, at = step.slots, kept
        slots[at] = node = viterbi.new_node(end, nodes)
        for m, x in enumerate(rule.rhs):
            todo.append((x, spans[m] if spans else None, node.slots, m))

    names = list(dict.fromkeys([grammar.start, *(rule.lhs for rule in grammar.rules if rule.weight)]))
    below: dict[int, tuple[Tree | str, ...]] = {}
    for node in reversed(nodes):  # children come after their parents
        rule = viterbi.binary.rules[node.rule]
        if rule.terminal is not None:
            items: tuple[Tree | str, ...] = (grammar.symbols[rule.terminal],)
        else:
            items = tuple(item for slot in node.slots for item in below.pop(id(slot)))
        below[id(node)] = items if rule.rule is None else (Tree(names[rule.lhs], items),)
    (tree,) = below[id(top[0])]
    return Parse(tree, math.fsum(viterbi.logs[node.rule] for node in nodes))  # type: ignore[arg-type]
