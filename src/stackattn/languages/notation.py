"""The text notation of grammars, similar to NLTK's. Errors name the line and the symbol.

    # balanced brackets; the first left-hand side is the start symbol, unless `%start` names another
    S -> S T [1/2] | T [1/2]
    T -> '(' S ')' [0.975] | '(' ')' [0.025]

Terminals are quoted and nonterminals are not. An alternative without symbols is the empty string. The default
weight is 1.
"""

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from .exact import MAX_DIGITS, NumberTooLongError, exact, fits

MAX_SYMBOLS = 500
"""Maximum number of symbols on the right-hand side of a rule."""


class GrammarError(ValueError):
    """An invalid grammar; the message names the place and the reason."""


class Rule(NamedTuple):
    """`lhs -> rhs` with a weight; `PCFG` divides the weights of each left-hand side by their sum."""

    lhs: str
    rhs: tuple[str, ...]
    weight: Fraction


class ParsedGrammar(NamedTuple):
    """The rules of a grammar, with weights as written, and its symbols."""

    rules: list[Rule]
    places: list[str]  # source and line of each rule, for error messages
    start: str
    terminals: list[str]  # in order of first appearance
    weighted: list[bool]  # whether the rule has an explicit weight


_TOKEN = re.compile(
    r"""\s+
      | (?P<comment>\#.*)
      | (?P<arrow>->|→)
      | (?P<bar>\|)
      | (?P<weight>\[[^\]]*\])
      | (?P<terminal>'[^']*'|"[^"]*")
      | (?P<name>[\w/][\w/^<>-]*)
    """,
    re.VERBOSE,
)
_NAME = re.compile(r"[\w/][\w/^<>-]*")
_EMPTY_NAMES = {"ε", "epsilon", "eps", "EPSILON", "EPS", "λ"}


def parse_grammar(text: str, source: str = "grammar") -> ParsedGrammar:
    """Parse a grammar in text notation; `source` is the name of the file, for error messages.

    Raises:
        GrammarError: the text is not a valid grammar; the message names the line.
    """
    rules: list[Rule] = []
    places: list[str] = []
    weighted: list[bool] = []
    terminals: dict[str, None] = {}
    start: str | None = None
    start_place = ""
    for number, line in _logical_lines(text):
        place = f"{source}, line {number}"
        if line.lstrip().startswith("%"):
            words = line.split("#")[0].split()
            if words[0] != "%start" or len(words) != 2:
                raise GrammarError(f"{place}: expected '%start SYMBOL', got {line.strip()!r}")
            start, start_place = words[1], place
            continue
        tokens = _tokens(line, place)
        if not tokens:
            continue
        if tokens[0][0] != "name":
            raise GrammarError(f"{place}: expected a nonterminal at the start of a rule, got {tokens[0][1]!r}")
        lhs = tokens[0][1]
        if len(tokens) < 2 or tokens[1][0] != "arrow":
            got = repr(tokens[1][1]) if len(tokens) > 1 else "the end of the line"
            raise GrammarError(f"{place}: expected '->' after {lhs!r}, got {got}")
        for rhs, weight in _alternatives(tokens[2:], lhs, place):
            check_length(rhs, place, lhs)
            for kind, symbol in rhs:
                if kind == "terminal":
                    terminals.setdefault(symbol)
            names = tuple(symbol if kind == "terminal" else f"\0{symbol}" for kind, symbol in rhs)
            rules.append(Rule(f"\0{lhs}", names, Fraction(1) if weight is None else weight))
            places.append(place)
            weighted.append(weight is not None)
    if not rules:
        raise GrammarError(f"{source}: expected at least one rule, found none")
    known = {rule.lhs for rule in rules}
    for rule, place in zip(rules, places, strict=True):
        for symbol in rule.rhs:
            if symbol.startswith("\0") and symbol not in known:
                name = symbol[1:]
                hint = "; for the empty string, write an alternative without symbols" if name in _EMPTY_NAMES else ""
                raise GrammarError(
                    f"{place}: nonterminal {name!r} has no rule; if it is a terminal, write it in quotes{hint}"
                )
    if start is None:
        start = rules[0].lhs[1:]
    elif f"\0{start}" not in known:
        raise GrammarError(f"{start_place}: expected a start symbol that has a rule, got {start!r}")
    clash = sorted(symbol for symbol in terminals if f"\0{symbol}" in known)
    if clash:
        place = next(p for r, p in zip(rules, places, strict=True) if clash[0] in r.rhs)
        raise GrammarError(f"{place}: expected a terminal or a nonterminal, got {clash[0]!r}, which is used as both")
    clean = [Rule(r.lhs[1:], tuple(s.removeprefix("\0") for s in r.rhs), r.weight) for r in rules]
    return ParsedGrammar(clean, places, start, list(terminals), weighted)


