"""Damaged files of runs, models, data sets and corpora: an error that names the file or folder, or the same results.

One file of a copy is damaged as a disk, a transfer or an editor might damage it; then everything is read and computed
again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stackattn.languages import Dataset, get_language, sample_batches
from stackattn.models import load
from stackattn.text.bitext_corpus import BitextCorpus, BitextOptions, prepare_bitext
from stackattn.text.monolingual_corpus import MonolingualCorpus
from stackattn.text.plain import PlainTextOptions, prepare_plain
from stackattn.training import RunError, TrainingRun, cfl, lm, run_experiment
from stackattn.training.translator import Translator

from . import samples
from .drill import Case, Drill, Failed

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Subject:
    """A folder to damage, and a function that computes everything that depends on its files."""

    name: str
    folder: Path
    compute: Callable[[Path], Any]


class _Stop(Exception):
    """Ends training after the second evaluation, as a kill would."""


class _StopAtSecond:
    def on_batch(self, *_: Any) -> None:
        pass

    def on_evaluation(self, values: dict[str, Any], best: bool) -> None:
        if values["evaluation"] == 2:
            raise _Stop


def _resume(folder: Path) -> Any:
    run_experiment(samples.cfl_config(), folder, resume=True)
    return samples.outcome(folder)


def _read_run(folder: Path) -> Any:
    run = TrainingRun(folder)
    tested = cfl.evaluate_run(folder, (4, 6), 2)
    return run.config(), run.metrics(), run.result(), run.test() or tested, tested  # no test.json: untested


def _read_model(folder: Path) -> Any:
    with torch.no_grad():
        return load(folder)(torch.tensor([[2, 0, 1, 1, 0]])).tolist()


def _read_data(folder: Path) -> Any:
    data = Dataset.load(folder / "strings")
    return (
        [x.tolist() for x in data.strings],
        data.log_probs.tolist(),
        data.lower_bound(),
        data.about,
        str(data.language),
    )


def _read_words(folder: Path) -> Any:
    corpus = MonolingualCorpus(folder)
    return corpus.fingerprint, corpus.tokenizer(), [corpus.read_split(split) for split in SPLITS]


def _read_bitext(folder: Path) -> Any:
    corpus = BitextCorpus(folder)
    tokenizer = corpus.tokenizer()
    sides = [corpus.read_split(split) for split in SPLITS]
    return corpus.fingerprint, tokenizer.source_types, tokenizer.target_types, sides


def make_subjects(folder: Path) -> list[Subject]:
    raw = samples.write_raw_texts(folder / "raw")
    prepare_plain({split: sides[0] for split, sides in raw.items()}, folder / "words", PlainTextOptions())
    prepare_bitext(raw, folder / "bitext", BitextOptions(pieces=24, threshold=1))
    generator = np.random.default_rng(0)
    (folder / "data").mkdir()
    sample_batches(get_language("dyck"), (2, 6), 4, 3, generator).save(folder / "data/strings")
    with suppress(_Stop):
        run_experiment(samples.cfl_config(), folder / "unfinished", callback=_StopAtSecond())
    run_experiment(samples.cfl_config(), folder / "finished")
    TrainingRun(folder / "finished").write_test(cfl.evaluate_run(folder / "finished", (4, 6), 2))
    run_experiment(samples.lm_config(folder / "words"), folder / "lm")
    run_experiment(samples.mt_config(folder / "bitext"), folder / "mt")
    return [
        Subject("unfinished run", folder / "unfinished", _resume),
        Subject("finished run", folder / "finished", _read_run),
        Subject("model", folder / "finished/best", _read_model),
        Subject("data set", folder / "data", _read_data),
        Subject("corpus", folder / "words", _read_words),
        Subject("bitext", folder / "bitext", _read_bitext),
        Subject("language model", folder / "lm", lm.evaluate_run),
        Subject("translator", folder / "mt", lambda run: Translator.load(run).translate(samples.WORDS)),
    ]


def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes | None]:
    """The kind of damage, and the damaged content; None if the file is deleted."""
    size = len(data)
    i = rng.randrange(size + 1)
    j = min(size, i + rng.choice((1, 2, 8, 64, 512)))
    k = rng.randrange(size + 1)
    noise = rng.randbytes(max(j - i, 1))
    digit = [n for n, byte in enumerate(data) if chr(byte).isdigit()]
    at = rng.choice(digit) if digit else 0
    kinds: dict[str, Callable[[], bytes | None]] = {
        "one bit": lambda: (
            data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :] if i < size else data[:-1]
        ),
        "one digit": lambda: data[:at] + bytes([48 + rng.randrange(10)]) + data[at + 1 :],
        "truncated": lambda: data[:i],
        "empty": lambda: b"",
        "deleted": lambda: None,
        "zeros": lambda: data[:i] + bytes(j - i) + data[j:],
        "noise": lambda: data[:i] + noise + data[j:],
        "removed": lambda: data[:i] + data[j:],
        "inserted": lambda: data[:i] + noise + data[i:],
        "repeated": lambda: data[:j] + data[i:j] + data[j:],
        "moved": lambda: (data[:i] + data[j:])[:k] + data[i:j] + (data[:i] + data[j:])[k:],
        "line removed": lambda: b"".join(
            x for n, x in enumerate(data.splitlines(True)) if n != i % (data.count(b"\n") + 1)
        ),
        "old beginning": lambda: data[: size // 2] + data[: size - size // 2],
    }
    kind = rng.choice(list(kinds))
    return kind, kinds[kind]()


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    torch.set_num_threads(1)
    (folder / "whole").mkdir()
    subjects = make_subjects(folder / "whole")
    expected = {}
    for subject in subjects:
        copy = shutil.copytree(subject.folder, folder / "copy")
        expected[subject.name] = subject.compute(copy)
        shutil.rmtree(copy)

    def case(rng: random.Random) -> str:
        subject = rng.choice(subjects)
        copy = shutil.copytree(subject.folder, folder / "copy")
        path = rng.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
        kind, data = mutate(path.read_bytes(), rng)
        details = {"subject": subject.name, "file": str(path.relative_to(copy)), "damage": kind}
        try:
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)
            found = subject.compute(copy)
        except (ValueError, OSError, RunError) as error:
            if path.name not in str(error) and str(copy) not in str(error):
                raise Failed(f"the error does not name the file or folder: {error}", **details) from error
            return "refused"
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", **details) from error
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        if not same(found, expected[subject.name]):
            raise Failed(f"different results without an error: {details}", found=found, **details)
        return "same results"

    yield case


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, where nan equals nan."""
    return one == other or repr(one) == repr(other)


DRILL = Drill("mutations", 80, 5_000, prepare)
