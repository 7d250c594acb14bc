"""Probabilistic context-free grammars as distributions over strings."""

import math
import os
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..config import FieldError
from ..lines import read_text
from .closure import ClosedGrammar, close
from .continuations import continuations
from .exact import fits
from .inside import inside
from .language import MAX_LENGTH, Entropy, Language, String, check_generator, check_integer
from .lengths import LengthTables, expected_cost, length_tables
from .notation import GrammarError, Rule, check_length, check_weight, format_grammar, parse_grammar
from .parse import Parse, Viterbi, best_parse
from .sampling import sample_flat

_STRINGS_PER_ROUND = 20_000


class PCFG(Language):
    """A probabilistic context-free grammar.

    Args:
        rules: triples (left-hand side, right-hand side, weight); a right-hand side is a sequence of symbols. Weights
            are ints, floats, `Fraction` or `Decimal` objects, or text such as `1/3`, and are used exactly.
        terminals: the terminal symbols in the order of their ids. Every other symbol must have a rule.
        start: the start symbol; default: the first left-hand side.
        strict: raise GrammarError if the weights of a left-hand side do not sum to 1 (within 1e-9), instead of
            normalising them.
        unambiguous: declares that no string has two derivations, so that the entropy of strings is that of derivations.
        name: name of the grammar.

    Empty and unary rules, cycles of them, left recursion, useless symbols and infinite derivations are allowed and
    handled exactly: `log_prob` sums over all derivations of a string.

    Raises:
        GrammarError: a weight or a symbol is invalid, or there are no rules; the message names the rule.
        TypeError: a rule is not a triple, or its symbols are not text.

    Examples::

        >>> grammar = PCFG.from_text("S -> 'a' S 'a' [0.5] | 'b' S 'b' [0.25] | [0.25]")
        >>> grammar.log_prob("a b b a")
        -3.4657359027997265
        >>> grammar.decode(grammar.sample(4, generator=np.random.default_rng(0))[0])
        'a b b a'
    """

    def __init__(
        self,
        rules: Iterable[tuple[str, Sequence[str], Any]],
        *,
        terminals: Iterable[str],
        start: str | None = None,
        strict: bool = False,
        unambiguous: bool = False,
        name: str = "",
    ) -> None:
        checked: list[Rule] = []
        places: list[str] = []
        for number, rule in enumerate(rules):
            place = f"rule {number}"
            try:
                lhs, rhs, weight = rule
            except (TypeError, ValueError):
                raise TypeError(f"{place}: expected (left-hand side, right-hand side, weight), got {rule!r}") from None
            is_sequence = isinstance(rhs, Iterable) and not isinstance(rhs, str)
            if not isinstance(lhs, str) or not is_sequence or not all(isinstance(s, str) for s in rhs):
                raise TypeError(f"{place}: expected a symbol and a sequence of symbols, got {lhs!r} -> {rhs!r}")
            check_length(rhs, place, lhs)
            checked.append(Rule(lhs, tuple(rhs), check_weight(weight, place, lhs)))
            places.append(place)
        if not checked:
            raise GrammarError("rules: expected at least one rule, got none")
        self._set_up(checked, places, list(terminals), start or checked[0].lhs, strict, unambiguous, name)

    @classmethod
    def from_text(
        cls,
        text: str,
        *,
        terminals: Iterable[str] | None = None,
        strict: bool = False,
        unambiguous: bool = False,
        name: str = "",
        source: str = "grammar",
    ) -> "PCFG":
        """Parse a grammar in the notation `S -> 'a' S 'a' [0.5] | [0.5]`; see `stackattn.languages.notation`.

        The ids of terminals are in order of first appearance unless `terminals` lists them. `source` is the name of the
        file, for error messages; the other arguments are those of the class.

        Raises:
            GrammarError: the text is not a valid grammar; the message names the line.
        """
        parsed = parse_grammar(text, source)
        if strict and not all(parsed.weighted):
            number = parsed.weighted.index(False)
            raise GrammarError(
                f"{parsed.places[number]}: expected a weight for every rule (strict), got none in a rule for "
                f"{parsed.rules[number].lhs!r}"
            )
        grammar = cls.__new__(cls)
        symbols = parsed.terminals if terminals is None else list(terminals)
        grammar._set_up(parsed.rules, parsed.places, symbols, parsed.start, strict, unambiguous, name)
        return grammar

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> "PCFG":
        """Parse a grammar in a UTF-8 file, like `from_text`; errors name the file and the line."""
        options.setdefault("name", Path(path).stem)
        return cls.from_text(read_text(path), source=str(path), **options)

    def _set_up(
        self,
        rules: list[Rule],
        places: list[str],
        terminals: list[str],
        start: str,
        strict: bool,
        unambiguous: bool,
        name: str,
    ) -> None:
        try:
            Language.__init__(self, terminals, name)
        except FieldError as error:
            raise GrammarError(f"terminals: {error.message}") from None
        nonterminals = {rule.lhs for rule in rules}
        known = nonterminals | set(self.symbols)
        for rule, place in zip(rules, places, strict=True):
            if rule.lhs in self._ids:
                raise GrammarError(
                    f"{place}: expected a nonterminal as the left-hand side, got the terminal {rule.lhs!r}"
                )
            for symbol in rule.rhs:
                if symbol not in known:
                    raise GrammarError(f"{place}: expected a terminal or a symbol that has a rule, got {symbol!r}")
        if start not in nonterminals:
            raise GrammarError(f"start: expected a symbol that has a rule, got {start!r}")
        totals: dict[str, Fraction] = {}
        for rule, place in zip(rules, places, strict=True):
            totals[rule.lhs] = totals.get(rule.lhs, Fraction(0)) + rule.weight
            if not fits(totals[rule.lhs], factor=2):
                raise GrammarError(
                    f"{place}: the weights of {rule.lhs!r} have too many digits to be added exactly; use fewer digits"
                )
        first_places = {rule.lhs: place for rule, place in zip(reversed(rules), reversed(places), strict=True)}
        for lhs, total in totals.items():
            place = first_places[lhs]
            if total == 0:
                raise GrammarError(f"{place}: expected a positive weight in a rule for {lhs!r}, got only weights of 0")
            if strict and abs(total - 1) > Fraction(1, 10**9):
                shown = Decimal(total.numerator) / Decimal(total.denominator)  # may exceed the range of float
                raise GrammarError(f"{place}: expected the weights of {lhs!r} to sum to 1 (strict), got {shown:.12g}")
        self.start = start
        self.rules = tuple(Rule(r.lhs, r.rhs, r.weight / totals[r.lhs]) for r in rules)
        self.unambiguous = unambiguous
        self._tables: LengthTables | None = None

    @property
    def nonterminals(self) -> tuple[str, ...]:
        """The nonterminal symbols, in order of first appearance as a left-hand side."""
        return tuple(dict.fromkeys(rule.lhs for rule in self.rules))

    def to_text(self) -> str:
        """Return the grammar in text notation, with exact, normalised weights.

        Raises:
            GrammarError: a symbol or a weight cannot be written as text.
        """
        return format_grammar(self.rules, self.start, self.symbols)

    @cached_property
    def _closed(self) -> ClosedGrammar:
        return close([rule for rule in self.rules if rule.weight], self.start, self.symbols)

    @cached_property
    def _viterbi(self) -> Viterbi:
        return Viterbi(self)

    def _length_tables(self, longest: int) -> LengthTables:
        if self._tables is None or self._tables.longest < longest:
            self._tables = length_tables(self._closed, longest, self._tables)
        return self._tables

    def _length_log_probs(self, longest: int) -> np.ndarray:
        check_integer(longest, "length", 0, MAX_LENGTH)
        out = np.full(longest + 1, -np.inf)
        out[0] = self._closed.empty
        if self._closed.start >= 0:
            out[1:] = self._length_tables(longest).symbol[self._closed.start, 1 : longest + 1]
        return out

    def length_log_prob(self, lengths: int | Sequence[int] | np.ndarray) -> Any:
        """Return ln of the total probability of all strings of a length; an array for several lengths.

        The probabilities of all lengths sum to 1 minus the probability of infinite derivations.
        """
        asked = np.asarray(lengths)
        if asked.size and (not np.issubdtype(asked.dtype, np.integer) or asked.min() < 0):
            raise ValueError(f"lengths: expected integers of at least 0, got {lengths!r}")
        table = self._length_log_probs(int(asked.max(initial=0)))
        return table[asked.astype(np.int64)].item() if asked.ndim == 0 else table[asked.astype(np.int64)]

    def valid_lengths(self, shortest: int, longest: int) -> np.ndarray:
        """Return the lengths from `shortest` to `longest` (inclusive) that have strings, in ascending order."""
        shortest, longest = check_integer(shortest, "shortest", 0), check_integer(longest, "longest", 0, MAX_LENGTH)
        possible = ~np.isneginf(self._length_log_probs(longest))
        return np.flatnonzero(possible & (np.arange(longest + 1) >= shortest))

    def log_prob(self, strings: String | Iterable[String]) -> Any:
        """Return ln p(w), summed over all derivations; -inf for strings that are not in the language."""
        batch, one = self._as_strings(strings)
        return self._shape(self._inside(batch), one)

    def _inside(self, strings: list[np.ndarray]) -> np.ndarray:
        check_integer(max(map(len, strings), default=0), "length of a string", 0, MAX_LENGTH)
        out = inside(self._closed, strings)
        out[[len(s) == 0 for s in strings]] = self._closed.empty
        return out

    def _score(self, strings: list[np.ndarray]) -> np.ndarray:
        sizes = np.array([len(s) for s in strings], dtype=np.int64)
        table = self._length_log_probs(int(sizes.max(initial=0)))[sizes]
        score = self._inside(strings)
        possible = ~np.isneginf(score)
        score[possible] -= table[possible]
        return np.minimum(score, 0.0)

    def _prefix_table(self, prefixes: list[np.ndarray], longest: int) -> np.ndarray:
        out = inside(self._closed, prefixes, totals=longest)
        out[[len(p) == 0 for p in prefixes], 0] = self._closed.empty
        given = self._length_log_probs(longest)
        return out - np.where(np.isneginf(given), 0.0, given)

    def _continuations(self, strings: list[np.ndarray]) -> list[np.ndarray]:
        return continuations(self._closed, strings)

    def _sample_flat(
        self, lengths: Sequence[int] | np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked = np.asarray(lengths)
        check_generator(generator)
        if not asked.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        if asked.ndim != 1 or not np.issubdtype(asked.dtype, np.integer) or asked.min() < 0:
            raise ValueError(f"lengths: expected a list of integers of at least 0, got {lengths!r}")
        longest = check_integer(int(asked.max()), "lengths", 0, MAX_LENGTH)
        asked = asked.astype(np.int64)
        missing = np.isneginf(self._length_log_probs(longest)[asked])
        if missing.any():
            raise ValueError(f"lengths: {self} has no strings of length {asked[missing][0]}")
        flat: list[np.ndarray] = []
        log_probs = np.full(len(asked), self._closed.empty)
        filled = np.flatnonzero(asked)
        for at in range(0, len(filled), _STRINGS_PER_ROUND):
            some = filled[at : at + _STRINGS_PER_ROUND]
            ids, log_probs[some] = sample_flat(self._closed, self._length_tables(longest), asked[some], generator)
            flat.append(ids)
        return (np.concatenate(flat) if flat else np.zeros(0, dtype=np.int64)), asked, log_probs

    def sample_lengths(self, lengths: Sequence[int] | np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return one string of each given length, drawn independently from p(w | length)."""
        flat, sizes, _ = self._sample_flat(lengths, generator)
        return np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []

    def derivational_entropy(self, length: int) -> float:
        """Return the entropy, in nats, of the derivations of all strings of a length: an upper bound on `entropy`.

        It is infinite if the expected size of these derivations is infinite, as in some critical grammars.
        """
        length = self._check_possible(length)
        if length == 0:
            return max(self._closed.empty_cost + self._closed.empty, 0.0)
        return self._derivational_entropy(length, self._closed.terminal_cost, self._closed.pair_cost)

    def _derivational_entropy(self, length: int, terminal_cost: np.ndarray, pair_cost: np.ndarray) -> float:
        tables = self._length_tables(length)
        if tables.longest > length:
            tables = LengthTables(tables.symbol[:, : length + 1], tables.pair[:, : length + 1])
        cost = expected_cost(self._closed, tables, terminal_cost, pair_cost)[self._closed.start, length]
        return max(float(cost + tables.symbol[self._closed.start, length]), 0.0)

    def entropy(self, length: int, generator: np.random.Generator | None = None, n: int = 1000) -> Entropy:
        """Return the entropy of p(w | length).

        It is exact if the grammar is declared unambiguous. Otherwise it is estimated from `n` sampled derivations d of
        strings w,

            H(w) = H(d) - E[-ln p(d | w)],

        where the first term is exact, so that the standard error is due only to ambiguity.

        Raises:
            ValueError: there are no strings of this length, or the entropy has to be estimated and `generator` is None
                or `n` is less than 2.
        """
        length = self._check_possible(length)
        if self.unambiguous or length == 0:
            return Entropy(self.derivational_entropy(length) if length else 0.0)
        if generator is None:
            raise ValueError(
                "generator: expected a numpy.random.Generator, got None; the entropy of a grammar that may be "
                "ambiguous is estimated from a sample"
            )
        n = check_integer(n, "n", 2)
        closed = self._closed
        terminal_cost = np.where(np.isneginf(closed.terminal), 0.0, -closed.terminal)
        pair_cost = np.where(np.isneginf(closed.pair), 0.0, -closed.pair)
        flat, _, log_probs = self._sample_flat(np.full(n, length), generator)
        uncertainty = np.maximum(self._inside(list(flat.reshape(n, length))) - log_probs, 0.0)
        value = self._derivational_entropy(length, terminal_cost, pair_cost) - float(uncertainty.mean())
        return Entropy(max(value, 0.0), float(uncertainty.std(ddof=1) / math.sqrt(n)), exact=False)

    def best_parse(self, string: String) -> Parse | None:
        """Return the most probable derivation tree of a string, or None if the string is not in the language.

        Raises:
            ValueError: the string has more than 2,000 symbols.
        """
        return best_parse(self, self._as_string(string))

    def _check_possible(self, length: int) -> int:
        length = check_integer(length, "length", 0)
        if math.isinf(self.length_log_prob(length)):
            raise ValueError(f"length: {self} has no strings of length {length}")
        return length

    def __repr__(self) -> str:
        sizes = f"rules: {len(self.rules)}, terminals: {len(self.symbols)}"
        return f"PCFG({self.name!r}, {sizes}, start: {self.start!r})"
