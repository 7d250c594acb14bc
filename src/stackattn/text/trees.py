"""The words of treebank files: `( (S (NP (DT The) (NN end)) ...) )`, one tree after the other.

A reader of our own, because it is shorter than what the readers of others need around them: they do not say in which
line a bracket is missing, and what to do about empty elements is ours anyhow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..lines import read_lines

EMPTY = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")


def read_sentences(path: Path) -> Iterator[list[str]]:
    """The words of each tree of a file; none for a tree of empty elements only."""
    return parse_sentences(read_lines(path), str(path))


def parse_sentences(lines: Iterable[str], source: str) -> Iterator[list[str]]:
    """As `read_sentences`; `source` is for messages.

    A line that begins with a bracket begins a tree, so that a bracket that is missing is found in the tree where it is.
    """
    words: list[str] = []
    open_at: list[int] = []  # the line of each bracket that is still open
    texts: list[list[str]] = []  # of each of them: a label, or a tag and a word
    has_children: list[bool] = []

    def fail(line: int, message: str) -> ValueError:
        return ValueError(f"{source}, line {line}: {message}")

    number = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("(") and open_at:
            raise fail(number, f"a tree begins here, but the one of line {open_at[0]} lacks {len(open_at)} brackets")
        for token in _TOKEN.findall(line):
            if token == "(":
                if open_at:
                    has_children[-1] = True
                    if len(texts[-1]) > 1:
                        raise fail(number, f"expected one label before a bracket, got {' '.join(texts[-1])!r}")
                open_at.append(number)
                texts.append([])
                has_children.append(False)
            elif not open_at:
                raise fail(number, "this bracket closes nothing" if token == ")" else f"{token!r} is in no tree")
            elif token != ")":
                if has_children[-1]:
                    raise fail(number, f"{token!r} has no tag: expected (TAG {token})")
                texts[-1].append(token)
            else:
                open_at.pop()
                content, is_inner = texts.pop(), has_children.pop()
                if not is_inner and len(content) > 2:
                    raise fail(number, f"expected (TAG word), got ({' '.join(content)})")
                if not is_inner and len(content) == 2 and content[0] != EMPTY:  # less than two: nothing is left of it
                    words.append(content[1])
                if not open_at:
                    yield words
                    words = []
    if open_at:
        raise fail(number, f"the file ends, but the tree of line {open_at[0]} lacks {len(open_at)} brackets")
