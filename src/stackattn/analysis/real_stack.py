"""Agreement of a learned stack with the stack of a hand-written automaton.

Two of the paper's languages are recognised by a deterministic automaton with one transition per symbol (the paper calls
them real-time), so exactly one element should be on top of the stack after each symbol:

- marked reversal: push every symbol before the mark, do nothing at the mark, pop once for each symbol after it;
- Dyck: push every opening bracket, pop at every closing bracket.

An automaton for the paper's other languages has to guess (for example, where the middle of the string is), and only the
whole string shows which guesses were right. The best run of the learned stack also depends on the whole string; for
every language with a grammar, it is compared with the most probable derivation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..languages import PCFG, Language, Tree
from .traces import StackTrace

DETERMINISTIC = ("marked-reversal", "dyck")
REAL_TOP = (  # explains what `correct_steps` counts
    "share of steps at which the token with the most weight is the one on top of a real stack (the bottom and the "
    "empty share do not count as tokens) or, where the real stack is empty, at which the bottom, the empty share or "
    "BOS has more weight than every symbol"
)


def real_tops(language: Language, string: Sequence[int]) -> list[int] | None:
    """Return the position of the symbol on top of the real stack after each symbol; -1 where the stack is empty.

    Returns None if the language is not in `DETERMINISTIC`, or if its automaton cannot read a symbol of the string.
    """
    if language.name not in DETERMINISTIC:
        return None
    stack, tops, marked = [-1], [], False
    for position, symbol in enumerate(string):
        name = language.symbols[symbol]
        if language.name == "marked-reversal":
            pushes, pops = not marked and name != "#", marked
            marked = marked or name == "#"
            partner = symbol
        else:  # brackets come in pairs: opening, closing, opening, closing
            pushes, pops = symbol % 2 == 0, symbol % 2 == 1
            partner = symbol - 1
        if pops and (stack[-1] < 0 or string[stack.pop()] != partner):
            return None
        if pushes:
            stack.append(position)
        tops.append(stack[-1])
    return tops


def derivation_tops(language: Language, string: Sequence[int]) -> list[int] | None:
    """Return the position of the symbol on top of the stack after each symbol, in a string's most probable derivation.

    A rule that begins and ends with a terminal, such as S -> 0 S 0 or T -> ( Q S Q ), pushes its first symbol and pops
    it at its last one. For marked reversal and Dyck, this is the real stack. The position is -1 for an empty stack.

    Returns None if the string has no derivation or the language has no grammar.
    """
    parse = language.best_parse(np.asarray(string)) if isinstance(language, PCFG) else None
    if parse is None:
        return None
    stack, tops = [-1], []
    todo: list[tuple[Tree | str, str]] = [(parse.tree, "")]
    while todo:
        item, move = todo.pop()
        if isinstance(item, str):
            if move == "push":
                stack.append(len(tops))
            elif move == "pop":
                stack.pop()
            tops.append(stack[-1])
            continue
        moves = [""] * len(item.children)
        if len(moves) > 1 and isinstance(item.children[0], str) and isinstance(item.children[-1], str):
            moves[0], moves[-1] = "push", "pop"
        todo.extend(zip(item.children[::-1], moves[::-1], strict=True))
    return tops


def real_columns(trace: StackTrace, tops: Sequence[int]) -> list[int]:
    """Return the column of the weights that belongs to the real top at each step; 0, the bottom, for an empty stack."""
    shift = 2 - trace.first  # the columns of the bottom and, if it is read, BOS come before those of the string
    return [0] * (1 - trace.first) + [top + shift if top >= 0 else 0 for top in tops]


def correct_steps(trace: StackTrace, tops: Sequence[Sequence[int]], *, best_run: bool = False) -> list[list[bool]]:
    """Check for each sequence and each symbol whether the stack has the expected element on top.

    - Where `tops` has a position, that token must have more weight than every other token. The bottom and the empty
      share (see `StackTrace.tops`) are not tokens.
    - Where `tops` is -1, the bottom, the empty share or BOS must have more weight than every symbol of the string.

    With `best_run`, the run with the largest weight must have that token on top; for -1, it must have the bottom
    or BOS on top, or an empty stack. The step that reads BOS is not counted.

    Args:
        trace: trace of B sequences.
        tops: positions for each of the B strings, from `real_tops` or `derivation_tops`.
        best_run: check the best run instead of the weights.

    Returns:
        One list per sequence with one entry per symbol.
    """
    before = 1 - trace.first  # number of columns for BOS
    columns = [real_columns(trace, row) for row in tops]
    if best_run:
        found = [[stack[-1][0] + 1 for stack in run.stacks()] for run in trace.best_runs()]
        correct = [
            [column == real or (real == 0 and column <= before) for column, real in zip(row, expected, strict=True)]
            for row, expected in zip(found, columns, strict=True)
        ]
    else:
        correct = [
            [_has_most_weight(weights, real, before) for weights, real in zip(row, expected, strict=True)]
            for row, expected in zip(trace.tops().tolist(), columns, strict=True)
        ]
    return [row[before:] for row in correct]


def _has_most_weight(weights: list[float], real: int, before: int) -> bool:
    """Whether column `real` has the most weight at one step, given the weights (T + 1,) of that step."""
    if real == 0:
        return max(weights[: before + 1]) > max(weights[before + 1 :])
    return weights[real] > max([*weights[1:real], *weights[real + 1 :]], default=0.0)


@dataclass(frozen=True)
class Agreement:
    """Number of steps, over some strings, at which a stack has the expected element on top."""

    correct: int
    steps: int
    only_pushes: int
    """Correct steps of a stack that pushes every symbol and never pops."""
    never_pushes: int
    """Correct steps of a stack that stays empty."""

    @property
    def share(self) -> float:
        """Share of correct steps."""
        return self.correct / self.steps

    @property
    def baselines(self) -> dict[str, float]:
        """Shares of two stacks that do not depend on the language."""
        return {"only pushes": self.only_pushes / self.steps, "never pushes": self.never_pushes / self.steps}

    def __str__(self) -> str:
        baselines = ", ".join(f"a stack that {name}: {share:.1%}" for name, share in self.baselines.items())
        return f"{self.share:.1%} of {self.steps:,} steps ({baselines})"


def measure_agreement(
    traces: Sequence[Sequence[StackTrace]], tops: Sequence[Sequence[Sequence[int]]], *, best_run: bool = False
) -> dict[str, Agreement]:
    """Measure the agreement of each stack with the expected tops, summed over batches.

    Args:
        traces: `traces[b]` are the traces of the model's stacks on batch b.
        tops: `tops[b]` are the expected positions for the strings of batch b.
        best_run: see `correct_steps`.

    Returns:
        Agreement by name of the stack.
    """
    rows = [row for batch in tops for row in batch]
    steps = sum(map(len, rows))
    pushed = sum(top == position for row in rows for position, top in enumerate(row))
    empty = sum(top == -1 for row in rows for top in row)
    correct: dict[str, int] = {}
    for batch, real in zip(traces, tops, strict=True):
        for trace in batch:
            hits = sum(sum(row) for row in correct_steps(trace, real, best_run=best_run))
            correct[trace.name] = correct.get(trace.name, 0) + hits
    return {name: Agreement(hits, steps, pushed, empty) for name, hits in correct.items()}
