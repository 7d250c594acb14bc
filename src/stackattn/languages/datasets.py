"""Data sets of strings: batches of strings of equal length, with lower bounds on the cross-entropy.

A data set is saved as two files: `NAME.txt` has one string per line, symbols separated by spaces; `NAME.json` has the
language, the batch sizes, ln p(w | length) of each string and the lower bounds.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..config import FieldError
from ..files import bytes_writer, json_text, write_together
from ..lines import decode_lines, read_json_object
from .grammar import PCFG
from .language import Language, check_generator, check_integer, check_range
from .tasks import TASKS, get_language

_FORMAT = "stackattn-strings-1"
_PART = 500


@dataclass(frozen=True)
class Dataset:
    """Batches of strings; all strings of a batch have the same length."""

    language: Language
    lengths: tuple[int, int]  # range (inclusive) of the sampled lengths
    batches: list[np.ndarray]  # each (batch size, length), ids
    about: dict[str, Any] = field(default_factory=dict)  # notes that are saved with the data, such as the seed

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    @property
    def strings(self) -> list[np.ndarray]:
        """All strings, in order."""
        return [string for batch in self.batches for string in batch]

    @cached_property
    def log_probs(self) -> np.ndarray:
        """ln p(w | length of w) of each string."""
        return self.score()

    def score(self, progress: Callable[[list], Iterable] = iter) -> np.ndarray:
        """Compute `log_probs` in parts; `progress` wraps the list of parts, for example to show a progress bar."""
        strings = self.strings
        parts = [strings[at : at + _PART] for at in range(0, len(strings), _PART)]
        scores = [self.language.log_prob_given_length(part) for part in progress(parts)]
        self.__dict__["log_probs"] = np.concatenate(scores) if scores else np.zeros(0)
        return self.log_probs

    @cached_property
    def num_valid_lengths(self) -> int:
        """Number of lengths in the range `lengths` that have strings."""
        return len(self.language.valid_lengths(*self.lengths))

    def lower_bound(self, length_term: bool = True) -> float:
        """Return the cross-entropy of the true distribution in nats per symbol; the end of a string counts as a symbol.

        With the length term (as for validation sets), the true distribution includes the choice of the length. Without
        it (as for results by length), the length is given.

        Raises:
            ValueError: the data set is empty.
        """
        if not len(self):
            raise ValueError(
                "expected a data set with at least one string to compute the lower bound, got an empty one"
            )
        cost = -math.fsum(self.log_probs) + (len(self) * math.log(self.num_valid_lengths) if length_term else 0.0)
        return cost / sum(batch.size + len(batch) for batch in self.batches)

    def lower_bounds_by_length(self, length_term: bool = False) -> dict[int, float]:
        """Return the `lower_bound` of the strings of each length."""
        sizes = np.array([len(string) for string in self.strings], dtype=np.int64)
        extra = math.log(self.num_valid_lengths) if length_term else 0.0
        return {
            int(size): (extra - math.fsum(self.log_probs[sizes == size]) / int((sizes == size).sum())) / (int(size) + 1)
            for size in np.unique(sizes)
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write PATH.txt and then PATH.json; each file appears complete or not at all.

        Raises:
            ValueError: the language is neither a grammar nor made by `get_language`.
            OSError: a file cannot be written; the message names it.
        """
        text_path, json_path = _paths(path)
        text_path.parent.mkdir(parents=True, exist_ok=True)
        recipe = self.language.recipe
        about: dict[str, Any] = {
            "format": _FORMAT,
            "language": {"name": str(self.language), "parameters": recipe["parameters"] if recipe else None},
            "symbols": list(self.language.symbols),
            "lengths": list(self.lengths),
            "num_valid_lengths": self.num_valid_lengths,
            "about": self.about,
            "batch_sizes": [len(batch) for batch in self.batches],
            "lower_bound": {
                "with_length_term": self.lower_bound(True) if len(self) else None,
                "without_length_term": self.lower_bound(False) if len(self) else None,
                "by_length_without_length_term": self.lower_bounds_by_length(),
            },
            "log_probs_given_length": self.log_probs.tolist(),
        }
        if isinstance(self.language, PCFG):
            about["language"]["grammar"] = self.language.to_text()
            about["language"]["unambiguous"] = self.language.unambiguous
        elif recipe is None:
            raise ValueError(f"language: expected a grammar or a language made by get_language, got {self.language}")
        text = "".join(self.language.decode(string) + "\n" for string in self.strings).encode()
        about["checksum"] = hashlib.sha256(text).hexdigest()
        plain = json.loads(json.dumps(about, default=_as_text))
        write_together({text_path: bytes_writer(text), json_path: bytes_writer(json_text(plain).encode())})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Dataset":
        """Read a data set written by `save`.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is invalid or has changed; the message names it.
        """
        text_path, json_path = _paths(path)
        about = read_json_object(json_path)
        if about.get("format") != _FORMAT:
            found = f"found {about.get('format')!r}"
            raise ValueError(f"{json_path}: format: expected {_FORMAT!r}, {found}; write the data set again")
        text = text_path.read_bytes()
        try:
            found = cls._from_parts(about, list(decode_lines(io.BytesIO(text), str(text_path))), text_path, json_path)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            what = f"missing key {error}" if isinstance(error, KeyError) else f"invalid value: {error}"
            raise ValueError(f"{json_path}: {what}") from None
        if about.get("checksum") not in (None, hashlib.sha256(text).hexdigest()):
            raise ValueError(
                f"{text_path}: its content does not match the checksum in {json_path.name}; write the data set again"
            )
        return found

    @classmethod
    def _from_parts(cls, about: dict[str, Any], lines: list[str], text_path: Path, json_path: Path) -> "Dataset":
        made = _make(about["language"], about["symbols"])
        sizes = about["batch_sizes"]
        if len(lines) != sum(sizes):
            raise ValueError(
                f"{text_path}: number of lines: expected {sum(sizes)}, as stated in {json_path.name}, got {len(lines)}"
            )
        batches = []
        at = 0
        for size in sizes:
            strings = []
            for number in range(at, at + size):
                try:
                    strings.append(made.encode(lines[number]))
                except FieldError as error:
                    raise ValueError(f"{text_path}, line {number + 1}: {error.message}") from None
                if len(strings[-1]) != len(strings[0]):
                    raise ValueError(
                        f"{text_path}, line {number + 1}: expected length {len(strings[0])}, as in the first string of "
                        f"the batch, got {len(strings[-1])}"
                    )
            batches.append(np.stack(strings))
            at += size
        found = cls(made, (about["lengths"][0], about["lengths"][1]), batches, about["about"])
        log_probs = np.array(about["log_probs_given_length"])
        if log_probs.shape != (len(found),):
            raise ValueError(f"{json_path}: log_probs_given_length: expected length {len(found)}, got {log_probs.size}")
        found.__dict__["log_probs"] = log_probs
        return found