def format_grammar(rules: Iterable[Rule], start: str, terminals: Sequence[str]) -> str:
    """Return the text of a grammar with exact weights, from which `parse_grammar` returns the same rules.

    Raises:
        GrammarError: a symbol or a weight cannot be written as text.
    """
    known = set(terminals)
    alternatives: dict[str, list[str]] = {}
    for lhs, rhs, weight in rules:
        for symbol in (lhs, *rhs):
            if symbol in known:
                if "'" in symbol and '"' in symbol:
                    raise GrammarError(f"terminal {symbol!r} has both kinds of quotes and cannot be written as text")
            elif not _NAME.fullmatch(symbol):
                raise GrammarError(
                    f"nonterminal {symbol!r} cannot be written as text; use only letters, digits and _/^<>-"
                )
        if not fits(weight):
            raise GrammarError(f"a weight of {lhs!r} has more than {MAX_DIGITS:,} digits and cannot be written as text")
        words = [(f'"{s}"' if "'" in s else f"'{s}'") if s in known else s for s in rhs]
        alternatives.setdefault(lhs, []).append(" ".join([*words, f"[{weight}]"]))
    lines = [f"{lhs} -> {' | '.join(texts)}" for lhs, texts in alternatives.items()]
    first = next(iter(alternatives))
    return "\n".join(([] if first == start else [f"%start {start}"]) + lines) + "\n"


def check_weight(weight: object, place: str, lhs: str) -> Fraction:
    """Return the exact value of a weight; raise GrammarError if it is invalid."""
    try:
        value = exact(weight)
    except NumberTooLongError as error:
        raise GrammarError(f"{place}: the weight of a rule for {lhs!r}: {error}") from None
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        if isinstance(weight, float) and not math.isfinite(weight):
            raise GrammarError(
                f"{place}: the weight of a rule for {lhs!r}: expected a finite number, got {weight}"
            ) from None
        raise GrammarError(f"{place}: the weight of a rule for {lhs!r}: expected a number, got {weight!r}") from None
    if value < 0:
        raise GrammarError(f"{place}: the weight of a rule for {lhs!r}: expected at least 0, got {weight}")
    return value


def check_length(rhs: Sequence[object], place: str, lhs: str) -> None:
    """Raise GrammarError if a right-hand side has too many symbols."""
    if len(rhs) > MAX_SYMBOLS:
        raise GrammarError(
            f"{place}: expected at most {MAX_SYMBOLS:,} symbols in a rule for {lhs!r}, got {len(rhs):,}; split the rule"
        )


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield numbered lines; a line that ends in a backslash is joined with the next one."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        number, line = i + 1, lines[i]
        while line.rstrip().endswith("\\") and i + 1 < len(lines):
            i += 1
            line = line.rstrip()[:-1] + " " + lines[i]
        yield number, line
        i += 1


def _tokens(line: str, place: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            word, column = line[at:].split()[0], f"at column {at + 1}"
            if closing := {"'": "a closing quote", '"': "a closing quote", "[": "']'"}.get(line[at]):
                raise GrammarError(f"{place}: expected {closing} after {word} {column}, got the end of the line")
            expected = "a nonterminal, a terminal in quotes, '->', '|' or a weight such as [0.5]"
            raise GrammarError(f"{place}: expected {expected}, got {word!r} {column}")
        at = match.end()
        if match.lastgroup is not None and match.lastgroup != "comment":
            tokens.append((match.lastgroup, match.group()))
    return tokens


def _alternatives(
    tokens: list[tuple[str, str]], lhs: str, place: str
) -> list[tuple[list[tuple[str, str]], Fraction | None]]:
    found: list[tuple[list[tuple[str, str]], Fraction | None]] = []
    rhs: list[tuple[str, str]] = []
    weight: Fraction | None = None
    for kind, word in [*tokens, ("bar", "|")]:
        if kind == "bar":
            found.append((rhs, weight))
            rhs, weight = [], None
        elif weight is not None:
            raise GrammarError(f"{place}: expected '|' or the end of the line after a weight of {lhs!r}, got {word!r}")
        elif kind == "weight":
            weight = check_weight(word[1:-1], place, lhs)
        elif kind == "terminal":
            symbol = word[1:-1]
            if not symbol or symbol != "".join(symbol.split()):
                raise GrammarError(
                    f"{place}: expected a terminal without spaces in a rule for {lhs!r}, got {word}; "
                    "for the empty string, write an alternative without symbols"
                )
            rhs.append(("terminal", symbol))
        elif kind == "name":
            rhs.append(("name", word))
        else:
            raise GrammarError(f"{place}: expected a symbol, '|' or a weight in a rule for {lhs!r}, got {word!r}")
    return found
