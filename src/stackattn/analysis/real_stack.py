"""How well a learned stack is the stack that a person would program.

Two of the paper's languages are read by a deterministic automaton with one move for each symbol (the paper calls them
real-time), so that after every symbol there is one right top of the stack:

- marked reversal: push every symbol before the mark, leave the stack alone at the mark, pop one symbol for each after;
- Dyck: push every opening bracket, pop it at its closing bracket.

The other languages need guesses (where is the middle?), and only the whole string tells which were right. There the
most probable derivation is the judge, and what it judges is the best run, which has seen the whole string too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..languages import PCFG, Language, Tree
from .traces import StackTrace

DETERMINISTIC = ("marked-reversal", "dyck")
REAL_TOP = (  # what `agreements` counts, in words
    "share of steps at which the most weighted token is the one that a real stack would have on top (the bottom, or "
    "the share that is empty, is no token); or, where the real stack is empty, at which the bottom or the empty share, "
    "or BOS, outweighs every symbol"
)


def real_tops(language: Language, string: Sequence[int]) -> list[int] | None:
    """After each symbol, the position of the symbol that the real stack has on top; -1 where it is empty.

    None if the language has no deterministic automaton here, or if the automaton refuses the string.
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
    """After each symbol, the position of what is on top of the stack in the string's most probable derivation, or -1.

    A rule that begins and ends with a terminal, such as S -> 0 S 0 or T -> ( Q S Q ), pushes with its first symbol and
    pops with its last. For marked reversal and Dyck this is the real stack. None for a string without a derivation, and
    for a language without a grammar.
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
    """For each step of a trace, the column of its weights that is the real top; 0, the bottom, for an empty stack."""
    shift = 2 - trace.first  # the bottom comes before the string, and so does BOS where it is read
    return [0] * (1 - trace.first) + [top + shift if top >= 0 else 0 for top in tops]


def agreements(trace: StackTrace, tops: Sequence[Sequence[int]], *, best_run: bool = False) -> list[list[bool]]:
    """For each sequence of the trace, at which symbols the stack has on top what it should.

    - Where `tops` has a position, its token must have more weight than any other token. The bottom, or the share of a
      superposition stack that is empty, is no token, and does not compete.
    - Where `tops` says -1, the bottom or the empty share must have more weight than any symbol of the string. BOS,
      which is none, may stand for it.

    Or, for `best_run`, what the run of the largest weight has on top must be that token; or the bottom or BOS. The step
    that reads BOS is not counted.
    """
    before = 1 - trace.first  # columns of BOS
    columns = [real_columns(trace, row) for row in tops]
    if best_run:
        found = [[stack[-1][0] + 1 for stack in run.stacks()] for run in trace.best_runs()]
        right = [
            [column == real or (real == 0 and column <= before) for column, real in zip(row, of, strict=True)]
            for row, of in zip(found, columns, strict=True)
        ]
    else:
        right = [
            [_has_most_weight(weights, real, before) for weights, real in zip(row, of, strict=True)]
            for row, of in zip(trace.tops().tolist(), columns, strict=True)
        ]
    return [row[before:] for row in right]


def _has_most_weight(weights: list[float], real: int, before: int) -> bool:
    """Of one step's weights, (T + 1,)."""
    if real == 0:
        return max(weights[: before + 1]) > max(weights[before + 1 :])
    return weights[real] > max([*weights[1:real], *weights[real + 1 :]], default=0.0)


@dataclass(frozen=True)
class Agreement:
    """Of the steps of some strings, how many have on top what they should."""

    right: int
    steps: int
    only_pushes: int
    """Steps that a stack would have right which pushes every symbol and never pops."""
    never_pushes: int
    """Steps that a stack would have right which stays empty."""

    @property
    def share(self) -> float:
        return self.right / self.steps

    @property
    def baselines(self) -> dict[str, float]:
        """The shares of stacks that know nothing of the language."""
        return {"only pushes": self.only_pushes / self.steps, "never pushes": self.never_pushes / self.steps}

    def __str__(self) -> str:
        baselines = ", ".join(f"a stack that {name}: {share:.1%}" for name, share in self.baselines.items())
        return f"{self.share:.1%} of {self.steps:,} steps ({baselines})"


def agreement(
    traces: Sequence[Sequence[StackTrace]], tops: Sequence[Sequence[Sequence[int]]], *, best_run: bool = False
) -> dict[str, Agreement]:
    """The agreement of each stack, over batches: `traces[b]` are the stacks of batch b, `tops[b]` what is right."""
    rows = [row for batch in tops for row in batch]
    steps = sum(map(len, rows))
    pushed = sum(top == position for row in rows for position, top in enumerate(row))
    empty = sum(top == -1 for row in rows for top in row)
    right: dict[str, int] = {}
    for batch, real in zip(traces, tops, strict=True):
        for trace in batch:
            hits = sum(sum(row) for row in agreements(trace, real, best_run=best_run))
            right[trace.name] = right.get(trace.name, 0) + hits
    return {name: Agreement(hits, steps, pushed, empty) for name, hits in right.items()}
