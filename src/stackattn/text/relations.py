"""Word classes and related words of treebank sentences: subjects and verbs, brackets, quotation marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .trees import Tree

CLASSES = {  # word classes, and the tags of the Penn Treebank that belong to them
    "noun": ("NN", "NNS"),
    "name": ("NNP", "NNPS"),
    "pronoun": ("PRP", "WP", "EX"),
    "verb": ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "MD"),
    "adjective": ("JJ", "JJR", "JJS"),
    "adverb": ("RB", "RBR", "RBS", "WRB", "RP"),
    "determiner": ("DT", "PDT", "WDT", "PRP$", "WP$"),
    "preposition": ("IN", "TO"),
    "conjunction": ("CC",),
    "number": ("CD",),
    "punctuation": (",", ".", ":", "``", "''", "-LRB-", "-RRB-"),
}
OTHER = "other"
_CLASS_OF = {tag: name for name, tags in CLASSES.items() for tag in tags}

NOMINAL = (*CLASSES["noun"], *CLASSES["name"], *CLASSES["pronoun"])
FINITE = ("VBD", "VBP", "VBZ", "MD")
PAIRS = {"bracket": ("-LRB-", "-RRB-"), "quotation mark": ("``", "''")}
SUBJECT_VERB = "subject and verb"
BETWEEN = "noun between subject and verb"


@dataclass(frozen=True)
class Related:
    """Two related words of a sentence, by index."""

    relation: str
    """`SUBJECT_VERB`, `BETWEEN` or a key of `PAIRS`."""
    earlier: int
    later: int


def word_class(tag: str) -> str:
    """Return the class of a word with a tag of the Penn Treebank: a key of `CLASSES`, or `OTHER`."""
    return _CLASS_OF.get(tag, OTHER)


def find_related(tree: Tree) -> list[Related]:
    """Return the pairs of related words in a sentence, sorted by the index of the later word.

    The subject is the head noun or pronoun of an `NP-SBJ`, and the verb is the finite verb of a `VP` that follows in
    the same constituent, not necessarily directly. The relation `BETWEEN` pairs every noun or pronoun between the two
    with the verb. Brackets and quotation marks are paired from the inside out; unpaired ones are ignored.

    Example:
        >>> from stackattn.text.trees import parse_trees
        >>> (tree,) = parse_trees(["(S (NP-SBJ (NNS keys)) (ADVP (RB never)) (VP (VBP fit)))"], "here")
        >>> find_related(tree)
        [Related(relation='subject and verb', earlier=0, later=2)]
    """
    tags = [leaf.label for leaf in tree.leaves()]
    found = [*_subjects(tree)]
    found += [
        Related(BETWEEN, at, pair.later)
        for pair in found
        for at in range(pair.earlier + 1, pair.later)
        if tags[at] in NOMINAL
    ]
    for relation, (opening, closing) in PAIRS.items():
        found += _paired(tags, relation, opening, closing)
    return sorted(found, key=lambda related: (related.later, related.earlier))


def _paired(tags: Sequence[str], relation: str, opening: str, closing: str) -> Iterator[Related]:
    unpaired: list[int] = []
    for at, tag in enumerate(tags):
        if tag == opening:
            unpaired.append(at)
        elif tag == closing and unpaired:
            yield Related(relation, unpaired.pop(), at)


def _subjects(tree: Tree) -> Iterator[Related]:
    todo, before = [tree], 0  # `before` counts the words that precede the current tree
    while todo:
        current = todo.pop()
        nouns: list[int] = []
        at = before
        for child in current.children:
            if _is(child, "NP") and "SBJ" in child.label.split("-"):
                nouns = _direct_words(child, at, NOMINAL)
            elif _is(child, "VP") and nouns and (verbs := _direct_words(child, at, FINITE)):
                yield Related(SUBJECT_VERB, nouns[-1], verbs[0])
            at += len(child.leaves())
        before += current.word is not None
        todo.extend(reversed(current.children))


def _direct_words(phrase: Tree | None, at: int, tags: Sequence[str]) -> list[int]:
    """Indices of the children of a phrase that are words with these tags.

    If there are none, the first child with the category of the phrase is searched instead, and so on.
    """
    while phrase is not None:
        words, inner, start = [], None, at
        for child in phrase.children:
            if child.word is not None and child.label in tags:
                words.append(start)
            elif inner is None and _is(child, _category(phrase)):
                inner, at = child, start
            start += len(child.leaves())
        if words:
            return words
        phrase = inner
    return []


def _category(tree: Tree) -> str:
    """The label of a constituent without function tags and indices: NP for `NP-SBJ-1` and `NP=2`."""
    return tree.label.split("-")[0].split("=")[0]


def _is(tree: Tree, category: str) -> bool:
    return tree.word is None and _category(tree) == category
