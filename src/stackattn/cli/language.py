"""Formal languages: list them, sample and score strings, show properties of a grammar, and write data sets.

LANGUAGE is a name from `stackattn language list` or the path of a grammar file in the notation
S -> 'a' S 'a' [0.5] | [0.5]. Strings are written one per line, with spaces between symbols; logarithms are natural.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import (
    add_actions,
    add_number,
    add_output_file,
    add_seed,
    at_least,
    naming,
    path,
    read_input,
    write_output,
)
from .progress import track

if TYPE_CHECKING:
    from ..languages import Language


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = add_actions(parser)
    summary = "list the built-in languages and their parameters"
    commands.add_parser("list", help=summary, description="List the built-in languages and their parameters.")

    summary = "draw strings of given lengths"
    sample = _add_action(
        commands,
        "sample",
        summary,
        "Draw strings of a language, one per line; lengths are drawn uniformly from the valid lengths in the range.",
    )
    _length_arguments(sample, (40, 80))
    add_number(sample, "-n", "number of strings", 10)
    add_seed(sample, "the strings")
    add_output_file(sample)

    summary = "print ln p of each string of a file"
    score = _add_action(
        commands,
        "score",
        summary,
        "Print the natural logarithm of the probability of each string, as tab-separated values.",
    )
    score.add_argument("file", metavar="FILE", help="strings, one per line; - reads standard input")
    add_output_file(score)

    summary = "show symbols, rules, valid lengths and entropies of a language"
    show = _add_action(commands, "show", summary, "Show the symbols, rules, valid lengths and entropies of a language.")
    _length_arguments(show, (40, 80))
    show.add_argument(
        "--all", action="store_true", help="print a line for every valid length (default: for three of them)"
    )
    add_number(show, "--samples", "number of sampled strings for each entropy estimate", 200)
    add_seed(show, "the entropy estimates")
    for name, metavar, shown in (
        ("--parse", "STRING", "draw the most probable parse tree of this string"),
        ("--after", "PREFIX", "show the true next-symbol distribution after this prefix"),
    ):
        show.add_argument(name, metavar=metavar, help=f"also {shown} (default: none)")

    summary = "write training, validation and test sets as text and JSON"
    write = _add_action(
        commands,
        "write",
        summary,
        "Write training, validation and test sets: the strings as text, and their probabilities as JSON.",
    )
    write.add_argument("out", type=path, metavar="FOLDER", help="folder for the files")
    write.add_argument(
        "--seed",
        type=at_least(0),
        required=True,
        metavar="N",
        help="seed of the training and validation sets (required)",
    )
    add_number(write, "--test-seed", "seed of the test set", 0, least=0)
    for name, pair, strings in (
        ("lengths", (40, 80), "training and validation strings"),
        ("test-lengths", (40, 100), "test strings"),
    ):
        write.add_argument(
            f"--{name}",
            type=int,
            nargs=2,
            default=pair,
            metavar=("SHORTEST", "LONGEST"),
            help=f"range of lengths of {strings}, in symbols (default: {pair[0]} {pair[1]})",
        )
    for name, number, least, meaning in (
        ("train-batches", 1000, 0, "number of training batches"),
        ("validation-batches", 100, 0, "number of validation batches"),
        ("batch-size", 10, 1, "strings per batch"),
        ("test-per-length", 100, 1, "test strings of each length"),
    ):
        add_number(write, f"--{name}", meaning, number, least=least)
    write.add_argument("--force", action="store_true", help="replace existing files (default: stop with an error)")


def run(args: argparse.Namespace) -> int:
    actions = {"list": _list, "sample": _sample, "score": _score, "show": _show, "write": _write}
    actions[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    import inspect

    from ..languages import TASKS

    for name, make in TASKS.items():
        about = (make.__doc__ or "").strip().splitlines()[0]
        parameters = ", ".join(f"{p.name}={p.default}" for p in inspect.signature(make).parameters.values())
        print(f"{name}\n    {about}\n    parameters: {parameters or 'none'}")


def _sample(args: argparse.Namespace) -> None:
    import numpy as np

    if args.n < 0:
        raise ValueError(f"-n: expected at least 0, got {args.n}")
    language = _language(args)
    lengths = _lengths(language, args)
    generator = np.random.default_rng(args.seed)
    strings = language.sample_lengths(generator.choice(lengths, args.n), generator)
    write_output(args.out, "".join(language.decode(string) + "\n" for string in strings))


def _score(args: argparse.Namespace) -> None:
    import numpy as np

    from ..languages import PCFG

    language = _language(args)
    strings = read_input(args.file)
    if not strings:
        raise ValueError(f"{args.file}: expected at least one string, found none")
    given: list[float] = []
    total: list[float] = []
    for at in track(range(0, len(strings), 500), "scoring"):
        part = strings[at : at + 500]
        scores = language.log_prob_given_length(part)
        given.extend(scores)
        if isinstance(language, PCFG):
            scores = scores + language.length_log_prob([len(language.split_symbols(w)) for w in part])
        total.extend(scores)
    # Languages without a grammar have no distribution of lengths, so ln p(w) is undefined.
    totals = [f"{a:.12g}" if isinstance(language, PCFG) else "-" for a in total]
    lines = ["ln p(w)\tln p(w | length)\tw\n"]
    lines += [f"{a}\t{b:.12g}\t{w}\n" for a, b, w in zip(totals, given, strings, strict=True)]
    write_output(args.out, "".join(lines))
    inside = np.isfinite(given)
    about = f"{int(inside.sum())} of {len(strings)} strings are in the language {language}"
    if inside.any():
        symbols = sum(len(language.encode(w)) + 1 for w, ok in zip(strings, inside, strict=True) if ok)
        bound = -float(np.array(given)[inside].sum()) / symbols
        about += f"; -ln p(w | length) is {bound:.6f} per symbol, counting the end of each string as a symbol"
    print(about, file=sys.stderr)
    for number, (w, ok) in enumerate(zip(strings, inside, strict=True), 1):
        if strange := () if ok else [x for x in language.split_symbols(w) if x not in language.symbols]:
            known = " ".join(language.symbols)
            print(f"line {number} has {strange[0]!r}, which is not one of the symbols {known}", file=sys.stderr)
            break  # one example is enough


def _show(args: argparse.Namespace) -> None:
    import numpy as np

    from ..languages import PCFG

    language = _language(args)
    grammar = language if isinstance(language, PCFG) else None
    shortest, longest = _pair(args)
    valid = _valid_lengths(language, args)
    print(f"language: {language}\nsymbols: {' '.join(language.symbols)}")
    if grammar is not None:
        print(f"start: {grammar.start}\nunambiguous: {'yes' if grammar.unambiguous else 'not known'}\nrules:")
        print("".join(f"    {line}\n" for line in grammar.to_text().splitlines()), end="")
    found = f": {_ranges(valid.tolist())}" if len(valid) else ""
    print(f"{len(valid)} valid length{'s' * (len(valid) != 1)} in {shortest}..{longest}{found}")
    chosen = list(valid) if args.all else [valid[i] for i in sorted({0, len(valid) // 2, len(valid) - 1}) if len(valid)]
    if chosen:
        print("length  ln p(length)  entropy of strings, nats (and per symbol, end counted)")
    generator = np.random.default_rng(args.seed)
    for length in track(chosen, "entropies"):
        with naming(n="--samples"):
            entropy = language.entropy(int(length), generator, n=args.samples)
        mass = f"{grammar.length_log_prob(int(length)):12.6f}" if grammar is not None else f"{'-':>12}"
        print(f"{length:6}  {mass}  {entropy} ({entropy.value / (length + 1):.6f})")
    if args.parse is not None:
        if grammar is None:
            raise ValueError(f"--parse: expected a language with a grammar, got {language}")
        with naming(string="--parse"):
            parse = grammar.best_parse(args.parse)
        if parse is None:
            raise ValueError(f"--parse: expected a string of the language {language}, got {args.parse!r}")
        print(f"best parse: ln p = {parse.log_prob:.6f}; all parses: ln p(w) = {grammar.log_prob(args.parse):.6f}")
        print(parse.tree.draw())
        print(parse.tree.bracket())
    if args.after is not None:
        _lengths(language, args)  # raises if there are none
        with naming(text="--after", prefixes="--after"):
            chances = language.next_symbol_distribution(language.encode(args.after), (shortest, longest))
        print(f"after {args.after!r}, lengths drawn uniformly from the valid lengths in {shortest}..{longest}:")
        for symbol, chance in zip([*language.symbols, "end"], chances, strict=True):
            print(f"    {symbol:>4}  {chance:.6f}")


def _write(args: argparse.Namespace) -> None:
    from ..files import locked
    from ..languages import evaluation_set, training_sets

    language = _language(args)
    names = ("train", "validation", "test")
    _check_absent(args.out, names, args.force)
    sizes = args.train_batches, args.validation_batches, args.batch_size
    with naming(lengths="--lengths"):
        sets = [*training_sets(language, args.seed, tuple(args.lengths), *sizes)]
    with naming(lengths="--test-lengths"):
        sets.append(evaluation_set(language, args.test_seed, tuple(args.test_lengths), args.test_per_length))
    for name, dataset in zip(names, sets, strict=True):
        dataset.score(lambda parts, name=name: track(parts, f"scoring {name}"))
    args.out.mkdir(parents=True, exist_ok=True)
    with locked(args.out, args.out / ".lock", temporary=True):
        _check_absent(args.out, names, args.force)  # again: another process may have written here since the first check
        for name, dataset in zip(names, sets, strict=True):
            dataset.save(args.out / name)
            bound = dataset.lower_bound() if len(dataset) else float("nan")
            about = (
                f"{len(dataset)} strings, lower bound {bound:.6f} nats per symbol, including the choice of the length"
            )
            print(f"{args.out / name}.txt: {about}")


def _check_absent(folder: Path, names: Sequence[str], force: bool) -> None:
    if folder.is_file():
        raise ValueError(f"FOLDER: expected a folder, got the file {folder}")
    present = [path for name in names for path in (folder / f"{name}.txt", folder / f"{name}.json") if path.exists()]
    if present and not force:
        raise ValueError(f"{present[0]} already exists; pass --force to replace it")


def _add_action(commands: Any, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Add an action that takes a language."""
    parser = commands.add_parser(name, help=summary, description=description)
    parser.add_argument("language", metavar="LANGUAGE", help="a language's name, or the path of a grammar file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter of the language, such as k=3 or variant=published; may be repeated",
    )
    parser.add_argument(
        "--strict", action="store_true", help="reject weights that do not sum to 1 (default: normalise them)"
    )
    return parser


def _length_arguments(parser: argparse.ArgumentParser, default: tuple[int, int]) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--length", type=int, help="a single length, in symbols (default: the range of --lengths)")
    group.add_argument(
        "--lengths",
        type=int,
        nargs=2,
        default=default,
        metavar=("SHORTEST", "LONGEST"),
        help=f"a range of lengths, both ends included (default: {default[0]} {default[1]})",
    )


def _language(args: argparse.Namespace) -> Language:
    from ..config import FieldError
    from ..languages import PCFG, get_language, is_grammar_file

    if is_grammar_file(args.language):
        if args.set:
            raise ValueError(f"--set: expected none, because a grammar file has no parameters, got {args.set[0]!r}")
        expected = "expected a grammar file or a name listed by `stackattn language list`"
        if not Path(args.language).exists():
            raise ValueError(f"{args.language}: no such file; {expected}")
        if Path(args.language).is_dir():
            raise ValueError(f"{args.language}: {expected}, found a folder")
        return PCFG.from_file(args.language, strict=args.strict)
    parameters = {}
    for item in args.set:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"--set: expected NAME=VALUE, got {item!r}")
        parameters[name] = _value(value)
    try:
        return get_language(args.language, **parameters)
    except FieldError as error:  # the name is unknown
        raise ValueError(f"LANGUAGE: expected a grammar file or {error.message.removeprefix('expected ')}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"--set: {error}") from None


def _value(text: str) -> Any:
    for kind in (int, float, Fraction):
        try:
            return kind(text)
        except (ValueError, ZeroDivisionError):
            continue
    return text


def _pair(args: argparse.Namespace) -> tuple[int, int]:
    if args.length is not None:
        if args.length < 0:
            raise ValueError(f"--length: expected at least 0, got {args.length}")
        return args.length, args.length
    shortest, longest = args.lengths
    if not 0 <= shortest <= longest:
        raise ValueError(f"--lengths: expected 0 <= SHORTEST <= LONGEST, got {shortest} {longest}")
    return shortest, longest


def _lengths(language: Language, args: argparse.Namespace) -> Any:
    from ..languages.language import describe_lengths

    valid = _valid_lengths(language, args)
    if not len(valid):
        raise ValueError(f"{_option(args)}: {language} has no strings of {describe_lengths(*_pair(args))}")
    return valid


def _valid_lengths(language: Language, args: argparse.Namespace) -> Any:
    with naming(longest=_option(args)):
        return language.valid_lengths(*_pair(args))


def _option(args: argparse.Namespace) -> str:
    return "--lengths" if args.length is None else "--length"


def _ranges(numbers: list[int]) -> str:
    """`41 43 .. 79` for an arithmetic sequence of more than four numbers, otherwise all numbers."""
    steps = {b - a for a, b in pairwise(numbers)}
    if len(numbers) > 4 and len(steps) == 1:
        return f"{numbers[0]} {numbers[1]} .. {numbers[-1]}"
    return " ".join(map(str, numbers))
