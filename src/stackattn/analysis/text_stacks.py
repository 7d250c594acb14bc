"""Which earlier words a language model's stacks read: by distance, by word class, and for related words.

The sentences come from a treebank. A stack usually gives more weight to nearby words than to distant ones, whatever the
words are; each weight is therefore compared with the mean weight at the same distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ..files import write_json, write_text
from ..text.relations import CLASSES, OTHER, SUBJECT_VERB, Related, find_related, word_class
from ..text.trees import Tree
from ..text.vocabulary import Vocabulary
from .drawings import FORMATS, file_name
from .figures import INNER, new_figure, save_figure
from .sentences import LONGEST
from .traces import trace_stacks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOS = "BOS"
READ = (BOS, *CLASSES, OTHER)
"""Classes of the tokens that a stack can read: BOS, and the word classes."""
NEAR = (0, 1, 2, 4, 8, 16)
"""Upper limits of the ranges of distances; one more range has no limit."""
BATCH = 32  # sentences of equal length that are traced together
AS_TEXT = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "-LCB-": "{", "-RCB-": "}"}
"""Treebank tokens for brackets and quotation marks, and the characters that they stand for."""


@dataclass(frozen=True)
class TaggedSentence:
    """A treebank sentence: its words as ids of a model's vocabulary, their classes, and the related words."""

    ids: list[int]
    classes: list[str]
    related: list[Related]


@dataclass(frozen=True)
class Compared:
    """Attention weight of some elements, and the mean weight of all elements at the same distances."""

    weight: float
    expected: float

    @property
    def ratio(self) -> float:
        """1 if the weights depend on distances only; nan if no weight is expected."""
        return self.weight / self.expected if self.expected else float("nan")


@dataclass(frozen=True)
class RelationReading(Compared):
    """How a stack reads the earlier of two related words at the step that predicts the later one."""

    cases: int
    first: float
    """Share of cases in which no other element has more weight; the bottom and the empty stack are not compared."""


@dataclass(frozen=True)
class TextStack:
    """What one stack reads, on average over all steps."""

    name: str
    sentences: int
    steps: int
    empty: float
    """Weight of the bottom or of the empty stack."""
    distances: list[float]
    """Weight by range of distances (`NEAR`). Distance 0 is the word just read."""
    classes: dict[str, Compared]
    """Weight by class of the word on top, a member of `READ`."""
    after: dict[str, dict[str, Compared]]
    """`classes` broken down by the class of the word just read, which is the first key."""
    relations: dict[str, RelationReading]
    """Readings of related words; subjects are divided by whether they directly precede the verb."""


def tag_sentences(trees: Iterable[Tree], vocabulary: Vocabulary, number: int | None = None) -> list[TaggedSentence]:
    """Return the first sentences of 2 to `LONGEST` words, at most `number` of them.

    Raises:
        ValueError: the vocabulary consists of pieces of words, or there is no such sentence.
    """
    if vocabulary.pieces_model is not None:
        expected = "expected a model with a vocabulary of words, like the leaves of the trees"
        raise ValueError(f"vocabulary: {expected}, got one with SentencePiece pieces")
    found: list[TaggedSentence] = []
    for tree in trees:
        if len(found) == number:
            break
        leaves = tree.leaves()
        if 2 <= len(leaves) <= LONGEST:
            ids = vocabulary.encode(_as_written(leaf.word or "", vocabulary) for leaf in leaves)
            found.append(TaggedSentence(ids, [word_class(leaf.label) for leaf in leaves], find_related(tree)))
    if not found:
        raise ValueError(f"trees: expected at least one sentence of 2 to {LONGEST} words, found none")
    return found


def _as_written(word: str, vocabulary: Vocabulary) -> str:
    """The word if it is in the vocabulary, otherwise the character that it stands for, if any."""
    return word if word in vocabulary else AS_TEXT.get(word, word)


def measure_text_stacks(
    model: nn.Module, vocabulary: Vocabulary, sentences: Sequence[TaggedSentence]
) -> list[TextStack]:
    """Trace the stacks of a language model on sentences and return what each of them reads.

    Raises:
        ValueError: the model has no stacks.
    """
    weights: dict[str, list[np.ndarray]] = {}  # of each stack and sentence of n words, (n + 1, n + 2) like `tops`
    ordered: list[TaggedSentence] = []
    for batch in _equal_lengths(sentences):
        ordered += batch
        for trace in trace_stacks(model, torch.tensor([[vocabulary.bos, *sentence.ids] for sentence in batch])):
            weights.setdefault(trace.name, []).extend(trace.tops().numpy())
    if not weights:
        raise ValueError("model: expected a model with at least one stack attention layer, got one without")
    return [_measure(name, ordered, tops) for name, tops in weights.items()]


def _equal_lengths(sentences: Sequence[TaggedSentence]) -> Iterator[list[TaggedSentence]]:
    groups: dict[int, list[TaggedSentence]] = {}
    for sentence in sentences:
        groups.setdefault(len(sentence.ids), []).append(sentence)
    for length in sorted(groups):
        yield from (groups[length][i : i + BATCH] for i in range(0, len(groups[length]), BATCH))


