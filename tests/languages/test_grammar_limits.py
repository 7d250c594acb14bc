"""Numbers and rules of excessive size are refused quickly, with an error that names them."""

import math
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from stackattn.languages import PCFG, GrammarError, closure, get_language, sample_batches
from stackattn.languages.exact import MAX_DIGITS, exact
from stackattn.languages.notation import MAX_SYMBOLS


@pytest.fixture(autouse=True)
def limit():
    """Each test takes at most five seconds of CPU time; without the limits, it would take minutes or use up memory."""
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


TOO_LONG = (
    r"line 1: the weight of a rule for 'S': expected a number of at most 4,000 digits and an exponent up to ±4,000, got"
)


@pytest.mark.parametrize(
    "weight",
    [
        "1e-30000000",
        "1e30000000",
        "1E+3_0000000",
        "0.5e-00000099999",
        "1e" + "9" * 5000,
        "9" * 100_000,
        "0." + "1" * 100_000,
        "1/" + "9" * 100_000,
        "9" * 4100,
    ],
)
def test_weights_with_too_many_digits(weight):
    with pytest.raises(GrammarError, match=TOO_LONG) as error:
        PCFG.from_text(f"S -> 'a' [{weight}] | 'b'")
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    "weight",
    [Decimal("1e-30000000"), Decimal("1e30000000"), 10**5000, Fraction(1, 10**5000)],
    ids=["tiny decimal", "huge decimal", "huge int", "tiny fraction"],
)
def test_python_weights_with_too_many_digits(weight):
    with pytest.raises(
        GrammarError, match="rule 0: the weight of a rule for 'S': expected a number of at most 4,000 digits"
    ):
        PCFG([("S", ["a"], weight)], terminals="a")


def test_weights_at_the_limit_are_exact():
    assert exact(f"1e-{MAX_DIGITS - 1}") == Fraction(1, 10 ** (MAX_DIGITS - 1))
    assert exact(" 1e0003 ") == 1000
    assert exact("9" * 3999) == 10**3999 - 1
    assert exact(5e-324) == Fraction(1, 2**1074)
    grammar = PCFG.from_text("S -> 'a' [1e-3000] | 'b'")
    assert grammar.log_prob("a") == pytest.approx(-3000 * 2.302585092994046)
    assert PCFG.from_text(grammar.to_text()).rules == grammar.rules


def test_sums_of_weights_with_too_many_digits():
    """Each denominator is short enough, but their least common multiple is not."""
    rules = " | ".join(f"'a' [1/{10**3900 + 2 * i + 1}]" for i in range(50))
    with pytest.raises(GrammarError, match="line 1: the weights of 'S' have too many digits to be added exactly"):
        PCFG.from_text(f"S -> {rules}")
    grammar = PCFG.from_text(f"S -> 'a' [1/{10**3900 + 1}] | 'a' [1/{10**3900 + 3}] | 'a' [1/7]")
    with pytest.raises(GrammarError, match="a weight of 'S' has more than 4,000 digits and cannot be written as text"):
        grammar.to_text()


@pytest.mark.parametrize("symbol", ["'a'", "T"])
def test_long_rules(symbol):
    """Rules of 500 symbols do not exceed Python's recursion limit; longer rules are refused."""
    text = f"S -> {f'{symbol} ' * MAX_SYMBOLS}\nT -> 'a'"
    assert PCFG.from_text(text).log_prob("a" * 3) == -math.inf
    with pytest.raises(GrammarError, match=r"line 1: expected at most 500 symbols in a rule for .S., got 501"):
        PCFG.from_text(f"S -> {f'{symbol} ' * (MAX_SYMBOLS + 1)}\nT -> 'a'")
    with pytest.raises(GrammarError, match="rule 0: expected at most 500 symbols"):
        PCFG([("S", ["a"] * 1_000_000, 1)], terminals="a")


