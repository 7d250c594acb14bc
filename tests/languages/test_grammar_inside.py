"""Probabilities of strings, prefixes and lengths, and entropies, compared with enumeration and with closed forms."""

import itertools
import math

import numpy as np
import pytest
from grammar_oracles import NotConverged, any_grammars, derivations, entropy, finite_grammars, string_distribution
from hypothesis import HealthCheck, assume, given, settings

from stackattn.languages import PCFG, dyck, hardest_cfl, marked_reversal, padded_reversal
from stackattn.languages import inside as inside_module

RANDOM = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.filter_too_much]}
AMBIGUOUS = "S -> S S [0.3] | 'a' S 'b' [0.2] | A A [0.2] | 'a' [0.3]\nA -> 'a' [0.5] | 'b' [0.3] | [0.2]"


@settings(max_examples=150, **RANDOM)
@given(finite_grammars())
def test_parses_of_all_strings_sum_to_the_inside_value(grammar):
    for n in range(5):
        trees = {w: derivations(grammar, w) for w in itertools.product("ab", repeat=n)}
        sums = [float(sum(p for p, _ in found)) for found in trees.values()]
        np.testing.assert_allclose(np.exp(grammar.log_prob([" ".join(w) for w in trees])), sums, rtol=1e-12)
        everything = [float(p) for found in trees.values() for p, _ in found]
        assert math.exp(grammar.length_log_prob(n)) == pytest.approx(sum(everything), rel=1e-12)
        if everything:
            assert grammar.derivational_entropy(n) == pytest.approx(entropy(everything), abs=1e-11)


def test_ambiguity_is_summed():
    grammar = PCFG.from_text("S -> S S [0.5] | 'a' [0.5]")
    for n in range(1, 8):
        found = derivations(grammar, ("a",) * n)
        assert len(found) == math.comb(2 * n - 2, n - 1) // n
        assert grammar.log_prob("a" * n) == pytest.approx(math.log(sum(p for p, _ in found)), abs=1e-13)


def test_entropy_of_an_unambiguous_grammar_is_exact():
    grammar = dyck(mean_splits=1, mean_depth=3)
    for n in (2, 4, 6):
        p = np.exp(grammar.log_prob([" ".join(w) for w in itertools.product(grammar.symbols, repeat=n)]))
        found = grammar.entropy(n)
        assert found.exact
        assert found.standard_error == 0
        assert found.value == pytest.approx(entropy(p.tolist()), abs=1e-12)


def test_entropy_of_an_ambiguous_grammar_is_marked_as_an_estimate():
    grammar = PCFG.from_text(AMBIGUOUS)
    with pytest.raises(ValueError, match="generator"):
        grammar.entropy(6)
    for n in (3, 6):
        exact = entropy(np.exp(grammar.log_prob([" ".join(w) for w in itertools.product("ab", repeat=n)])).tolist())
        found = grammar.entropy(n, np.random.default_rng(n), n=4000)
        assert not found.exact
        assert "estimate" in str(found)
        assert 0 < found.standard_error < 0.05
        assert abs(found.value - exact) < 4 * found.standard_error
        assert grammar.derivational_entropy(n) > exact + 4 * found.standard_error


def test_estimated_entropy_has_no_error_without_ambiguity():
    grammar = PCFG.from_text("S -> 'a' S 'a' [0.4] | 'b' S 'b' [0.3] | [0.3]")
    found = grammar.entropy(8, np.random.default_rng(0), n=50)
    assert not found.exact
    assert found.standard_error < 1e-14
    assert found.value == pytest.approx(grammar.derivational_entropy(8), abs=1e-12)


def test_derivational_entropy_counts_empty_and_unary_steps():
    # The only string is 'a'. Derivations differ in the number of loops of S and of E: two geometric distributions.
    grammar = PCFG.from_text("S -> S [0.25] | 'a' E [0.75]\nE -> E [0.5] | [0.5]")

    def geometric(p):
        return -(p * math.log(p) + (1 - p) * math.log(1 - p)) / p

    assert grammar.derivational_entropy(1) == pytest.approx(geometric(0.75) + geometric(0.5), abs=1e-12)
    assert grammar.entropy(1, np.random.default_rng(0), n=2).value == pytest.approx(0.0, abs=1e-14)