def sample_batches(
    language: Language, lengths: tuple[int, int], num_batches: int, batch_size: int, generator: np.random.Generator
) -> Dataset:
    """Sample batches of strings of equal length.

    Args:
        language: the language.
        lengths: shortest and longest length; each batch draws its length uniformly from the valid ones in this range.
        num_batches: number of batches.
        batch_size: number of strings of each batch.
        generator: source of randomness.

    Raises:
        ValueError: the language has no strings of these lengths, or a number is out of range.
    """
    num_batches, batch_size = check_integer(num_batches, "num_batches", 0), check_integer(batch_size, "batch_size", 1)
    valid = language._valid_range(lengths)
    return _sample(language, lengths, check_generator(generator).choice(valid, num_batches), batch_size, generator)


def sample_every_length(
    language: Language, lengths: tuple[int, int], per_length: int, generator: np.random.Generator, step: int = 1
) -> Dataset:
    """Sample one batch of `per_length` strings for each valid length of the range, in ascending order.

    With `step`, one length out of every `step` is sampled: the first valid one of each `step` consecutive lengths. The
    other arguments and the errors are those of `sample_batches`.
    """
    valid = language._valid_range(lengths)
    _, first = np.unique((valid - lengths[0]) // check_integer(step, "step", 1), return_index=True)
    valid = valid[first]
    return _sample(language, lengths, valid, check_integer(per_length, "per_length", 1), check_generator(generator))


def training_sets(
    language: Language,
    seed: int,
    lengths: tuple[int, int] = (40, 80),
    train_batches: int = 1000,
    validation_batches: int = 100,
    batch_size: int = 10,
) -> tuple[Dataset, Dataset]:
    """Sample a training and a validation set with one generator, whose seed is `seed`.

    The other arguments are those of `sample_batches`, with a number of batches for each set; the defaults are the
    paper's.
    """
    generator = np.random.default_rng(seed)
    sets = [
        sample_batches(language, lengths, num_batches, batch_size, generator)
        for num_batches in (train_batches, validation_batches)
    ]
    for found, name in zip(sets, ("training", "validation"), strict=True):
        found.about.update(set=name, seed=seed)
    return sets[0], sets[1]


def evaluation_set(
    language: Language, seed: int = 0, lengths: tuple[int, int] = (40, 100), per_length: int = 100, step: int = 1
) -> Dataset:
    """Sample a test set with a generator whose seed is `seed`; the defaults are the paper's.

    The other arguments are those of `sample_every_length`.
    """
    found = sample_every_length(language, lengths, per_length, np.random.default_rng(seed), step)
    found.about.update(set="test", seed=seed)
    return found


def _sample(
    language: Language,
    lengths: tuple[int, int],
    batch_lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    generator: np.random.Generator,
) -> Dataset:
    strings = language.sample_lengths(np.repeat(np.asarray(batch_lengths, dtype=np.int64), batch_size), generator)
    batches = [np.stack(strings[at : at + batch_size]) for at in range(0, len(strings), batch_size)]
    return Dataset(language, check_range(lengths), batches)


def _make(about: dict[str, Any], symbols: list[str]) -> Language:
    if about["parameters"] is not None and about["name"] in TASKS:
        return get_language(about["name"], **about["parameters"])
    return PCFG.from_text(
        about["grammar"], terminals=symbols, name=about["name"], unambiguous=about.get("unambiguous", False)
    )


def _paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    base = Path(path)
    return base.with_name(base.name + ".txt"), base.with_name(base.name + ".json")


def _as_text(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"expected a value that can be saved as JSON, got {value!r}")
