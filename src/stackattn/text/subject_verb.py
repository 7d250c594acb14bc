"""Minimal pairs for subject-verb agreement: the beginning of a sentence, and a verb in the singular and in the plural.

Between the subject and the verb there are up to two nouns in prepositional phrases, the attractors. All of them have
the grammatical number of the subject, or all have the other one. Attractors with the other number mislead a model that
makes the verb agree with the last noun.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NOUNS = (
    ("album", "albums"),
    ("character", "characters"),
    ("church", "churches"),
    ("episode", "episodes"),
    ("film", "films"),
    ("game", "games"),
    ("house", "houses"),
    ("player", "players"),
    ("road", "roads"),
    ("ship", "ships"),
    ("soldier", "soldiers"),
    ("song", "songs"),
    ("storm", "storms"),
    ("team", "teams"),
)
VERBS = (("is", "are"), ("was", "were"), ("has", "have"))
PREPOSITIONS = ("near", "with", "behind", "from")
MOST_ATTRACTORS = 2


@dataclass(frozen=True)
class MinimalPair:
    """The beginning of a sentence and two forms of a verb, only one of which agrees with the subject."""

    beginning: str
    right: str
    wrong: str
    attractors: int
    """Number of nouns between the subject and the verb."""
    misleading: bool
    """Whether the grammatical number of the attractors differs from that of the subject."""


def minimal_pairs(number: int, *, seed: int = 0, known: Callable[[str], bool] = lambda word: True) -> list[MinimalPair]:
    """Draw minimal pairs, the same number for each condition.

    Args:
        number: number of pairs for each condition: no attractor, and one or two attractors, misleading or not.
        seed: seed for drawing the words.
        known: whether a word may be used, for example because it is in the vocabulary of a model.

    Raises:
        ValueError: the known words do not include three nouns and a verb in both numbers, a preposition and "the".

    Example:
        >>> minimal_pairs(1)[2].beginning
        'the players with the game'
    """
    nouns = [pair for pair in NOUNS if all(map(known, pair))]
    verbs = [pair for pair in VERBS if all(map(known, pair))]
    prepositions = list(filter(known, PREPOSITIONS))
    if len(nouns) <= MOST_ATTRACTORS or not verbs or not prepositions or not known("the"):
        raise ValueError(
            f"known: expected at least {MOST_ATTRACTORS + 1} nouns and a verb in both numbers, a preposition and "
            f"'the', got nouns: {len(nouns)}, verbs: {len(verbs)}, prepositions: {len(prepositions)}"
        )
    generator = random.Random(seed)
    conditions = [(0, False), *((n, misleading) for n in range(1, MOST_ATTRACTORS + 1) for misleading in (False, True))]
    found = []
    for attractors, misleading in conditions:
        for _ in range(number):
            plural = generator.randrange(2)
            subject, *others = generator.sample(nouns, 1 + attractors)
            words = ["the", subject[plural]]
            for other in others:
                words += [generator.choice(prepositions), "the", other[plural ^ misleading]]
            verb = generator.choice(verbs)
            found.append(MinimalPair(" ".join(words), verb[plural], verb[1 - plural], attractors, misleading))
    return found