@settings(max_examples=40, **RANDOM)
@given(any_grammars())
def test_prefixes_and_next_symbols_of_random_grammars(grammar):
    try:
        p = string_distribution(grammar, 3)
    except NotConverged:
        assume(False)
        return
    valid = grammar.valid_lengths(0, 3).tolist()
    assume(valid)
    mass = {n: sum(value for w, value in p.items() if len(w) == n) for n in valid}
    true = {w: value / mass[len(w)] / len(valid) for w, value in p.items() if len(w) in mass}

    def begins(prefix):
        return sum(value for w, value in true.items() if w[: len(prefix)] == prefix)

    prefixes = [w for n in range(5) for w in itertools.product("ab", repeat=n)]
    found = np.exp(grammar.prefix_log_prob([" ".join(w) for w in prefixes], (0, 3)))
    np.testing.assert_allclose(found, [begins(w) for w in prefixes], rtol=1e-8, atol=1e-12)
    possible = [w for w in prefixes if begins(w) > 1e-6]
    chances = grammar.next_symbol_distribution([" ".join(w) for w in possible], (0, 3))
    expected = [[begins((*w, "a")), begins((*w, "b")), true.get(w, 0.0)] / np.float64(begins(w)) for w in possible]
    np.testing.assert_allclose(chances, expected, rtol=1e-7, atol=1e-10)


def test_product_of_next_symbol_probabilities_is_the_probability_of_the_string():
    grammar = padded_reversal()
    lengths = (10, 14)
    (string,) = grammar.sample(13, generator=np.random.default_rng(3))
    chances = grammar.next_symbol_distribution([string[:n] for n in range(14)], lengths)
    chain = sum(math.log(chances[n, symbol]) for n, symbol in enumerate([*string, 2]))
    assert chain == pytest.approx(grammar.log_prob_given_length(string) - math.log(5), abs=1e-10)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, atol=1e-12)


def test_impossible_prefixes_and_lengths():
    grammar = dyck()
    assert grammar.prefix_log_prob(") (", (2, 10)) == -math.inf
    assert grammar.prefix_log_prob("(" * 6, (2, 10)) == -math.inf
    assert grammar.prefix_log_prob("", (2, 10)) == pytest.approx(0.0, abs=1e-14)
    with pytest.raises(ValueError, match=r"prefixes: expected a prefix .* for lengths 2 to 10, got '\)' at index 1"):
        grammar.next_symbol_distribution(["(", ")"], (2, 10))
    with pytest.raises(ValueError, match="lengths: dyck has no strings of length 3"):
        grammar.prefix_log_prob("(", (3, 3))
    with pytest.raises(TypeError, match="lengths: expected a pair"):
        grammar.prefix_log_prob("(", 4)
    with pytest.raises(ValueError, match="got 4 and 2"):
        grammar.prefix_log_prob("(", (4, 2))
    with pytest.raises(ValueError, match="no strings of length 3"):
        grammar.derivational_entropy(3)


def test_batches_of_mixed_lengths_equal_single_strings():
    grammar = hardest_cfl()
    generator = np.random.default_rng(0)
    lengths = generator.permutation(np.r_[np.arange(6, 40), np.arange(6, 30)])
    strings = grammar.sample_lengths(lengths, generator)
    together = grammar.log_prob([*strings, "", "( )", np.zeros(50, dtype=int)])
    alone = [grammar.log_prob(s) for s in strings]
    np.testing.assert_allclose(together[:-3], alone, rtol=1e-14)
    assert np.isneginf(together[-3:]).all()


def test_plain_and_logarithmic_charts_agree(monkeypatch):
    grammar = hardest_cfl()
    generator = np.random.default_rng(1)
    strings = [*grammar.sample(30, 10, generator=generator), *generator.integers(7, size=(5, 12))]
    plain = grammar.log_prob(strings)
    prefix = grammar.prefix_log_prob([s[:9] for s in strings], (10, 40))
    monkeypatch.setattr(inside_module, "_SMALLEST", 1.0)
    np.testing.assert_allclose(grammar.log_prob(strings), plain, rtol=1e-12)
    np.testing.assert_allclose(grammar.prefix_log_prob([s[:9] for s in strings], (10, 40)), prefix, rtol=1e-12)


