"""How well a learned stack is the stack that a person would program, on languages that need only one.

Two of the paper's languages are read by a deterministic automaton with one move for each symbol (the paper calls them
real-time):

- marked reversal: push every symbol before the mark, leave the stack alone at the mark, pop one symbol for each after;
- Dyck: push every opening bracket, pop it at its closing bracket.

The other languages need guesses (where is the middle?), so no single stack is the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..languages import Language
from .traces import StackTrace

DETERMINISTIC = ("marked-reversal", "dyck")


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


def real_columns(trace: StackTrace, tops: Sequence[int]) -> list[int]:
    """For each step of a trace, the column of its weights that is the real top; 0, the bottom, for an empty stack."""
    shift = 2 - trace.first  # the bottom comes before the string, and so does BOS where it is read
    return [0] * (1 - trace.first) + [top + shift if top >= 0 else 0 for top in tops]


def agreements(trace: StackTrace, tops: Sequence[Sequence[int]]) -> list[list[bool]]:
    """For each sequence of the trace, at which symbols its most weighted element is what the real stack has on top.

    Where the real stack is empty, the bottom is right, and so is BOS: neither is a symbol of the string. The step that
    reads BOS is not counted.
    """
    before = 1 - trace.first
    found = trace.tops()[:, before:].argmax(-1).tolist()  # (B, n)
    return [
        [column == real or (real == 0 and column <= before) for column, real in zip(row, columns[before:], strict=True)]
        for row, columns in zip(found, (real_columns(trace, row) for row in tops), strict=True)
    ]


@dataclass(frozen=True)
class Agreement:
    """Of the steps of some strings, how many have the real stack's top as the most weighted element."""

    right: int
    steps: int
    only_pushes: int
    """Steps that a stack would have right which pushes every symbol and never pops."""

    @property
    def share(self) -> float:
        return self.right / self.steps

    def __str__(self) -> str:
        return f"{self.share:.1%} of {self.steps} steps (a stack that only pushes: {self.only_pushes / self.steps:.1%})"


def agreement(traces: Sequence[Sequence[StackTrace]], tops: Sequence[Sequence[Sequence[int]]]) -> dict[str, Agreement]:
    """The agreement of each stack, over batches: `traces[b]` are the stacks of batch b, `tops[b]` its real tops."""
    steps = sum(len(row) for batch in tops for row in batch)
    pushes = sum(top == position for batch in tops for row in batch for position, top in enumerate(row))
    right: dict[str, int] = {}
    for batch, real in zip(traces, tops, strict=True):
        for trace in batch:
            hits = sum(sum(row) for row in agreements(trace, real))
            right[trace.name] = right.get(trace.name, 0) + hits
    return {name: Agreement(hits, steps, pushes) for name, hits in right.items()}
