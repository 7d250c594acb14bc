"""The base class of languages: symbols and ids, prefix probabilities and the true next-symbol distribution.

A string is text (symbols separated by spaces, or not separated if all symbols are single characters) or a
one-dimensional array of ids; id v is `symbols[v]`. Methods that take strings return one result for one string, and an
array or a list of results for a list of strings. Lengths do not include an end-of-string symbol.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..config import FieldError
from .lengths import log_sum_exp

String: TypeAlias = str | np.ndarray | Sequence[int]

MAX_LENGTH = 10_000
"""Maximum length of a string: the chart of a string grows with the square of its length."""


@dataclass(frozen=True)
class Entropy:
    """The entropy of the strings of one length, in nats."""

    value: float
    standard_error: float = 0.0
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.value:.6f} (exact)" if self.exact else f"{self.value:.6f} ± {self.standard_error:.6f} (estimate)"


class Language(ABC):
    """A distribution over the strings of each length.

    Subclasses implement the six abstract methods; the other methods are derived from them.

    Args:
        symbols: the symbols in the order of their ids; they must be distinct, not empty and without spaces.
        name: name of the language.
    """

    def __init__(self, symbols: Iterable[str], name: str = "") -> None:
        self.symbols = tuple(symbols)
        self.name = name
        self.recipe: dict[str, Any] | None = None  # the arguments of `get_language`, stored with data sets
        self._ids = {symbol: v for v, symbol in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            twice = next(s for i, s in enumerate(self.symbols) if s in self.symbols[:i])
            raise FieldError("symbols", f"expected distinct symbols, got {twice!r} more than once")
        for symbol in self.symbols:
            if not isinstance(symbol, str) or not symbol or symbol != "".join(symbol.split()):
                raise FieldError("symbols", f"expected non-empty text without spaces, got {symbol!r}")
        self._single_characters = all(len(symbol) == 1 for symbol in self.symbols)

    @abstractmethod
    def valid_lengths(self, shortest: int, longest: int) -> np.ndarray:
        """Return the lengths from `shortest` to `longest` (inclusive) that have strings, in ascending order."""

    @abstractmethod
    def sample_lengths(self, lengths: Sequence[int] | np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return one string of each given length, drawn independently from p(w | length)."""

    @abstractmethod
    def entropy(self, length: int, generator: np.random.Generator | None = None, n: int = 1000) -> Entropy:
        """Return the entropy of p(w | length).

        Args:
            length: length of the strings.
            generator: source of randomness; needed only if the entropy has to be estimated from a sample.
            n: size of the sample.
        """

    @abstractmethod
    def _score(self, strings: list[np.ndarray]) -> np.ndarray:
        """Return ln p(w | length of w); the id -1 stands for an unknown symbol."""

    @abstractmethod
    def _prefix_table(self, prefixes: list[np.ndarray], longest: int) -> np.ndarray:
        """(N, longest+1): ln of the probability that a string of length n starts with the prefix, by n."""

    @abstractmethod
    def _continuations(self, strings: list[np.ndarray]) -> list[np.ndarray]:
        """(n+1, V+1) per string: whether each symbol, and the end, can follow the first 0, 1, ..., n symbols."""

    def sample(self, length: int, n: int = 1, *, generator: np.random.Generator) -> np.ndarray:
        """Return `n` strings of one length as ids, (n, length), drawn independently from p(w | length)."""
        n = check_integer(n, "n", 0)
        length = check_integer(length, "length", 0, MAX_LENGTH)
        strings = self.sample_lengths(np.full(n, length, dtype=np.int64), generator)
        return np.stack(strings) if strings else np.zeros((0, length), dtype=np.int64)

    def log_prob_given_length(self, strings: String | Iterable[String]) -> Any:
        """Return ln p(w | length of w); -inf for strings that are not in the language."""
        batch, one = self._as_strings(strings)
        return self._shape(self._score(batch), one)

    def contains(self, strings: String | Iterable[String]) -> Any:
        """Return whether each string is in the language."""
        batch, one = self._as_strings(strings)
        return self._shape(self._score(batch) > -np.inf, one)

    def prefix_log_prob(self, prefixes: String | Iterable[String], lengths: tuple[int, int]) -> Any:
        """Return ln of the probability that a string starts with the prefix.

        The strings are distributed as in the paper's data sets: the length is uniform over the valid lengths in the
        range `lengths` (inclusive), and the string follows p(w | length).
        """
        batch, one = self._as_strings(prefixes)
        valid = self._valid_range(lengths)
        return self._shape(self._prefix(batch, valid), one)

    def next_symbol_distribution(self, prefixes: String | Iterable[String], lengths: tuple[int, int]) -> np.ndarray:
        """Return the true distribution of the next symbol after each prefix; the last entry is the end of the string.

        Lengths are distributed as in `prefix_log_prob`.

        Returns:
            (V+1,) for one prefix, (N, V+1) for a list of prefixes.

        Raises:
            ValueError: a prefix has probability 0, or the language has no strings of these lengths.
        """
        batch, one = self._as_strings(prefixes)
        valid = self._valid_range(lengths)
        size = len(self.symbols)
        longer = [np.append(prefix, v) for prefix in batch for v in range(size)]
        table = np.full((len(batch), size + 1), -np.inf)
        table[:, :size] = self._prefix(longer, valid).reshape(len(batch), size)
        ended = np.flatnonzero(np.isin([len(prefix) for prefix in batch], valid))
        if len(ended):
            table[ended, size] = self._score([batch[i] for i in ended]) - np.log(len(valid))
        total = log_sum_exp(table, axis=1)
        if np.isneginf(total).any():
            which = int(np.flatnonzero(np.isneginf(total))[0])
            text = " ".join(self.symbols[v] if v >= 0 else "?" for v in batch[which])
            expected = f"a prefix with a probability above 0 for {describe_lengths(*lengths)}"
            raise FieldError("prefixes", f"expected {expected}, got {text!r}{'' if one else f' at index {which}'}")
        return self._shape(np.exp(table - total[:, None]), one)

    def possible_next_symbols(self, strings: String | Iterable[String]) -> Any:
        """Return which symbols can follow each prefix of a string in some string of the language.

        Strings of all lengths count, however small their probability is.

        Returns:
            (n+1, V+1) truth values for one string of n symbols, a list of such arrays for a list of strings. Row t
            belongs to the first t symbols; the last column is the end of the string. If no string of the language
            begins with a prefix, its row is False everywhere.

        Examples::

            >>> from stackattn.languages import get_language
            >>> language = get_language("marked-reversal")
            >>> language.symbols
            ('0', '1', '#')
            >>> language.possible_next_symbols("0#").astype(int)
            array([[1, 1, 1, 0],
                   [1, 1, 1, 0],
                   [1, 0, 0, 0]])
        """
        batch, one = self._as_strings(strings)
        found = self._continuations(batch)
        return found[0] if one else found

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a string; raise ValueError if it contains an unknown symbol."""
        words = self.split_symbols(text)
        for at, word in enumerate(words):
            if word not in self._ids:
                expected = f"expected the symbols {' '.join(self.symbols)}"
                raise FieldError("text", f"{expected}, got {word!r} as symbol {at + 1} of the string")
        return np.array([self._ids[word] for word in words], dtype=np.int64)

    def decode(self, ids: np.ndarray | Sequence[int], separator: str = " ") -> str:
        """Return the text of a string of ids."""
        return separator.join([self.symbols[v] for v in self._as_string(ids).tolist()])

    def split_symbols(self, text: str) -> list[str]:
        """Split a text into symbols: at white space, or into characters if it has none and all symbols are characters.

        The symbols need not belong to the language.
        """
        words = text.split()
        return list(words[0]) if self._single_characters and len(words) == 1 else words

    def _as_string(self, string: String) -> np.ndarray:
        if isinstance(string, str):
            return np.array([self._ids.get(word, -1) for word in self.split_symbols(string)], dtype=np.int64)
        ids = np.asarray(string)
        if ids.size == 0:
            return np.zeros(0, dtype=np.int64)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise TypeError(f"string: expected text or a 1-D array of ids, got shape {ids.shape}, type {ids.dtype}")
        if ids.min() < 0 or ids.max() >= len(self.symbols):
            bad = ids[(ids < 0) | (ids >= len(self.symbols))][0]
            raise ValueError(f"string: expected ids from 0 to {len(self.symbols) - 1}, got {bad}")
        return ids.astype(np.int64)

    def _as_strings(self, strings: String | Iterable[String]) -> tuple[list[np.ndarray], bool]:
        if isinstance(strings, str) or (isinstance(strings, np.ndarray) and strings.ndim == 1 and strings.dtype != "O"):
            return [self._as_string(strings)], True
        if not isinstance(strings, Iterable):
            raise TypeError(f"strings: expected a string or a list of strings, got {strings!r}")
        batch = list(strings)
        if batch and all(isinstance(v, int | np.integer) for v in batch):
            return [self._as_string(np.array(batch))], True
        return [self._as_string(string) for string in batch], False  # type: ignore[arg-type]

    @staticmethod
    def _shape(values: np.ndarray, one: bool) -> Any:
        return (values[0] if values.ndim > 1 else values[0].item()) if one else values

    def _valid_range(self, lengths: tuple[int, int]) -> np.ndarray:
        shortest, longest = check_range(lengths)
        valid = self.valid_lengths(shortest, longest)
        if not len(valid):
            raise FieldError("lengths", f"{self} has no strings of {describe_lengths(shortest, longest)}")
        return valid

    def _prefix(self, prefixes: list[np.ndarray], valid: np.ndarray) -> np.ndarray:
        table = self._prefix_table(prefixes, int(valid[-1]))
        return log_sum_exp(table[:, valid], axis=1) - np.log(len(valid))

    def __str__(self) -> str:
        return self.name or "the language"


def check_integer(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return an integer in the given range; raise TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name}: expected at most {most:,}, got {str(value)[:20]}")
    return int(value)


def check_range(lengths: Any) -> tuple[int, int]:
    """Return a pair (shortest, longest); raise TypeError or ValueError if it is invalid."""
    if not isinstance(lengths, tuple | list) or len(lengths) != 2:
        raise TypeError(f"lengths: expected a pair (shortest, longest), got {lengths!r}")
    shortest, longest = (check_integer(value, "lengths", 0, MAX_LENGTH) for value in lengths)
    if shortest > longest:
        raise ValueError(f"lengths: expected shortest <= longest, got {shortest} and {longest}")
    return shortest, longest


def describe_lengths(shortest: int, longest: int) -> str:
    """Return a range of lengths as text, for error messages."""
    return f"length {shortest}" if shortest == longest else f"lengths {shortest} to {longest}"


def check_generator(generator: Any) -> np.random.Generator:
    """Return a generator of random numbers; raise TypeError for anything else."""
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"generator: expected a numpy.random.Generator, such as default_rng(0), got {type(generator).__name__}"
        )
    return generator
