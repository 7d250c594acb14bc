"""The closure preserves the grammar's distribution: comparison with fixed-point iteration and with closed forms."""

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from grammar_oracles import NotConverged, any_grammars, string_distribution
from hypothesis import HealthCheck, assume, given, settings

from stackattn.languages import PCFG, decimals

RANDOM = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.filter_too_much]}


def check_against_iteration(grammar: PCFG, longest: int) -> None:
    try:
        expected = string_distribution(grammar, longest)
    except NotConverged:
        assume(False)
        return
    strings = [" ".join(w) for w in expected]
    found = np.exp(grammar.log_prob(strings))
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-9, atol=1e-13)
    assert (grammar.contains(strings) == (found > 0)).all()
    by_length = np.exp(grammar.length_log_prob(np.arange(longest + 1)))
    sums = [sum(p for w, p in expected.items() if len(w) == n) for n in range(longest + 1)]
    np.testing.assert_allclose(by_length, sums, rtol=1e-9, atol=1e-13)
    assert grammar.valid_lengths(0, longest).tolist() == [n for n in range(longest + 1) if by_length[n] > 0]


@settings(max_examples=150, **RANDOM)
@given(any_grammars())
def test_random_grammars(grammar):
    check_against_iteration(grammar, 3)


@pytest.mark.parametrize(
    "text",
    [
        "S -> S 'a' [0.3] | 'b' [0.7]",  # left recursion
        "S -> A [0.5] | 'a' [0.5]\nA -> S [0.9] | 'b' [0.1]",  # a unary cycle
        "S -> S [0.9] | 'a' S [0.05] | [0.05]",
        "S -> A B S [0.4] | 'a' [0.6]\nA -> [0.5] | 'b' [0.5]\nB -> A A [0.3] | [0.7]",  # many empty parts
        "S -> S S [0.7] | 'a' [0.2] | [0.1]",  # supercritical, with empty strings
        "S -> S S S [0.4] | 'a' [0.5] | 'b' [0.1]",
        "S -> A [0.5] | 'a' [0.5]\nA -> A 'a' [1]\nB -> 'b' [1]",  # A derives no string, B is unreachable
        "S -> A [0.5] | 'a' [0.5]\nA -> B [1]\nB -> A [1]",  # a cycle that never ends
        "S -> X 'a' X [1]\nX -> X X [0.3] | [0.6] | 'b' [0.1]",
    ],
)
def test_difficult_grammars(text):
    check_against_iteration(PCFG.from_text(text), 5)


def test_unary_cycles_are_summed_exactly():
    # Each round of the cycle has probability 1 - 1e-9: a truncated sum would need 10^10 terms.
    grammar = PCFG.from_text("S -> A [999999999/1000000000] | 'a' [1/1000000000]\nA -> S")
    assert grammar.log_prob("a") == pytest.approx(0.0, abs=1e-15)


def test_closure_in_decimals_and_in_floats(monkeypatch):
    text = "S -> A B S [0.4] | 'a' [0.5] | B [0.1]\nA -> [0.5] | 'b' [0.3] | S [0.2]\nB -> A A [0.3] | [0.7]"
    floats = PCFG.from_text(text)._closed
    monkeypatch.setattr(decimals, "_SMALLEST", Decimal(1))
    exact = PCFG.from_text(text)._closed
    for name in ("terminal", "pair", "terminal_cost", "pair_cost"):
        np.testing.assert_allclose(getattr(floats, name), getattr(exact, name), rtol=1e-14, atol=1e-15)


def test_supercritical_grammar_has_missing_mass():
    # S -> S S [2/3] | a [1/3]: derivations end with probability 1/2, p(aⁿ) = Catalan(n-1) (2/3)^(n-1) (1/3)^n.
    grammar = PCFG.from_text("S -> S S [2/3] | 'a' [1/3]")
    for n in range(1, 9):
        catalan = math.comb(2 * n - 2, n - 1) // n
        assert grammar.log_prob("a" * n) == pytest.approx(math.log(catalan * (2 / 3) ** (n - 1) / 3**n), abs=1e-13)
    assert np.exp(grammar.length_log_prob(np.arange(400))).sum() == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(("arity", "end"), [(2, "1/2"), (3, "2/3"), (4, "3/4")])
