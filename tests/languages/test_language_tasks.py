"""The named languages: recorded numbers, the published variant, closed forms, and the companion languages."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from grammar_oracles import derivations

from stackattn.languages import (
    PCFG,
    TASKS,
    dyck,
    evaluation_set,
    get_language,
    hardest_cfl,
    marked_reversal,
    padded_reversal,
    unmarked_reversal,
)

RECORDED = json.loads((Path(__file__).parent / "cfl_log_probs.json").read_text())
PAPER = list(RECORDED)
COMPANIONS = [name for name in TASKS if name not in PAPER]
# Lower bounds, without a length term, of the first and last bin of the published test sets (100 strings each).
PUBLISHED_BINS = {
    "marked-reversal": ((41, 0.330070), (99, 0.339642)),
    "unmarked-reversal": ((40, 0.338121), (100, 0.343142)),
    "padded-reversal": ((40, 0.252263), (100, 0.273146)),
    "dyck": ((40, 0.630870), (100, 0.671823)),
    "hardest-cfl": ((40, 1.325997), (100, 1.422710)),
}
# Lower bounds, with a length term, of the whole published test sets.
PUBLISHED_TOTALS = {
    "marked-reversal": 0.384715,
    "unmarked-reversal": 0.390058,
    "padded-reversal": 0.318618,
    "dyck": 0.702951,
    "hardest-cfl": 1.451812,
}


@pytest.mark.parametrize("name", PAPER)
def test_recorded_numbers(name):
    recorded, grammar = RECORDED[name], get_language(name, variant="published")
    assert list(grammar.symbols) == recorded["symbols"]
    assert grammar.valid_lengths(1, 20).tolist() == recorded["valid_lengths_1_20"]
    assert len(grammar.valid_lengths(40, 80)) == recorded["num_valid_lengths_40_80"]
    found = grammar.log_prob_given_length([entry["string"] for entry in recorded["strings"]])
    expected = [entry["log_prob_given_length"] for entry in recorded["strings"]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "train", "test", "parity"),
    [
        ("marked-reversal", 20, 30, {1}),
        ("unmarked-reversal", 21, 31, {0}),
        ("padded-reversal", 41, 61, {0, 1}),
        ("dyck", 21, 31, {0}),
        ("hardest-cfl", 41, 61, {0, 1}),
    ],
)
def test_valid_lengths(name, train, test, parity):
    grammar = get_language(name, variant="published")
    assert len(grammar.valid_lengths(40, 80)) == train
    assert len(grammar.valid_lengths(40, 100)) == test
    assert {int(n) % 2 for n in grammar.valid_lengths(40, 100)} == parity


@pytest.mark.parametrize("name", [*PAPER[:4], pytest.param(PAPER[4], marks=pytest.mark.slow)])
def test_published_bounds_within_sampling_error(name):
    grammar = get_language(name, variant="published")
    generator = np.random.default_rng(0)
    for length, published in PUBLISHED_BINS[name]:
        n = 300
        scores = -grammar.log_prob_given_length(grammar.sample(length, n, generator=generator)) / (length + 1)
        # The published number is a mean over 100 strings, so it has a sampling error too.
        error = scores.std(ddof=1) * math.sqrt(1 / n + 1 / 100) + 1e-6
        assert abs(scores.mean() - published) < 3 * error
        entropy = grammar.entropy(length, generator, n=50)
        error = math.hypot(scores.std(ddof=1) / math.sqrt(n), entropy.standard_error / (length + 1)) + 1e-6
        assert abs(entropy.value / (length + 1) - scores.mean()) < 3 * error


@pytest.mark.parametrize("name", ["marked-reversal", "unmarked-reversal", "padded-reversal", "dyck"])
def test_bound_of_a_test_set_is_close_to_the_published_one(name):
    found = evaluation_set(get_language(name, variant="published"), seed=1, per_length=30).lower_bound()
    assert found == pytest.approx(PUBLISHED_TOTALS[name], abs=2e-6 if "marked" in name else 0.004)


@pytest.mark.parametrize("variant", ["plain", "published"])
@pytest.mark.parametrize(("make", "odd"), [(marked_reversal, 1), (unmarked_reversal, 0)])
def test_closed_forms_of_reversal(make, odd, variant):
    grammar = make(variant=variant)
    for length in (odd + 2, odd + 40, odd + 100):
        half = (length - odd) // 2
        assert grammar.entropy(length).value == pytest.approx(half * math.log(2), abs=1e-11)
        scores = grammar.log_prob_given_length(grammar.sample(length, 5, generator=np.random.default_rng(0)))
        np.testing.assert_allclose(scores, -half * math.log(2), atol=1e-10)
    plain = make(k=3, mean_length=2)
    word = "012" if odd == 0 else "01#"
    assert plain.log_prob(word[:-1] + word[-1] * (2 - odd) + word[-2::-1]) == pytest.approx(
        (3 - odd) * math.log(2 / 9) + math.log(1 / 3), abs=1e-12
    )


def test_published_variant_is_the_plain_grammar_without_unary_roots():
    # Dyck strings with one group are excluded; the others keep their relative probabilities at each length.
    plain, published = dyck(mean_depth=3), dyck(mean_depth=3, variant="published")
    assert published.valid_lengths(0, 5).tolist() == [4]
    assert plain.valid_lengths(0, 5).tolist() == [2, 4]
    strings = [" ".join(w) for w in itertools.product("()[]", repeat=6)]
    a, b = np.exp(plain.log_prob_given_length(strings)), np.exp(published.log_prob_given_length(strings))
    groups = np.array([_groups(w.split()) for w in strings])
    assert (b[groups < 2] == 0).all()
    assert (b[groups >= 2] > 0).all()
    ratio = b[groups >= 2] / a[groups >= 2]
    np.testing.assert_allclose(ratio, 1 / a[groups >= 2].sum(), rtol=1e-12)


def _groups(string: list[str]) -> int:
    """Return the number of top-level groups of a balanced string; 0 for other strings."""
    stack, count = [], 0
    for symbol in string:
        if symbol in "([":
            stack.append({"(": ")", "[": "]"}[symbol])
        elif not stack or stack.pop() != symbol:
            return 0
        elif not stack:
            count += 1
    return 0 if stack else count


def test_share_of_dyck_strings_that_the_published_variant_excludes():
    plain = dyck()
    for length, share in ((40, 0.80), (100, 0.77)):
        whole = math.exp(plain.length_log_prob(length))
        many = PCFG([("Root", ["S", "T"], 1), *plain.rules], terminals=plain.symbols)
        kept = math.exp(many.length_log_prob(length)) / 2 / whole  # S -> S T has probability 1/2
        assert 1 - kept == pytest.approx(share, abs=0.005)


def test_published_padded_reversal_has_a_nested_pair():
    published = padded_reversal(variant="published")
    assert not published.contains("0")
    assert published.contains(["00", "010", "0110"]).all()
    assert padded_reversal().contains(["", "0", "000"]).all()
    for n in (40, 70, 100):
        strings = ["0" * n]
        assert published.log_prob_given_length(strings)[0] < padded_reversal().log_prob_given_length(strings)[0]


def test_default_parameters_give_the_papers_rules():
    c = {r[:2]: r.weight for r in hardest_cfl().rules}
    assert c["Q", ("L", ";", "R")] == Fraction(1, 4)
    assert c["S", ("S", "Q", "T")] == Fraction(3, 5)
    assert c["T", ("(", "Q", "S", "Q", ")")] == Fraction(3, 8)
    assert c["V", ("W",)] == Fraction(1, 2)
    assert c["U", ("W", "U")] == c["Ls", (",", "V", "Ls")] == c["Rs", ("Rs", "V", ",")] == Fraction(1, 3)
    assert c["W", ("$",)] == Fraction(1, 5)
    c = {r[:2]: r.weight for r in dyck().rules}
    assert c["T", ("(", "S", ")")] == Fraction(39, 80)
    assert c["S", ("T",)] == Fraction(1, 2)
    c = {r[:2]: r.weight for r in padded_reversal().rules}
    assert c["S", ("1", "S", "1")] == Fraction(30, 61)
    assert c["S", ("T0",)] == Fraction(1, 122)
    assert c["T1", ("1", "T1")] == Fraction(30, 31)


def test_more_symbols():
    assert dyck(k=3).symbols == ("(", ")", "[", "]", "{", "}")
    assert dyck(k=6).symbols[8:] == ("(5", "5)", "(6", "6)")
    assert dyck(k=5).contains("( (5 5) )")
    assert hardest_cfl(k=1).symbols == ("(", ")", ",", ";", "$")
    assert marked_reversal(k=4).contains("3 0 # 0 3")
    assert dyck(mean_depth=1).valid_lengths(0, 6).tolist() == [2, 4, 6]


@pytest.mark.parametrize("make", [marked_reversal, unmarked_reversal, dyck])
def test_grammars_declared_unambiguous_are_unambiguous(make):
    grammar = make()
    assert grammar.unambiguous
    for n in range(6):
        for w in itertools.product(grammar.symbols, repeat=n):
            assert len(derivations(grammar, w)) <= 1


def test_padded_reversal_is_ambiguous():
    grammar = padded_reversal()
    assert not grammar.unambiguous
    assert len(derivations(grammar, tuple("01110"))) > 1


def test_errors_of_names_and_parameters():
    assert get_language("dyck", k=3).symbols == dyck(k=3).symbols
    with pytest.raises(
        ValueError, match=r"name: expected one of marked-reversal, .*, got 'dyk'; did you mean 'dyck'\?"
    ):
        get_language("dyk")
    with pytest.raises(
        ValueError, match=r"parameters of dyck: expected one of k, .*, got 'mean_deep'; did you mean 'mean_depth'\?"
    ):
        get_language("dyck", mean_deep=3)
    with pytest.raises(ValueError, match="variant: expected one of plain, published, got 'paper'"):
        dyck(variant="paper")
    with pytest.raises(ValueError, match=r"mean_depth: expected at least 1, got 0\.5"):
        dyck(mean_depth=0.5)
    with pytest.raises(ValueError, match="semicolon_probability: expected at most 1, got 2"):
        hardest_cfl(semicolon_probability=2)
    with pytest.raises(TypeError, match="mean_length: expected a finite number, got 'x'"):
        marked_reversal(mean_length="x")
    with pytest.raises(ValueError, match="k: expected at least 1, got 0"):
        dyck(k=0)
    with pytest.raises(TypeError, match=r"k: expected an integer, got 2\.0"):
        get_language("marked-copy", k=2.0)


COMPANION_STRINGS = {
    "marked-copy": lambda u: [*u, "#", *u],
    "unmarked-copy": lambda u: [*u, *u],
    "marked-reverse-and-copy": lambda u: [*u, "#", *u[::-1], "#", *u],
    "unmarked-reverse-and-copy": lambda u: [*u, *u[::-1], *u],
    "count-and-copy": lambda u: [*u, *"#" * len(u), *u],
    "disjoint-copy": lambda u: [*u, *(a + "'" for a in u)],
}


@pytest.mark.parametrize("name", COMPANIONS)
def test_companions_equal_enumeration(name):
    found = get_language(name)
    words = {n: list(itertools.product("01", repeat=n)) for n in range(5)}
    if name == "count-3":
        members = {3 * n: ["a " * n + "b " * n + "c " * n] for n in range(5)}
    else:
        members = {}
        for group in words.values():
            strings = [" ".join(COMPANION_STRINGS[name](list(u))) for u in group]
            members[len(strings[0].split())] = strings
    assert found.valid_lengths(0, max(members)).tolist() == sorted(members)
    for length, strings in members.items():
        assert found.entropy(length).exact
        assert found.entropy(length).value == pytest.approx(math.log(len(strings)), abs=1e-12)
        np.testing.assert_allclose(found.log_prob_given_length(strings), -math.log(len(strings)), atol=1e-12)
        drawn = found.sample(length, 200, generator=np.random.default_rng(0))
        assert {found.decode(w) for w in drawn} == {" ".join(w.split()) for w in strings}
        if length and length <= 6:
            everything = np.array(list(itertools.product(range(len(found.symbols)), repeat=length)))
            assert found.contains(everything).sum() == len(strings)
    # The probability of a prefix is a sum over all members in the range of lengths.
    lengths = [n for n in members if n <= 8]
    true = {tuple(w.split()): 1 / len(lengths) / len(members[n]) for n in lengths for w in members[n]}
    for prefix in {w[:k] for w in true for k in range(len(w) + 1)}:
        begins = sum(p for w, p in true.items() if w[: len(prefix)] == prefix)
        assert found.prefix_log_prob(" ".join(prefix), (0, 8)) == pytest.approx(math.log(begins), abs=1e-12)
        chances = found.next_symbol_distribution(" ".join(prefix), (0, 8))
        assert chances[-1] == pytest.approx(true.get(prefix, 0.0) / begins, abs=1e-12)
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)


def test_companions_and_impossible_strings():
    with pytest.raises(ValueError, match="marked-copy has no strings of length 4"):
        get_language("marked-copy").sample(4, generator=np.random.default_rng(0))
    assert (
        get_language("marked-copy").log_prob_given_length(["0 # 1", "0 0", "# # #", "0 x 0"]).tolist()
        == [-math.inf] * 4
    )
