"""Grammars from text and from Python: the notation, and errors that name the line and the symbol."""

import math
from fractions import Fraction

import pytest

from stackattn.languages import PCFG, GrammarError, Rule


def test_text_and_python_rules_are_the_same_grammar():
    text = PCFG.from_text("S -> 'a' S 'a' [0.5] | [0.5]")
    python = PCFG([("S", ["a", "S", "a"], 0.5), ("S", [], 0.5)], terminals=["a"])
    assert text.rules == python.rules == (Rule("S", ("a", "S", "a"), Fraction(1, 2)), Rule("S", (), Fraction(1, 2)))
    assert text.start == python.start == "S"


def test_all_features_of_the_notation():
    grammar = PCFG.from_text(
        """
        # a comment, with 'quotes' -> and bars |
        %start Top
        NP/x -> "it's" [1/4] | '#' [2e-1] \\
             | '|' [.05] | Top NP/x   # without a weight: 1
        Top -> NP/x '->' | [3]
        """
    )
    assert grammar.start == "Top"
    assert grammar.symbols == ("it's", "#", "|", "->")
    weights = [Fraction(1, 4), Fraction(1, 5), Fraction(1, 20), Fraction(1)]
    assert [r.weight for r in grammar.rules] == [w / Fraction(3, 2) for w in weights] + [Fraction(1, 4), Fraction(3, 4)]


def test_weights_are_normalised_exactly():
    grammar = PCFG.from_text("S -> 'a' [1] | 'b' [1] | 'c' [1]")
    assert sum(rule.weight for rule in grammar.rules) == 1
    assert grammar.log_prob(["a", "b", "c"]) == pytest.approx([-math.log(3)] * 3, abs=1e-15)


def test_text_round_trip():
    grammar = PCFG.from_text("""%start T\nS -> 'a' S "it's" [1/3] | [2/3]\nT -> S S [0.1] | S [0.9]""")
    again = PCFG.from_text(grammar.to_text(), terminals=grammar.symbols)
    assert (again.rules, again.start, again.symbols) == (grammar.rules, grammar.start, grammar.symbols)


def test_strict_refuses_weights_that_are_not_normalised():
    PCFG.from_text("S -> 'a' [0.1] | 'b' [0.2] | 'c' [0.7]", strict=True)
    with pytest.raises(GrammarError, match=r"line 2: expected the weights of 'T' to sum to 1 \(strict\), got 0.9"):
        PCFG.from_text("S -> T [1]\nT -> 'a' [0.4] | 'b' [0.5]", strict=True)
    with pytest.raises(GrammarError, match=r"line 1: expected a weight for every rule .*, got none in a rule for 'S'"):
        PCFG.from_text("S -> 'a'", strict=True)
    with pytest.raises(GrammarError, match=r"rule 0: expected the weights of 'S' to sum to 1 .*, got 2"):
        PCFG([("S", ["a"], 2)], terminals="a", strict=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "grammar: expected at least one rule, found none"),
        ("# nothing\n\n", "grammar: expected at least one rule, found none"),
        ("S -> 'a'\nS -> X 'b'", "line 2: nonterminal 'X' has no rule"),
        ("S -> ε", "line 1: nonterminal 'ε' has no rule; .* alternative without symbols"),
        ("S - 'a'", "line 1: expected a nonterminal, .* or a weight such as [0.5], got '-' at column 3"),
        ("S 'a'", "line 1: expected '->' after 'S', got \"'a'\""),
        ("S", "line 1: expected '->' after 'S', got the end of the line"),
        ("'a' -> S", "line 1: expected a nonterminal at the start of a rule, got"),
        ("S -> 'a", "line 1: expected a closing quote after 'a at column 6, got the end of the line"),
        ("\nS -> 'a' [0.5", "line 2: expected ']' after [0.5 at column 10, got the end of the line"),
        ("S -> 'a' [x]", "line 1: the weight of a rule for 'S': expected a number, got 'x'"),
        ("S -> 'a' [1/0]", "line 1: the weight of a rule for 'S': expected a number, got '1/0'"),
        ("S -> 'a' [nan]", "line 1: the weight of a rule for 'S': expected a number, got 'nan'"),
        ("S -> 'a' [-1]", "line 1: the weight of a rule for 'S': expected at least 0, got -1"),
        ("S -> 'a' [0.5] 'b'", "line 1: expected '|' or the end of the line after a weight of 'S'"),
        ("S -> 'a' [0.5] [0.5]", "line 1: expected '|'"),
        ("S -> 'a' -> 'b'", "line 1: expected a symbol, '|' or a weight in a rule for 'S', got '->'"),
        ("S -> ''", "line 1: expected a terminal without spaces in a rule for 'S', got ''; "),
        ("S -> 'a b'", "line 1: expected a terminal without spaces in a rule for 'S', got 'a b'; "),
        ("S -> 'a' [0]\nT -> 'b'", "line 1: expected a positive weight in a rule for 'S', got only weights of 0"),
        ("S -> 'S'", "line 1: expected a terminal or a nonterminal, got 'S', which is used as both"),
        ("%start X\nS -> 'a'", "line 1: expected a start symbol that has a rule, got 'X'"),
        ("%begin S\nS -> 'a'", "line 1: expected '%start SYMBOL'"),
        ("S -> 'a' \\\n | X", "line 1: nonterminal 'X' has no rule"),
    ],
)
def test_errors_in_text_name_the_line_and_the_symbol(text, message):
    with pytest.raises(GrammarError, match=message.replace("|", r"\|").replace("[", r"\[")):
        PCFG.from_text(text)