def _measure(name: str, sentences: Sequence[TaggedSentence], tops: Sequence[np.ndarray]) -> TextStack:
    steps = sum(len(rows) for rows in tops)
    sums, counts = np.zeros(LONGEST + 1), np.zeros(LONGEST + 1)
    for rows in tops:
        step, top = np.tril_indices(len(rows))
        np.add.at(sums, step - top, rows[step, top + 1])
        np.add.at(counts, step - top, 1)
    # mean weight by distance, over the steps that have an element at that distance
    profile = sums / np.maximum(counts, 1)
    limits = np.searchsorted(NEAR, np.arange(len(sums)))

    after = np.zeros((len(READ), len(READ), 2))  # (class just read, class on top, weight and expected weight)
    cases: dict[str, list[tuple[float, float, bool]]] = {}
    for sentence, rows in zip(sentences, tops, strict=True):
        kinds = np.array([READ.index(kind) for kind in (BOS, *sentence.classes)])
        step, top = np.tril_indices(len(rows))
        expected = profile[step - top]
        np.add.at(after, (kinds[step], kinds[top]), np.stack([rows[step, top + 1], expected], axis=1))
        for related in sentence.related:
            step, top = related.later, related.earlier + 1  # step t has read BOS and t words
            relation = related.relation
            if relation == SUBJECT_VERB:
                relation += ", adjacent" if step == top else ", apart"
            weight = rows[step, top + 1]
            cases.setdefault(relation, []).append((weight, profile[step - top], bool(weight >= rows[step, 1:].max())))
    return TextStack(
        name=name,
        sentences=len(sentences),
        steps=steps,
        empty=float(sum(rows[:, 0].sum() for rows in tops) / steps),
        distances=[float(sums[limits == i].sum() / steps) for i in range(len(NEAR) + 1)],
        classes={kind: Compared(*map(float, after[:, i].sum(0) / steps)) for i, kind in enumerate(READ)},
        after={
            kind: {top: Compared(*map(float, after[i, j] / steps)) for j, top in enumerate(READ)}
            for i, kind in enumerate(READ)
        },
        relations={
            relation: RelationReading(
                *(float(x) for x in np.mean([case[:2] for case in found], axis=0)),
                cases=len(found),
                first=float(np.mean([case[2] for case in found])),
            )
            for relation, found in sorted(cases.items())
        },
    )


def distance_names() -> list[str]:
    """Names of the ranges of distances: 0, 1, 2, 3-4, ..., 17+."""
    names, first = [], 0
    for last in NEAR:
        names.append(str(last) if last == first else f"{first}-{last}")
        first = last + 1
    return [*names, f"{first}+"]


def text_stack_tables(stack: TextStack) -> str:
    """Return what a stack reads as Markdown tables."""
    lines = [
        f"**{stack.name}**: {stack.sentences:,} sentences, {stack.steps:,} steps",
        "",
        f"| distance | empty | {' | '.join(distance_names())} |",
        "| --- |" + " ---: |" * (len(stack.distances) + 1),
        f"| weight | {stack.empty:.3f} | {' | '.join(f'{x:.3f}' for x in stack.distances)} |",
        "",
        "| word on top | weight | by distance alone | ratio |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {kind} | {_compared(found)} |" for kind, found in stack.classes.items()),
        "",
        "| related words | cases | weight | by distance alone | ratio | share with most weight |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {relation} | {found.cases:,} | {_compared(found)} | {found.first:.3f} |"
            for relation, found in stack.relations.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _compared(found: Compared) -> str:
    return f"{found.weight:.3f} | {found.expected:.3f} | {found.ratio:.2f}"


def write_text_stacks(stacks: Sequence[TextStack], out: Path) -> list[Path]:
    """Write `stacks.md`, `stacks.json` and the figure of each stack into a folder, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    tables, values = out / "stacks.md", out / "stacks.json"
    write_text(tables, "\n".join(map(text_stack_tables, stacks)))
    write_json(values, {"stacks": [asdict(stack) for stack in stacks]})
    figures = [
        save_figure(text_stack_figure(stack), *(out / f"{file_name(stack.name)}.{suffix}" for suffix in FORMATS))
        for stack in stacks
    ]
    return [tables, values, *(path for paths in figures for path in paths)]


def text_stack_figure(stack: TextStack, title: str = "") -> Figure:
    """Draw the weights of a stack by distance, and the ratios of `TextStack.after` as a map."""
    figure = new_figure(INNER, 3.1)
    bars, grid = figure.subplots(1, 2, width_ratios=(2, 5))
    names = ["empty", *distance_names()]
    bars.barh(range(len(names)), [stack.empty, *stack.distances], color="0.4")
    bars.set_yticks(range(len(names)), names, fontsize=7)
    bars.invert_yaxis()
    bars.set_xlabel("attention weight", fontsize=8)
    bars.set_ylabel("distance in words", fontsize=8)
    bars.tick_params(axis="x", labelsize=7)
    bars.spines[["top", "right"]].set_visible(False)

    ratios = np.array([[found.ratio for found in row.values()] for row in stack.after.values()])
    with np.errstate(divide="ignore"):
        shades = np.clip(np.log2(ratios), -2, 2)
    image = grid.imshow(shades, cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto", interpolation="nearest")
    grid.set_xticks(range(len(READ)), READ, fontsize=7, rotation=45, ha="right", rotation_mode="anchor")
    grid.set_yticks(range(len(READ)), READ, fontsize=7)
    grid.set_xlabel("word on top of the stack", fontsize=8)
    grid.set_ylabel("word just read", fontsize=8)
    grid.tick_params(length=0)
    bar = figure.colorbar(image, ax=grid, ticks=range(-2, 3), shrink=0.8)
    bar.ax.set_yticklabels(["≤ ¼", "½", "1", "2", "≥ 4"], fontsize=7)
    bar.set_label("weight / weight by distance alone", fontsize=7)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure
