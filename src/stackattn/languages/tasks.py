"""The languages of the experiments, as functions and by name.

Each context-free language is a grammar built from its parameters. A process that continues μ times on average continues
with probability μ / (μ + 1) at each step. `variant="published"` gives the distribution of the published experiments, in
which the root of a derivation is never expanded by an empty rule or by a unary rule with a nonterminal: Dyck strings
have at least two outermost pairs, and in unmarked and padded reversals w is not empty. A separate start symbol
implements this.
"""

import difflib
import inspect
import os
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..config import FieldError
from .companions import COMPANIONS
from .exact import NumberTooLongError, exact
from .grammar import PCFG
from .language import Language, check_integer

VARIANTS = ("plain", "published")
MAX_K = 2000
"""Maximum number of symbols or bracket types of a grammar, whose tables grow with the square of k."""
_BRACKETS = ("()", "[]", "{}", "<>")
_Rules = list[tuple[str, list[str], Fraction]]


def marked_reversal(k: int = 2, mean_length: float = 60, variant: str = "plain") -> PCFG:
    """w # reversed w, where w is a string over k symbols, of length `mean_length` on average."""
    symbols = _alphabet(k)
    go = _continue(mean_length, "mean_length")
    rules: _Rules = [("S", [a, "S", a], go / k) for a in symbols]
    rules.append(("S", ["#"], 1 - go))
    return _grammar("marked-reversal", rules, [*symbols, "#"], variant, unambiguous=True)


def unmarked_reversal(k: int = 2, mean_length: float = 60, variant: str = "plain") -> PCFG:
    """w followed by reversed w, where w is a string over k symbols, of length `mean_length` on average."""
    symbols = _alphabet(k)
    go = _continue(mean_length, "mean_length")
    rules: _Rules = [("S", [a, "S", a], go / k) for a in symbols]
    rules.append(("S", [], 1 - go))
    return _grammar("unmarked-reversal", rules, symbols, variant, unambiguous=True)


def padded_reversal(
    k: int = 2, mean_content_length: float = 60, mean_padding_length: float = 30, variant: str = "plain"
) -> PCFG:
    """w, any number of copies of one symbol, and reversed w, where w is a string over k symbols.

    Args:
        k: number of symbols.
        mean_content_length: mean length of w.
        mean_padding_length: mean number of copies.
        variant: `plain` or `published`.
    """
    symbols = _alphabet(k)
    go, pad = (
        _continue(mean_content_length, "mean_content_length"),
        _continue(mean_padding_length, "mean_padding_length"),
    )
    rules: _Rules = []
    for a in symbols:
        rules += [("S", [a, "S", a], go / k), ("S", [f"T{a}"], (1 - go) / k)]
    for a in symbols:
        rules += [(f"T{a}", [a, f"T{a}"], pad), (f"T{a}", [], 1 - pad)]
    return _grammar("padded-reversal", rules, symbols, variant)


def dyck(k: int = 2, mean_splits: float = 1, mean_depth: float = 40, variant: str = "plain") -> PCFG:
    """Balanced brackets of k types, at least one pair.

    Args:
        k: number of bracket types.
        mean_splits: mean number of pairs that follow the first one at the same level.
        mean_depth: mean depth, at least 1, if each level had only one pair: a pair contains others with probability
            1 - 1 / mean_depth.
        variant: `plain` or `published`.
    """
    brackets = _brackets(k)
    split, deepen = (
        _continue(mean_splits, "mean_splits"),
        _continue(_mean(mean_depth, "mean_depth", 1) - 1, "mean_depth"),
    )
    rules: _Rules = [("S", ["S", "T"], split), ("S", ["T"], 1 - split)]
    for left, right in brackets:
        rules += [("T", [left, "S", right], deepen / k), ("T", [left, right], (1 - deepen) / k)]
    return _grammar("dyck", rules, [b for pair in brackets for b in pair], variant, unambiguous=True)


def hardest_cfl(
    k: int = 2,
    mean_commas: float = 0.5,
    mean_short_filler: float = 0.5,
    mean_long_filler: float = 2,
    semicolon_probability: float = 0.25,
    mean_splits: float = 1.5,
    mean_depth: float = 3,
    variant: str = "plain",
) -> PCFG:
    """Greibach's hardest context-free language: a Dyck string hidden among decoys, over k bracket types.

    A decoy is any sequence of brackets and `$`. Each part of the Dyck string has a list of decoys, separated by commas,
    on either side: one short decoy, which may be empty, and any number of long ones, which are not empty.

    Args:
        k: number of bracket types.
        mean_commas: mean number of long decoys in such a list.
        mean_short_filler: mean length of a short decoy.
        mean_long_filler: mean length of a long decoy, at least 1.
        semicolon_probability: probability, at each possible place, that the Dyck string is interrupted by `;` and
            decoys.
        mean_splits: mean number of pairs that follow the first one at the same level.
        mean_depth: mean number of pairs nested in the outermost one, if each level had only one pair.
        variant: `plain` or `published`.
    """
    brackets = _brackets(k)
    symbols = [b for pair in brackets for b in pair]
    comma, short = _continue(mean_commas, "mean_commas"), _continue(mean_short_filler, "mean_short_filler")
    long = _continue(_mean(mean_long_filler, "mean_long_filler", 1) - 1, "mean_long_filler")
    semicolon = _probability(semicolon_probability, "semicolon_probability")
    split, deepen = _continue(mean_splits, "mean_splits"), _continue(mean_depth, "mean_depth")
    one = Fraction(1)
    rules: _Rules = [
        ("Start", ["R", "$", "Q", "S", "L", ";"], one),
        ("L", ["Ls", ",", "U"], one),
        ("Ls", [",", "V", "Ls"], comma),
        ("Ls", [], 1 - comma),
        ("R", ["U", ",", "Rs"], one),
        ("Rs", ["Rs", "V", ","], comma),
        ("Rs", [], 1 - comma),
        ("U", ["W", "U"], short),
        ("U", [], 1 - short),
        ("V", ["W", "V"], long),
        ("V", ["W"], 1 - long),
        *(("W", [a], one) for a in [*symbols, "$"]),
        ("Q", ["L", ";", "R"], semicolon),
        ("Q", [], 1 - semicolon),
        ("S", ["S", "Q", "T"], split),
        ("S", ["T"], 1 - split),
    ]
    for left, right in brackets:
        rules += [
            ("T", [left, "Q", "S", "Q", right], deepen / k),
            ("T", [left, "Q", right], (1 - deepen) / k),
        ]
    return _grammar("hardest-cfl", rules, [*symbols, ",", ";", "$"], variant)


TASKS: dict[str, Callable[..., Language]] = {
    "marked-reversal": marked_reversal,
    "unmarked-reversal": unmarked_reversal,
    "padded-reversal": padded_reversal,
    "dyck": dyck,
    "hardest-cfl": hardest_cfl,
    **COMPANIONS,
}
"""The function that makes each language, by name."""


def is_grammar_file(name: str) -> bool:
    """Return whether a name looks like the path of a grammar file; the file need not exist."""
    path = Path(name)
    # For names that are too long, os.path.exists returns False, but Path.exists raises an error.
    return name not in TASKS and (os.path.exists(name) or bool(path.suffix) or len(path.parts) > 1)


def get_language(name: str, **parameters: Any) -> Language:
    """Return a language by name.

    Args:
        name: one of `TASKS`.
        parameters: parameters of the language's function, such as `k` or, for the paper's five languages, `variant`.

    Raises:
        ValueError: there is no such language or parameter (the message suggests a similar name), or a value is out of
            range.
        TypeError: a value has the wrong type.

    Example::

        >>> get_language("dyck", k=1).symbols
        ('(', ')')
    """
    if name not in TASKS:
        close = difflib.get_close_matches(str(name), TASKS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise FieldError("name", f"expected one of {', '.join(TASKS)}, got {name!r}{hint}")
    known = inspect.signature(TASKS[name]).parameters
    for parameter in parameters:
        if parameter not in known:
            close = difflib.get_close_matches(parameter, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            expected = f"expected one of {', '.join(known)}" if known else "expected none"
            raise ValueError(f"parameters of {name}: {expected}, got {parameter!r}{hint}")
    made = TASKS[name](**parameters)
    made.recipe = {"name": name, "parameters": parameters}
    return made


def _grammar(name: str, rules: _Rules, symbols: Iterable[str], variant: str, unambiguous: bool = False) -> PCFG:
    if variant not in VARIANTS:
        raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {variant!r}")
    terminals = list(symbols)
    if variant == "published":
        start = rules[0][0]
        kept = [
            rule for rule in rules if rule[0] == start and (len(rule[1]) > 1 or any(a in terminals for a in rule[1]))
        ]
        rules = [("Root", rhs, weight) for _, rhs, weight in kept] + rules
    return PCFG(rules, terminals=terminals, unambiguous=unambiguous, name=name)


def _mean(value: Any, name: str, least: int = 0) -> Fraction:
    try:
        mean = exact(value)
    except NumberTooLongError as error:
        raise ValueError(f"{name}: {error}") from None
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise TypeError(f"{name}: expected a finite number, got {value!r}") from None
    if mean < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
    return mean


def _continue(mean: Any, name: str) -> Fraction:
    value = _mean(mean, name)
    return value / (value + 1)


def _probability(value: Any, name: str) -> Fraction:
    probability = _mean(value, name)
    if probability > 1:
        raise ValueError(f"{name}: expected at most 1, got {value}")
    return probability


def _alphabet(k: int) -> list[str]:
    return [str(v) for v in range(check_integer(k, "k", 1, MAX_K))]


def _brackets(k: int) -> list[tuple[str, str]]:
    k = check_integer(k, "k", 1, MAX_K)
    return [(b[0], b[1]) for b in _BRACKETS[:k]] + [(f"({i}", f"{i})") for i in range(len(_BRACKETS) + 1, k + 1)]
