"""Several processes that write to one folder at the same time: it contains the files of one process, never a mixture.

The processes start together. Each one succeeds, or fails with an error that names the folder; afterwards the folder
loads and is complete.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stackattn.cli import main
from stackattn.languages import Dataset
from stackattn.models import load, save
from stackattn.text.bitext_corpus import BitextCorpus
from stackattn.text.corpus import SPLITS, Corpus
from stackattn.text.monolingual_corpus import MonolingualCorpus
from stackattn.training import RunError, run_experiment

from . import samples
from .drill import Case, Drill, Failed

LIMIT = 120.0  # seconds to wait for the result of each process


def _prepare(folder: Path, raw: Path, variant: int) -> str:
    texts = [str(raw / f"{split}.{'target' if variant else 'source'}") for split in SPLITS]
    return _command(["lm", "prepare", *texts, str(folder / "out"), "--min-count", str(1 + variant)])


def _prepare_pairs(folder: Path, raw: Path, variant: int) -> str:
    sides = ("target", "source") if variant else ("source", "target")
    splits = [(f"--{split}", *(str(raw / f"{split}.{side}") for side in sides)) for split in SPLITS]
    words = [word for split in splits for word in split]
    return _command(["mt", "prepare", *words, "--out", str(folder / "out"), "--pieces", "20", "--threshold", "1"])


def _analyse(folder: Path, raw: Path, variant: int) -> str:
    text = "0110" if variant else "01"
    return _command(["analyse", str(raw / "run"), "--string", text, "--out", str(folder / "out")])


def _write(folder: Path, raw: Path, variant: int) -> str:
    words = ["language", "write", "dyck", str(folder / "out"), "--seed", str(variant), "--test-seed", str(variant)]
    sizes = ["--lengths", "4", "6", "--test-lengths", "4", "6", "--train-batches", "4", "--validation-batches", "2"]
    return _command([*words, *sizes, "--test-per-length", "2", "--force"])


def _command(words: list[str]) -> str:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    return errors.getvalue() if code else ""


def _save(folder: Path, raw: Path, variant: int) -> str:
    torch.manual_seed(variant)
    try:
        save(samples.cfl_config().build_model(2), folder / "out")
    except OSError as error:
        return str(error)
    return ""


def _train(folder: Path, raw: Path, variant: int) -> str:
    try:
        run_experiment(samples.cfl_config(), folder / "out", resume=True)
    except RunError as error:
        return str(error)
    return ""


def _content_of(cls: type[Corpus]) -> Callable[[Path], Any]:
    def content(folder: Path) -> Any:
        corpus = cls(folder / "out")
        corpus.tokenizer()
        return [corpus.read_split(split) for split in SPLITS], corpus.fingerprint

    return content


def _analysis_content(folder: Path) -> Any:
    """All files; the report names its folder, which differs."""
    found = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    return {name: data.replace(str(folder).encode(), b"") for name, data in found.items()}


def _data_content(folder: Path) -> Any:
    sets = [Dataset.load(folder / "out" / name) for name in ("train", "validation", "test")]
    return [[x.tolist() for x in data.strings] for data in sets]


def _model_content(folder: Path) -> Any:
    return {name: x.tolist() for name, x in load(folder / "out").state_dict().items()}


@dataclass(frozen=True)
class Scene:
    """What the processes do (`variant` 0 or 1), and the content of the folder afterwards."""

    write: Callable[[Path, Path, int], str]
    content: Callable[[Path], Any]


SCENES = {
    "lm prepare": Scene(_prepare, _content_of(MonolingualCorpus)),
    "mt prepare": Scene(_prepare_pairs, _content_of(BitextCorpus)),
    "analyse": Scene(_analyse, _analysis_content),
    "language write": Scene(_write, _data_content),
    "save": Scene(_save, _model_content),
    "cfl train": Scene(_train, lambda folder: samples.outcome(folder / "out")),
}


def _member(name: str, folder: Path, raw: Path, variant: int, barrier: Any, results: Any) -> None:
    torch.set_num_threads(1)
    barrier.wait()
    try:
        results.put(SCENES[name].write(folder, raw, variant))
    except BaseException as error:
        results.put(f"uncaught {type(error).__name__}: {error}")


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    context = multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    samples.write_raw_texts(folder / "raw")
    run_experiment(samples.cfl_config(), folder / "raw/run")
    expected: dict[str, list[Any]] = {}
    for name, scene in SCENES.items():
        for variant in (0, 1):
            alone = folder / f"alone-{name}-{variant}"
            alone.mkdir()
            if error := scene.write(alone, folder / "raw", variant):
                raise Failed(f"{name}: {error}")
            expected.setdefault(name, []).append(scene.content(alone))

    def case(rng: random.Random) -> str:
        name, count = rng.choice(list(SCENES)), rng.randint(2, 4)
        shared = folder / "shared"
        shared.mkdir()
        barrier, results = context.Barrier(count), context.Queue()
        arguments = [(name, shared, folder / "raw", i % 2, barrier, results) for i in range(count)]
        processes = [context.Process(target=_member, args=given) for given in arguments]
        try:
            for process in processes:
                process.start()
            errors = [results.get(timeout=LIMIT) for _ in processes]
            for process in processes:
                process.join()
            for error in filter(None, errors):
                if str(shared) not in error or "uncaught" in error:
                    raise Failed(f"{name}: {error}", errors=errors)
            if all(errors):
                raise Failed(f"{name}: no process succeeded", errors=errors)
            if SCENES[name].content(shared) not in expected[name]:
                raise Failed(f"{name}: the folder contains a mixture", errors=errors)
            if left := [path.name for path in shared.rglob(".*")]:
                raise Failed(f"{name}: temporary files are left: {left}", errors=errors)
        finally:
            shutil.rmtree(shared)
        return name

    yield case


DRILL = Drill("writers", 12, 400, prepare)
