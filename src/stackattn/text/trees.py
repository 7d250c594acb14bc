"""Reading treebank files: `( (S (NP (DT The) (NN end)) ...) )`, one tree after another.

Errors name the line. Empty elements, which have the tag `-NONE-`, are read, but do not count as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..lines import read_lines

EMPTY = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Tree:
    """A constituent with its children, or a word with its tag; an empty element has neither children nor a word."""

    label: str
    """The label of a constituent, such as `NP-SBJ-1`, or the tag of a word."""
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def leaves(self) -> list[Tree]:
        """Return the leaves that are words, in order."""
        todo: list[Tree] = [self]
        found: list[Tree] = []
        while todo:  # not recursive: the depth of a file's trees is not limited
            tree = todo.pop()
            if tree.word is not None:
                found.append(tree)
            todo.extend(reversed(tree.children))
        return found


def read_sentences(path: Path) -> Iterator[list[str]]:
    """Yield the words of each tree of a file; a tree that contains only empty elements yields an empty list."""
    return parse_sentences(read_lines(path), str(path))


def parse_sentences(lines: Iterable[str], source: str) -> Iterator[list[str]]:
    """Yield the words of each tree, like `read_sentences`, from lines; `source` names the file in errors."""
    return ([leaf.word for leaf in tree.leaves() if leaf.word is not None] for tree in parse_trees(lines, source))


def read_trees(path: Path) -> Iterator[Tree]:
    """Yield the trees of a file; the root of each is its outermost bracket, which usually has no label."""
    return parse_trees(read_lines(path), str(path))


def parse_trees(lines: Iterable[str], source: str) -> Iterator[Tree]:
    """Yield trees, like `read_trees`, from lines.

    A line that starts with an opening bracket starts a new tree, so a missing closing bracket is reported for the tree
    that lacks it.

    Raises:
        ValueError: a bracket is missing or superfluous, or a word has no tag; the message names the line.
    """
    open_at: list[int] = []  # the line of each open bracket
    texts: list[list[str]] = []  # the content of each open bracket: a label, or a tag and a word
    inner: list[list[Tree]] = []  # the finished children of each open bracket

    def fail(line: int, message: str) -> ValueError:
        return ValueError(f"{source}, line {line}: {message}")

    def unclosed() -> str:
        return f"the tree on line {open_at[0]} lacks {len(open_at)} closing bracket{'s' if len(open_at) > 1 else ''}"

    number = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("(") and open_at:
            raise fail(number, f"a tree starts here, but {unclosed()}")
        for token in _TOKEN.findall(line):
            if token == "(":
                if open_at and len(texts[-1]) > 1:
                    raise fail(number, f"expected one label before a bracket, got {' '.join(texts[-1])!r}")
                open_at.append(number)
                texts.append([])
                inner.append([])
            elif not open_at:
                raise fail(number, "unmatched closing bracket" if token == ")" else f"expected a tree, got {token!r}")
            elif token != ")":
                if inner[-1]:
                    raise fail(number, f"expected (TAG {token}), got {token!r} without a tag")
                texts[-1].append(token)
            else:
                open_at.pop()
                content, children = texts.pop(), tuple(inner.pop())
                if not children and len(content) > 2:
                    raise fail(number, f"expected (TAG word), got ({' '.join(content)})")
                label = content[0] if content else ""
                is_word = not children and len(content) == 2 and label != EMPTY
                tree = Tree(label, children, content[1] if is_word else None)
                if open_at:
                    inner[-1].append(tree)
                else:
                    yield tree
    if open_at:
        raise fail(number, f"the file ends, but {unclosed()}")
