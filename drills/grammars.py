"""Random grammars and damaged texts: refused with an error that names the source or the cause, or accepted.

Accepted grammars are checked: the probabilities of all strings of a short length sum to the probability of the length,
samples are in the language, and the text of the grammar parses to the same rules.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stackattn.languages import PCFG, GrammarError, get_language

from .drill import Case, Drill, Failed, cpu_limit

CPU_SECONDS = 20.0  # a grammar that is refused for its cycles takes about ten
LONGEST = 3
MAX_STRINGS = 30  # per length
WEIGHTS = (
    "1", "0.5", "1/3", "2", "0", "1e-9", "1e9", "1e-300", "1e-3000", "3e3999", "0.1e-4000", "1e400", "-1", "nan", "inf",
    "1/0", "1e99999999", "", " ", "0x1", "½", "1_0", "1e", "." , "9" * 30, "1." + "3" * 60,
)  # fmt: skip
PIECES = (
    "->", "→", "|", "[", "]", "[1]", "'", '"', "'a'", '"b"', "''", "' '", "#", "%start", "%start S", "\\", "\n", " ",
    "\t", "S", "A", "ε", "epsilon", "[0.5]", "[1e-30000000]", "\0", "\x85", "\u2028", "😀", "'é'", "S -> S", "A -> A |",
    "\ufeff",
)  # fmt: skip
BUILT_IN = ("dyck", "marked-reversal", "padded-reversal", "unmarked-reversal", "hardest-cfl")


def random_grammar(rng: random.Random) -> str:
    """A grammar that is usually valid: few symbols, empty and unary rules, cycles, weights of any size."""
    names = "SABCDEFG"[: rng.choice((1, 1, 2, 2, 3, 4, 8))]
    terminals = [f"'{x}'" for x in "abc"[: rng.randint(1, 3)]]
    share = rng.random()
    weights = WEIGHTS[:12] if rng.random() < 0.5 else ("1", "0.5", "1/3", "2", "0.1")
    lines = []
    for name in names:
        alternatives = []
        for _ in range(rng.randint(1, 3)):
            size = rng.choice((0, 1, 1, 2, 2, 3, rng.randint(0, 12)))
            symbols = [rng.choice(names if rng.random() < share else terminals) for _ in range(size)]
            weight = f" [{rng.choice(weights)}]" if rng.random() < 0.7 else ""
            alternatives.append(" ".join(symbols) + weight)
        lines.append(f"{name} -> {' | '.join(alternatives)}")
    return "\n".join(lines)


def linked_grammar(rng: random.Random) -> str:
    """Many symbols that are linked in cycles and have empty rules."""
    count = rng.randint(10, 30)
    links = [rng.randint(1, count - 1) for _ in range(rng.randint(1, 3))]
    lines = []
    for i in range(count):
        symbols = " ".join(f"A{(i + link) % count}" for link in links)
        lines.append(f"A{i} -> {symbols} [{rng.choice(WEIGHTS[:9])}] | [{rng.choice(WEIGHTS[:9])}] | 'a' [1e-5]")
    return "\n".join(lines)


def damage(text: str, pieces: tuple[str, ...], rng: random.Random) -> str:
    """Apply a few random deletions, insertions, replacements, repetitions and reversals."""
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        j = min(j, i + 20)
        text = rng.choice(
            (
                text[:i] + text[j:],
                text[:i] + rng.choice(pieces) + text[i:],
                text[:i] + rng.choice(pieces) + text[j:],
                text[:j] + text[i:j] * rng.randint(1, 30) + text[j:],
                text[:i] + text[i:j][::-1] + text[j:],
            )
        )
    return text


def random_text(rng: random.Random, texts: list[str]) -> str:
    kind = rng.random()
    if kind < 0.003:
        return linked_grammar(rng)
    if kind < 0.5:
        return random_grammar(rng)
    pieces = (*PIECES, *(f"[{weight}]" for weight in WEIGHTS))
    return damage(random_grammar(rng) if rng.random() < 0.6 else rng.choice(texts), pieces, rng)


def check(grammar: PCFG, rng: random.Random) -> None:
    lengths = np.exp(grammar.length_log_prob(list(range(LONGEST + 1))))
    if not (lengths.min() >= 0 and lengths.sum() <= 1 + 1e-9):
        raise Failed(f"expected probabilities of lengths that sum to at most 1, found {lengths.tolist()}")
    for length in range(LONGEST + 1):
        if len(grammar.symbols) ** length > MAX_STRINGS:
            break
        strings = [
            np.array(ids, dtype=np.int64) for ids in itertools.product(range(len(grammar.symbols)), repeat=length)
        ]
        total = math.fsum(np.exp(grammar.log_prob(strings))) if strings else 0.0
        if not math.isclose(total, lengths[length], rel_tol=1e-9, abs_tol=1e-300):
            raise Failed(f"strings of length {length} have probability {total!r}, the length has {lengths[length]!r}")
    generator = np.random.default_rng(rng.randrange(2**32))
    valid = grammar.valid_lengths(0, LONGEST + 2).tolist()
    if valid:
        (string,) = grammar.sample(rng.choice(valid), generator=generator)
        if not grammar.contains(string):
            raise Failed(f"a sampled string is not in the language: {string.tolist()}")
        parse = grammar.best_parse(string)
        if parse is None or not parse.log_prob <= grammar.log_prob(string) + 1e-9:
            raise Failed(f"expected a best parse of {string.tolist()}, no more probable than the string, found {parse}")
    try:
        text = grammar.to_text()
    except GrammarError:  # the exact weights can be too long to write
        return
    if sorted(PCFG.from_text(text, terminals=grammar.symbols).rules) != sorted(grammar.rules):  # the text groups them
        raise Failed("the text of the grammar parses to different rules")


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    texts = []
    for name in BUILT_IN:
        language = get_language(name)
        assert isinstance(language, PCFG)
        texts.append(language.to_text())

    def case(rng: random.Random) -> str:
        text = random_text(rng, texts)
        try:
            with cpu_limit(CPU_SECONDS):
                try:
                    grammar = PCFG.from_text(text, strict=rng.random() < 0.1)
                except GrammarError as error:
                    if not str(error).startswith("grammar"):
                        raise Failed(f"the error does not name the source: {error}") from None
                    return "refused"
                except ValueError as error:
                    return _refusal(error)
                try:
                    check(grammar, rng)
                except GrammarError:
                    return "refused because of cycles"
        except Failed as error:
            raise Failed(str(error), text=text) from error
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", text=text) from error
        return "accepted and consistent"

    yield case


def _refusal(error: ValueError) -> str:
    if "symbols:" not in str(error):
        raise Failed(f"the error does not name its cause: {error}") from None
    return "refused"


DRILL = Drill("grammars", 600, 70_000, prepare)
