"""The symbols that can follow each prefix of a string, compared with prefix probabilities and with known answers."""

import itertools

import numpy as np
import pytest
from grammar_oracles import any_grammars
from hypothesis import given, settings

from stackattn.languages import PCFG, TASKS, get_language

LONG = 24  # long enough to complete every prefix of the random grammars


def by_prefix_probabilities(language, string, longest=LONG):
    """Return whether each symbol, and the end, can follow each prefix in strings of up to `longest` symbols."""
    size = len(language.symbols)
    rows = np.zeros((len(string) + 1, size + 1), dtype=bool)
    for t in range(len(string) + 1):
        longer = [np.append(string[:t], v) for v in range(size)]
        rows[t, :size] = ~np.isneginf(language._prefix_table(longer, longest)).all(axis=1)
        rows[t, size] = language.contains(string[:t])
    return rows


@settings(max_examples=60, deadline=None, derandomize=True)
@given(any_grammars())
def test_random_grammars(grammar):
    strings = [np.array(w, dtype=np.int64) for w in itertools.product(range(2), repeat=3)]
    for string, found in zip(strings, grammar.possible_next_symbols(strings), strict=True):
        np.testing.assert_array_equal(found, by_prefix_probabilities(grammar, string))


@pytest.mark.parametrize("name", list(TASKS))
def test_languages_of_the_experiments(name):
    language = get_language(name)
    generator = np.random.default_rng(0)
    (length,) = language.valid_lengths(6, 12)[:1]
    member = language.sample(int(length), 2, generator=generator)
    other = generator.integers(len(language.symbols), size=(6, 5))  # in most languages, most are not prefixes
    for string in [*member, *other]:
        found = language.possible_next_symbols(string)
        np.testing.assert_array_equal(found, by_prefix_probabilities(language, string, 3 * len(string) + 6))


@pytest.mark.parametrize("name", ["dyck", "hardest-cfl", "unmarked-reversal"])
def test_long_strings_of_several_lengths_at_once(name):
    """Three of the strings have more than 64 symbols, so a set of positions takes several words of 64 bits."""
    language = get_language(name)
    strings = language.sample_lengths(language.valid_lengths(60, 150)[[0, 5, 12, 20]], np.random.default_rng(1))
    together = language.possible_next_symbols(strings)
    for string, found in zip(strings, together, strict=True):
        np.testing.assert_array_equal(found, language.possible_next_symbols(string))
        assert found[np.arange(len(string)), string].all()
        assert found[-1, -1]


def test_dyck_closes_only_the_innermost_bracket():
    language = get_language("dyck")
    string = language.sample(130, generator=np.random.default_rng(2))[0]
    opening = {symbol: i for i, symbol in enumerate(language.symbols) if symbol in "(["}
    closing = {opening["("]: language.symbols.index(")"), opening["["]: language.symbols.index("]")}
    end = len(language.symbols)
    stack = []
    for t, (row, symbol) in enumerate(
        zip(language.possible_next_symbols(string), [*string.tolist(), None], strict=True)
    ):
        closed = {stack[-1]} if stack else {end} if t else set()  # the empty string is not in the language
        assert set(np.flatnonzero(row)) == {*opening.values(), *closed}
        if symbol in closing:
            stack.append(closing[symbol])
        elif symbol is not None:
            stack.pop()


def test_a_language_with_one_string():
    grammar = PCFG.from_text("S -> 'a' 'b'")
    assert grammar.possible_next_symbols("ab").tolist() == [
        [True, False, False],
        [False, True, False],
        [False] * 2 + [True],
    ]
    assert not grammar.possible_next_symbols("ba")[1:].any()


def test_empty_strings_and_unknown_symbols():
    grammar = PCFG.from_text("S -> 'a' S [0.5] | [0.5]")
    assert grammar.possible_next_symbols("").tolist() == [[True, True]]
    assert grammar.possible_next_symbols([]) == []
    assert grammar.possible_next_symbols("a?").tolist() == [[True, True], [True, True], [False, False]]
    never = PCFG.from_text("S -> 'a' S")
    assert not never.possible_next_symbols("aa").any()