def test_a_dense_grammar(monkeypatch):
    # With this many weights, the chart uses a dense matrix product.
    generator = np.random.default_rng(0)
    names, terminals = [f"N{i}" for i in range(20)], [f"t{i}" for i in range(8)]
    rules = [(name, [terminals[i % 8]], 3.0) for i, name in enumerate(names)]
    for i in range(160):
        rhs = generator.choice([*names, *terminals[:3]], size=i // 20 % 4).tolist()
        rules.append((names[i % 20], rhs, generator.random()))
    grammar = PCFG(rules, terminals=terminals)
    assert np.isfinite(grammar._closed.pair).sum() > max(1000, grammar._closed.pair.size / 4)
    strings = [*grammar.sample(7, 5, generator=generator), *generator.integers(8, size=(5, 4))]
    found = grammar.log_prob(strings)
    monkeypatch.setattr(inside_module, "_SMALLEST", 1.0)
    np.testing.assert_allclose(found, grammar.log_prob(strings), rtol=1e-12)


@pytest.mark.parametrize("half", [10, 200, 900])
def test_long_reversals_do_not_underflow(half):
    grammar = marked_reversal()
    word = np.random.default_rng(half).integers(2, size=half)
    string = np.concatenate([word, [2], word[::-1]])
    assert grammar.log_prob_given_length(string) == pytest.approx(-half * math.log(2), rel=1e-11)
    assert grammar.log_prob(string) == pytest.approx(half * math.log(30 / 61) - math.log(61), rel=1e-11)
    string[0] = 1 - string[0]
    assert grammar.log_prob(string) == -math.inf


@pytest.mark.parametrize("n", [30, 500])
def test_long_ambiguous_strings_do_not_underflow(n):
    grammar = PCFG.from_text("S -> S S [999/1000] | 'a' [1/1000]")
    catalan = math.lgamma(2 * n - 1) - math.lgamma(n) - math.lgamma(n + 1)
    expected = catalan + (n - 1) * math.log(0.999) + n * math.log(0.001)
    assert grammar.log_prob("a" * n) == pytest.approx(expected, rel=1e-12)
    assert grammar.length_log_prob(n) == pytest.approx(expected, rel=1e-12)
    assert -1e-8 < grammar.log_prob_given_length("a" * n) <= 0.0


def test_parts_of_very_different_probability_do_not_underflow():
    # On 100 a's, A is about 10^1970 times less probable than B, but the string needs both.
    grammar = PCFG.from_text("S -> A B\nA -> 'a' A [1e-20] | 'x' [1]\nB -> 'a' B [0.5] | 'y' [0.5]")
    string = ["a"] * 100 + ["x"] + ["a"] * 100 + ["y"]
    expected = -100 * math.log(1e20 + 1) + math.log(1 / (1 + 1e-20)) + 101 * math.log(0.5)
    assert grammar.log_prob(" ".join(string)) == pytest.approx(expected, rel=1e-12)
    assert grammar.prefix_log_prob(" ".join(string), (202, 202)) == grammar.log_prob_given_length(" ".join(string))


def test_a_batch_with_one_string_out_of_range():
    grammar = PCFG.from_text("S -> 'b' S [0.6] | 'd' S [0.35] | 'c' [0.05]")
    n = 1300
    found = grammar.log_prob(["b" * n + "c", "d" * n + "c", "b" * n + "d"])
    expected = [n * math.log(0.6) + math.log(0.05), n * math.log(0.35) + math.log(0.05), -math.inf]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_probabilities_given_the_length_are_at_most_one():
    grammar = PCFG.from_text("S -> S S [0.49] | 'a' [0.51]")
    assert (grammar.log_prob_given_length(["a" * n for n in range(1, 80)]) <= 0).all()


def test_empty_batches():
    assert dyck().log_prob([]).shape == (0,)
    assert dyck().log_prob_given_length([]).shape == (0,)
    assert dyck().next_symbol_distribution([], (2, 4)).shape == (0, 5)


def test_invalid_lengths():
    grammar = dyck()
    with pytest.raises(ValueError, match="lengths: expected integers"):
        grammar.length_log_prob([2, -1])
    with pytest.raises(TypeError, match=r"shortest: expected an integer, got 1\.5"):
        grammar.valid_lengths(1.5, 3)
    with pytest.raises(ValueError, match="longest: expected at least 0, got -1"):
        grammar.valid_lengths(0, -1)