def test_deep_derivations():
    """A chain of 300 nonterminals, and a tree that is deeper than Python's recursion limit."""
    chain = "\n".join(f"A{i} -> A{i + 1}" for i in range(300))
    assert PCFG.from_text(f"{chain}\nA300 -> 'a'").log_prob("a") == 0.0
    grammar = PCFG.from_text("S -> 'a' S | 'a'")
    parse = grammar.best_parse("a" * 1200)
    assert parse is not None
    assert len(parse.tree.leaves()) == parse.tree.bracket().count("(") == 1200


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dyck", {"mean_depth": "1e30000000"}, "mean_depth: expected a number of at most 4,000 digits"),
        ("marked-reversal", {"mean_length": "1e-30000000"}, "mean_length: expected a number of at most 4,000 digits"),
        ("dyck", {"k": 10**9}, "k: expected at most 2,000, got 1000000000"),
        ("padded-reversal", {"k": 10**9}, "k: expected at most 2,000, got 1000000000"),
        ("marked-copy", {"k": 10**9}, "k: expected at most 1,000,000, got 1000000000"),
    ],
)
def test_parameters_of_languages(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        get_language(name, **parameters)


@pytest.mark.parametrize("symbols", [100, 600])
def test_large_cycles_of_empty_and_unary_rules(symbols, monkeypatch):
    """A critical grammar needs more than 100 Newton steps, which must not take minutes."""
    linked = range(symbols)
    rules = (f"A{i} -> A{(i + 1) % symbols} A{(i + 7) % symbols} A{(i + 31) % symbols} [1] | [2]" for i in linked)
    if symbols == 100:
        assert PCFG.from_text("\n".join(rules)).length_log_prob(0) == pytest.approx(0, abs=1e-12)
    else:
        monkeypatch.setattr(closure, "MAX_OPERATIONS", 100_000)
        with pytest.raises(GrammarError, match="removing the empty and unary rules takes more than 100,000 operations"):
            PCFG.from_text("\n".join(rules)).length_log_prob(0)


@pytest.mark.parametrize("rules", ["S -> S [1] | 'a' [1e-3000]", "S -> S [1] | 'a' [1e-149]", "S -> S | [1e-3000]"])
def test_cycles_that_are_almost_never_left(rules):
    with pytest.raises(GrammarError, match="a cycle of empty and unary rules is left with a probability below 1e-100"):
        PCFG.from_text(rules).log_prob("a")


def test_cycles_that_are_rarely_left_are_exact():
    grammar = PCFG.from_text("S -> T [1] | 'a' [1e-90] | 'b' [1e-90]\nT -> S")
    assert grammar.log_prob("a") == pytest.approx(math.log(0.5), abs=1e-12)


@pytest.mark.parametrize("name", ["dyck", "count-3"])
def test_lengths_beyond_the_limit(name):
    language, generator = get_language(name), np.random.default_rng(0)
    for compute in (
        lambda: language.valid_lengths(0, 10**15),
        lambda: language.sample(10**12, generator=generator),
        lambda: language.sample_lengths([2**63], generator),
        lambda: language.entropy(10**12, generator),
        lambda: language.next_symbol_distribution("", (0, 10**12)),
        lambda: language.contains(np.zeros(20_000, dtype=np.int64)),
        lambda: sample_batches(language, (0, 10**12), 1, 1, generator),
    ):
        with pytest.raises(ValueError, match=r"(length.*|longest): expected at most 10,000, got "):
            compute()


def test_strict_sums_beyond_the_range_of_float():
    with pytest.raises(
        GrammarError, match=r"line 1: expected the weights of 'S' to sum to 1 \(strict\), got 1(\.0+)?e\+400"
    ):
        PCFG.from_text("S -> 'a' [1e400]", strict=True)


def test_parses_beyond_the_limit():
    with pytest.raises(ValueError, match="string: expected at most 2,000 symbols, got 20,000"):
        get_language("dyck").best_parse("(" * 20_000)
