"""Reading the words of treebank files: `( (S (NP (DT The) (NN end)) ...) )`, one tree after another.

Errors name the line of a missing bracket; empty elements are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..lines import read_lines

EMPTY = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")


def read_sentences(path: Path) -> Iterator[list[str]]:
    """Yield the words of each tree of a file; a tree that contains only empty elements yields an empty list."""
    return parse_sentences(read_lines(path), str(path))


def parse_sentences(lines: Iterable[str], source: str) -> Iterator[list[str]]:
    """Yield the words of each tree, like `read_sentences`, from lines; `source` is the name of the file for errors.

    A line that starts with a bracket starts a new tree, so a missing bracket is reported in the tree that lacks it.

    Raises:
        ValueError: a bracket is missing or superfluous, or a word has no tag; the message names the line.
    """
    words: list[str] = []
    open_at: list[int] = []  # the line of each open bracket
    texts: list[list[str]] = []  # the content of each open bracket: a label, or a tag and a word
    has_children: list[bool] = []

    def fail(line: int, message: str) -> ValueError:
        return ValueError(f"{source}, line {line}: {message}")

    number = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("(") and open_at:
            raise fail(
                number, f"a tree starts here, but the tree on line {open_at[0]} lacks {len(open_at)} closing brackets"
            )
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
                raise fail(number, "unmatched closing bracket" if token == ")" else f"expected a tree, got {token!r}")
            elif token != ")":
                if has_children[-1]:
                    raise fail(number, f"{token!r} has no tag: expected (TAG {token})")
                texts[-1].append(token)
            else:
                open_at.pop()
                content, is_inner = texts.pop(), has_children.pop()
                if not is_inner and len(content) > 2:
                    raise fail(number, f"expected (TAG word), got ({' '.join(content)})")
                if not is_inner and len(content) == 2 and content[0] != EMPTY:  # fewer than two: an empty element
                    words.append(content[1])
                if not open_at:
                    yield words
                    words = []
    if open_at:
        raise fail(number, f"the file ends, but the tree on line {open_at[0]} lacks {len(open_at)} closing brackets")