def test_critical_empty_strings_are_exact_to_machine_precision(arity, end):
    # E has one child on average: a double root, where floating-point arithmetic loses half of its digits.
    text = f"S -> 'a' E\nE -> {'E ' * arity}[1/{arity}] | [{end}]"
    grammar = PCFG.from_text(text)
    assert grammar.log_prob("a") == pytest.approx(0.0, abs=1e-15)
    assert grammar.derivational_entropy(1) == math.inf
    assert grammar.entropy(1, np.random.default_rng(0), n=2).value == 0.0


def test_nearly_critical_empty_strings():
    # With p = 1/2 + d, the probability of the empty string is (1 - 2d) / (1 + 2d); the other root is 1.
    d = 10**-10
    grammar = PCFG.from_text(f"S -> 'a' E\nE -> E E [{10**10 + 2}/{2 * 10**10}] | [{10**10 - 2}/{2 * 10**10}]")
    assert grammar.log_prob("a") == pytest.approx(math.log1p(-4 * d / (1 + 2 * d)), abs=2e-16)


def test_empty_string_and_empty_language():
    grammar = PCFG.from_text("S -> 'a' S [0.25] | [0.75]")
    assert grammar.log_prob("") == pytest.approx(math.log(0.75), abs=1e-15)
    assert grammar.log_prob_given_length(["", "a", "b"]).tolist() == [0.0, 0.0, -math.inf]
    nothing = PCFG.from_text("S -> S 'a' [1]")
    assert nothing.log_prob(["", "a", "aa"]).tolist() == [-math.inf] * 3
    assert nothing.valid_lengths(0, 10).tolist() == []
    assert nothing.best_parse("a") is None
    only_empty = PCFG.from_text("S -> A A\nA ->")
    assert only_empty.log_prob(["", "a"]).tolist() == [0.0, -math.inf]
    assert only_empty.valid_lengths(0, 3).tolist() == [0]


def test_rules_with_weight_zero():
    grammar = PCFG.from_text("S -> 'a' [1] | 'b' [0] | S S [0]")
    assert grammar.log_prob(["a", "b", "aa"]).tolist() == [0.0, -math.inf, -math.inf]
    assert grammar.symbols == ("a", "b")


def test_weights_below_the_range_of_floats():
    grammar = PCFG.from_text("S -> 'a' S [1e-400] | S 'c' S [1e-350] | 'b' [1]")
    assert grammar.log_prob("aab") == pytest.approx(-800 * math.log(10), rel=1e-14)
    assert grammar.log_prob("abcab") == pytest.approx(math.log(2) - 1150 * math.log(10), rel=1e-14)


def test_terminal_weights_below_the_range_of_floats():
    grammar = PCFG.from_text("S -> 'a' [1e-400] | 'b' S [1/2] | 'c' [1/2]")
    assert grammar.log_prob(["a", "ba"]) == pytest.approx([-400 * math.log(10), -400 * math.log(10) - math.log(2)])


def test_probabilities_of_all_strings_of_a_length_sum_to_that_of_the_length():
    grammar = PCFG.from_text(
        "S -> S S [0.4] | 'a' S 'b' [0.3] | A [0.2] | 'b' [0.1]\nA -> [0.2] | 'a' A A [0.3] | S [0.5]"
    )
    for n in range(7):
        strings = [" ".join(w) for w in itertools.product("ab", repeat=n)]
        assert np.exp(grammar.log_prob(strings)).sum() == pytest.approx(math.exp(grammar.length_log_prob(n)), rel=1e-12)
        assert np.exp(grammar.log_prob_given_length(strings)).sum() == pytest.approx(1.0, abs=1e-12)
