"""Languages that are not context-free, with closed-form probabilities: controls for experiments with stacks.

A fixed pattern maps each word u over k letters to a different string w. The length of w determines |u|, and all words
of a length are equally likely: ln p(w | length) = -|u| ln k.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .language import MAX_LENGTH, Entropy, Language, check_generator, check_integer

MAX_K = 1_000_000


@dataclass(frozen=True)
class Pattern:
    """The id at each position: that of letter number `source` of u plus `shift`, or only `shift` if `source` is -1."""

    source: np.ndarray
    shift: np.ndarray


class UniformLanguage(Language):
    """The strings to which a pattern maps all words over k letters.

    Args:
        symbols: the symbols of the strings.
        k: number of different letters; 0 if there is only one word of each length.
        per_letter, extra: a word of m letters is mapped to a string of per_letter * m + extra symbols.
        pattern: returns the `Pattern` for words of m letters.
        name: name of the language.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        k: int,
        per_letter: int,
        extra: int,
        pattern: Callable[[int], Pattern],
        name: str = "",
    ) -> None:
        super().__init__(symbols, name)
        self._k, self._per_letter, self._extra, self._pattern = k, per_letter, extra, pattern

    def valid_lengths(self, shortest: int, longest: int) -> np.ndarray:
        """Return the lengths from `shortest` to `longest` (inclusive) that have strings, in ascending order."""
        shortest, longest = check_integer(shortest, "shortest", 0), check_integer(longest, "longest", 0, MAX_LENGTH)
        lengths = np.arange(shortest, longest + 1)
        return lengths[(lengths >= self._extra) & ((lengths - self._extra) % self._per_letter == 0)]

    def sample_lengths(self, lengths: Sequence[int] | np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return one string of each given length, drawn independently and uniformly."""
        check_generator(generator)
        out = []
        for length in lengths:
            pattern = self._pattern(self._letters(int(length)))
            word = generator.integers(max(self._k, 1), size=self._letters(int(length)))
            out.append(_fill(pattern, word))
        return out

    def entropy(self, length: int, generator: np.random.Generator | None = None, n: int = 1000) -> Entropy:
        """Return the exact entropy of p(w | length); `generator` and `n` are ignored."""
        return Entropy(self._letters(length) * math.log(max(self._k, 1)))

    def _letters(self, length: int) -> int:
        check_integer(length, "length", 0, MAX_LENGTH)
        if length < self._extra or (length - self._extra) % self._per_letter:
            raise ValueError(f"length: {self} has no strings of length {length}")
        return (length - self._extra) // self._per_letter

    def _score(self, strings: list[np.ndarray]) -> np.ndarray:
        return np.array([self._log_prob_of_prefix(string, len(string)) for string in strings])

    def _prefix_table(self, prefixes: list[np.ndarray], longest: int) -> np.ndarray:
        table = np.full((len(prefixes), longest + 1), -np.inf)
        for row, prefix in zip(table, prefixes, strict=True):
            for length in self.valid_lengths(len(prefix), longest):
                row[length] = self._log_prob_of_prefix(prefix, int(length))
        return table

    def _continuations(self, strings: list[np.ndarray]) -> list[np.ndarray]:
        return [self._continuations_of(string) for string in strings]

    def _continuations_of(self, string: np.ndarray) -> np.ndarray:
        found = np.zeros((len(string) + 1, len(self.symbols) + 1), dtype=bool)
        # Longer words need not be tried: with this many letters, the string ends inside the first part of the pattern.
        for letters in range(len(string) + 2):
            pattern = self._pattern(letters)
            source, shift = pattern.source[: len(string) + 1], pattern.shift[: len(string) + 1]
            word = np.full(letters + 1, -1)  # letters seen so far; the last entry stays unknown
            for at in range(len(source)):
                expected = word[source[at]] if source[at] >= 0 else 0
                choices = range(self._k) if expected < 0 else [expected]
                found[at, [choice + shift[at] for choice in choices]] = True
                if at == len(string) or not 0 <= (letter := string[at] - shift[at]) < max(self._k, 1):
                    break
                if letter not in choices:
                    break
                word[source[at]] = letter if source[at] >= 0 else -1
            else:
                if len(pattern.source) <= len(string):
                    found[len(pattern.source), -1] = True
        return found

    def _log_prob_of_prefix(self, prefix: np.ndarray, length: int) -> float:
        """Return ln of the probability that a string of this length starts with the prefix: -ln k per seen letter."""
        if not len(self.valid_lengths(length, length)):
            return -math.inf
        letters = self._letters(length)
        pattern = self._pattern(letters)
        source, shift = pattern.source[: len(prefix)], pattern.shift[: len(prefix)]
        seen = np.unique(source[source >= 0])
        word = np.zeros(letters, dtype=np.int64)
        word[source[source >= 0]] = (prefix - shift)[source >= 0]
        if ((word < 0) | (word >= max(self._k, 1))).any():
            return -math.inf
        fits = np.array_equal(_fill(Pattern(source, shift), word), prefix)
        return -len(seen) * math.log(max(self._k, 1)) if fits else -math.inf


def _fill(pattern: Pattern, word: np.ndarray) -> np.ndarray:
    if not len(word):
        return pattern.shift.copy()
    return np.where(pattern.source >= 0, word[pattern.source], 0) + pattern.shift


def _join(*parts: tuple[np.ndarray, int]) -> Pattern:
    source = np.concatenate([part for part, _ in parts]).astype(np.int64)
    shift = np.concatenate([np.full(len(part), value) for part, value in parts]).astype(np.int64)
    return Pattern(source, shift)


def _fixed(n: int) -> np.ndarray:
    return np.full(n, -1)


def _alphabet(k: int) -> list[str]:
    return [str(v) for v in range(check_integer(k, "k", 1, MAX_K))]


def marked_copy(k: int = 2) -> UniformLanguage:
    """u # u, where u is a word over k symbols."""
    return UniformLanguage(
        [*_alphabet(k), "#"],
        k,
        2,
        1,
        lambda m: _join((np.arange(m), 0), (_fixed(1), k), (np.arange(m), 0)),
        "marked-copy",
    )


def unmarked_copy(k: int = 2) -> UniformLanguage:
    """u u, where u is a word over k symbols."""
    return UniformLanguage(
        _alphabet(k), k, 2, 0, lambda m: _join((np.arange(m), 0), (np.arange(m), 0)), "unmarked-copy"
    )


def marked_reverse_and_copy(k: int = 2) -> UniformLanguage:
    """u # reversed u # u, where u is a word over k symbols."""
    return UniformLanguage(
        [*_alphabet(k), "#"],
        k,
        3,
        2,
        lambda m: _join((np.arange(m), 0), (_fixed(1), k), (np.arange(m)[::-1], 0), (_fixed(1), k), (np.arange(m), 0)),
        "marked-reverse-and-copy",
    )


def unmarked_reverse_and_copy(k: int = 2) -> UniformLanguage:
    """u, reversed u, u, where u is a word over k symbols."""
    return UniformLanguage(
        _alphabet(k),
        k,
        3,
        0,
        lambda m: _join((np.arange(m), 0), (np.arange(m)[::-1], 0), (np.arange(m), 0)),
        "unmarked-reverse-and-copy",
    )


def count_and_copy(k: int = 2) -> UniformLanguage:
    """u #ⁿ u, where u is a word over k symbols and n is its length."""
    return UniformLanguage(
        [*_alphabet(k), "#"],
        k,
        3,
        0,
        lambda m: _join((np.arange(m), 0), (_fixed(m), k), (np.arange(m), 0)),
        "count-and-copy",
    )


def disjoint_copy(k: int = 2) -> UniformLanguage:
    """u u', where u is a word over k symbols and u' is u written in a second alphabet of k symbols."""
    return UniformLanguage(
        _alphabet(k) + [f"{v}'" for v in _alphabet(k)],
        k,
        2,
        0,
        lambda m: _join((np.arange(m), 0), (np.arange(m), k)),
        "disjoint-copy",
    )


def count_3() -> UniformLanguage:
    """aⁿ bⁿ cⁿ."""
    return UniformLanguage(
        ["a", "b", "c"], 0, 3, 0, lambda m: _join((_fixed(m), 0), (_fixed(m), 1), (_fixed(m), 2)), "count-3"
    )


COMPANIONS: dict[str, Callable[..., UniformLanguage]] = {
    "marked-copy": marked_copy,
    "unmarked-copy": unmarked_copy,
    "marked-reverse-and-copy": marked_reverse_and_copy,
    "unmarked-reverse-and-copy": unmarked_reverse_and_copy,
    "count-and-copy": count_and_copy,
    "disjoint-copy": disjoint_copy,
    "count-3": count_3,
}
