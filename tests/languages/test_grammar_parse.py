"""Best parses: compared with the maximum over all derivations, and drawn as text."""

import itertools
import math
import sys

import numpy as np
import pytest
from grammar_oracles import any_grammars, derivations, finite_grammars, nested
from hypothesis import HealthCheck, given, settings

from stackattn.languages import PCFG, Tree, hardest_cfl, marked_reversal

RANDOM = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.filter_too_much]}


def tree_log_prob(grammar: PCFG, tree: Tree) -> float:
    """Return the log of the product, over all nodes, of the weight of the heaviest rule that matches the node."""
    weights: dict[tuple, float] = {}
    for lhs, rhs, weight in grammar.rules:
        weights[lhs, rhs] = max(weights.get((lhs, rhs), 0.0), float(weight))
    total, todo = 0.0, [tree]
    while todo:
        node = todo.pop()
        rhs = tuple(child if isinstance(child, str) else child.label for child in node.children)
        total += math.log(weights[node.label, rhs])
        todo.extend(child for child in node.children if not isinstance(child, str))
    return total


@settings(max_examples=100, **RANDOM)
@given(finite_grammars())
def test_best_parse_is_the_most_probable_derivation(grammar):
    for n in range(4):
        for w in itertools.product("ab", repeat=n):
            found = derivations(grammar, w)
            parse = grammar.best_parse(" ".join(w))
            if not found:
                assert parse is None
                continue
            best = max(p for p, _ in found)
            assert parse.log_prob == pytest.approx(math.log(best), abs=1e-12)
            assert nested(parse.tree) in [tree for p, tree in found if p == best]


def test_trees_are_labelled_correctly_if_the_first_rule_of_a_symbol_has_weight_0():
    grammar = PCFG.from_text("S -> A B\nA -> 'a' [0]\nB -> 'b'\nA -> 'a' [1]")
    assert grammar.best_parse("a b").tree.bracket() == "(S (A a) (B b))"


@settings(max_examples=100, **RANDOM)
@given(any_grammars())
def test_best_parse_of_any_grammar_is_a_derivation(grammar):
    for n in range(4):
        for w in itertools.product("ab", repeat=n):
            parse = grammar.best_parse(" ".join(w))
            total = grammar.log_prob(" ".join(w))
            assert (parse is None) == (total == -math.inf)
            if parse is not None:
                assert parse.tree.leaves() == list(w)
                assert parse.tree.label == grammar.start
                assert parse.log_prob == pytest.approx(tree_log_prob(grammar, parse.tree), abs=1e-12)
                assert parse.log_prob <= total + 1e-9


def test_a_probable_chain_beats_an_improbable_rule():
    grammar = PCFG.from_text(
        "S -> 'a' [0.01] | A [0.99]\nA -> B [0.9] | 'b' [0.1]\nB -> 'a' E [1]\nE -> [0.6] | E E [0.4]"
    )
    parse = grammar.best_parse("a")
    assert parse.tree.bracket() == "(S (A (B a (E ))))"
    assert parse.log_prob == pytest.approx(math.log(0.99 * 0.9 * 0.6))


@pytest.mark.parametrize("order", [1, -1])
def test_the_heaviest_of_equal_rules_is_used(order):
    text = {
        "S": ["A A [0.8]", "A A [0.2]"][::order],
        "A": ["B [0.9]", "B [0.1]"][::order],
        "B": ["'a' E [0.7]", "'a' E [0.3]"][::order],
        "E": ["[0.5]", "[0.2]", "'b' [0.25]", "'b' [0.05]"][::order],
    }
    grammar = PCFG.from_text("\n".join(f"{lhs} -> {' | '.join(rhs)}" for lhs, rhs in text.items()))
    assert grammar.best_parse("aab").log_prob == pytest.approx(math.log(0.8 * 0.9**2 * 0.7**2 * 0.5 * 0.25), abs=1e-12)


def test_drawing_and_brackets():
    grammar = PCFG.from_text("S -> '(' S ')' S [0.5] | [0.5]")
    tree = grammar.best_parse("( ( ) ) ( )").tree
    assert tree.bracket() == "(S -LRB- (S -LRB- (S ) -RRB- (S )) -RRB- (S -LRB- (S ) -RRB- (S )))"
    assert grammar.best_parse("( )").tree.draw().splitlines() == [
        "S",
        "├── (",
        "├── S",
        "│   └── ε",
        "├── )",
        "└── S",
        "    └── ε",
    ]
    assert str(grammar.best_parse("")) == "S\n└── ε"
    assert tree.leaves() == list("(())()")


def test_strings_outside_the_language_have_no_parse():
    assert marked_reversal().best_parse("0 1") is None
    assert marked_reversal().best_parse("0 x 0") is None
    assert marked_reversal().best_parse("") is None


def test_trees_deeper_than_the_recursion_limit():
    depth = sys.getrecursionlimit() + 200
    tree = PCFG.from_text("S -> 'a' S [0.9] | 'b' [0.1]").best_parse("a" * (depth - 1) + "b").tree
    assert len(tree.leaves()) == depth
    assert tree.bracket().endswith("a (S b" + ")" * depth)
    assert len(tree.draw().splitlines()) == 2 * depth


def test_sampled_strings_of_the_hardest_language():
    grammar = hardest_cfl()
    for string in grammar.sample(40, 5, generator=np.random.default_rng(0)):
        parse = grammar.best_parse(string)
        assert " ".join(parse.tree.leaves()) == grammar.decode(string)
        assert parse.log_prob == pytest.approx(tree_log_prob(grammar, parse.tree), abs=1e-10)
        assert parse.log_prob <= grammar.log_prob(string) + 1e-9