def test_errors_in_a_file_name_the_file(tmp_path):
    path = tmp_path / "bad.grammar"
    path.write_text("S -> 'a'\nT -> Q\n")
    with pytest.raises(GrammarError, match=r"bad\.grammar, line 2: nonterminal 'Q'"):
        PCFG.from_file(path)
    path.write_text("S -> 'a'\n")
    assert PCFG.from_file(path).name == "bad"


@pytest.mark.parametrize(
    ("rules", "options", "error", "message"),
    [
        ([], {"terminals": "a"}, GrammarError, "at least one rule"),
        ([("S", ["a", "X"], 1)], {"terminals": "a"}, GrammarError, "rule 0: expected a terminal .*, got 'X'"),
        (
            [("S", ["a"], 1), ("a", [], 1)],
            {"terminals": "a"},
            GrammarError,
            "rule 1: expected a nonterminal .* terminal 'a'",
        ),
        ([("S", ["a"], math.inf)], {"terminals": "a"}, GrammarError, "rule 0: .*: expected a finite number, got inf"),
        ([("S", ["a"], None)], {"terminals": "a"}, GrammarError, "rule 0: .*: expected a number, got None"),
        ([("S", "a", 1)], {"terminals": "a"}, TypeError, "rule 0: expected a symbol and a sequence"),
        ([("S", 5, 1)], {"terminals": "a"}, TypeError, "rule 0: expected a symbol and a sequence"),
        ([("S", ["a"])], {"terminals": "a"}, TypeError, "rule 0: expected"),
        (
            [("S", ["a"], 1)],
            {"terminals": "aa"},
            ValueError,
            "terminals: expected distinct symbols, got 'a' more than once",
        ),
        (
            [("S", ["a"], 1)],
            {"terminals": ["a", "b c"]},
            ValueError,
            "terminals: expected non-empty text without spaces, got 'b c'",
        ),
        ([("S", ["a"], 1)], {"terminals": "a", "start": "T"}, GrammarError, "start: expected a symbol that has a rule"),
    ],
)
def test_errors_in_python_rules(rules, options, error, message):
    with pytest.raises(error, match=message):
        PCFG(rules, **options)


def test_symbols_that_cannot_be_written_as_text():
    with pytest.raises(GrammarError, match='nonterminal "S\'" cannot be written'):
        PCFG([("S'", ["a"], 1)], terminals="a").to_text()
    with pytest.raises(GrammarError, match="both kinds of quotes"):
        PCFG([("S", ["'\""], 1)], terminals=["'\""]).to_text()


def test_strings_as_text_and_as_ids():
    grammar = PCFG.from_text("S -> 'a' S 'b' | 'a' 'b'")
    assert grammar.encode("aabb").tolist() == grammar.encode("a a b b").tolist() == [0, 0, 1, 1]
    assert grammar.decode([0, 1]) == "a b"
    assert grammar.decode([0, 1], "") == "ab"
    with pytest.raises(ValueError, match="text: expected the symbols a b, got 'c' as symbol 2 of the string"):
        grammar.encode("acb")
    with pytest.raises(ValueError, match=r"string: expected ids from 0 to 1, got 2"):
        grammar.log_prob([0, 2])
    with pytest.raises(TypeError, match="1-D array of ids"):
        grammar.log_prob([[0.5, 1.0]])
    with pytest.raises(TypeError, match="strings: expected a string or a list of strings, got 3"):
        grammar.log_prob(3)
    assert grammar.log_prob("ab") == grammar.log_prob([0, 1]) == grammar.log_prob(["ab"])[0]
    assert grammar.log_prob("ac") == -math.inf
    words = PCFG.from_text("S -> 'the' 'cat'")
    assert words.log_prob(["the cat", "the", "thecat"]).tolist() == [0.0, -math.inf, -math.inf]
