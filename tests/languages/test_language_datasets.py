"""Data sets: batches of one length, seeds, lower bounds, and saving and loading."""

import json
import math
import os

import numpy as np
import pytest

from stackattn.files import write_text
from stackattn.languages import (
    PCFG,
    Dataset,
    dyck,
    evaluation_set,
    get_language,
    marked_reversal,
    padded_reversal,
    sample_batches,
    sample_every_length,
    training_sets,
)


def test_training_sets_have_the_papers_sizes():
    train, validation = training_sets(marked_reversal(), seed=3)
    assert (len(train), len(validation)) == (10_000, 1_000)
    assert (len(train.batches), len(validation.batches)) == (1000, 100)
    lengths = {batch.shape[1] for batch in train.batches}
    assert lengths == set(range(41, 80, 2))
    assert all(batch.shape[0] == 10 for batch in train.batches)
    assert validation.about == {"set": "validation", "seed": 3}


def test_lengths_of_batches_are_uniform():
    found = sample_batches(dyck(), (40, 80), 4200, 1, np.random.default_rng(0))
    counts = np.unique([batch.shape[1] for batch in found.batches], return_counts=True)[1]
    assert len(counts) == 21
    assert ((counts - 200) ** 2 / 200).sum() < 20 + 4 * math.sqrt(40)


def test_test_sets_have_all_lengths():
    found = evaluation_set(dyck(), per_length=3)
    assert [batch.shape for batch in found.batches] == [(3, n) for n in range(40, 101, 2)]


def test_seeds():
    grammar = dyck()
    first, again, other = (training_sets(grammar, seed, (10, 20), 20, 5, 4) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all((x == y).all() for x, y in zip(a.batches, b.batches, strict=True))
    assert any(x.shape != y.shape or (x != y).any() for x, y in zip(first[0].batches, other[0].batches, strict=True))
    # The validation set uses the random numbers after those of the training set: it is not a copy.
    assert any(x.shape != y.shape or (x != y).any() for x, y in zip(first[0].batches, first[1].batches, strict=False))


def test_lower_bounds_of_marked_reversal_in_closed_form():
    found = sample_every_length(marked_reversal(), (40, 80), 2, np.random.default_rng(0))
    lengths = np.arange(41, 80, 2)
    nats = (lengths - 1) / 2 * math.log(2)
    assert found.lower_bound(length_term=False) == pytest.approx(nats.sum() / (lengths + 1).sum(), abs=1e-12)
    assert found.lower_bound() == pytest.approx((nats + math.log(20)).sum() / (lengths + 1).sum(), abs=1e-12)
    by_length = found.lower_bounds_by_length()
    assert list(by_length) == lengths.tolist()
    np.testing.assert_allclose(list(by_length.values()), nats / (lengths + 1), atol=1e-12)
    with_term = found.lower_bounds_by_length(length_term=True)
    np.testing.assert_allclose(list(with_term.values()), (nats + math.log(20)) / (lengths + 1), atol=1e-12)


def test_lower_bound_is_the_mean_of_the_scores():
    grammar = padded_reversal()
    found = sample_batches(grammar, (5, 12), 30, 2, np.random.default_rng(0))
    scores = grammar.log_prob_given_length(found.strings)
    symbols = sum(len(s) + 1 for s in found.strings)
    assert found.lower_bound(False) == pytest.approx(-scores.sum() / symbols, abs=1e-12)
    assert found.lower_bound() == pytest.approx((-scores.sum() + 60 * math.log(8)) / symbols, abs=1e-12)
    in_bins = found.lower_bounds_by_length()
    weights = {n: sum(len(b) * (n + 1) for b in found.batches if b.shape[1] == n) for n in in_bins}
    assert sum(in_bins[n] * weights[n] for n in in_bins) / symbols == pytest.approx(found.lower_bound(False), abs=1e-12)


@pytest.mark.parametrize(
    "made",
    [
        get_language("dyck", k=3, variant="published"),
        get_language("marked-copy"),
        get_language("padded-reversal", mean_padding_length="7/2"),
        dyck(k=5),
        PCFG.from_text("%start T\nS -> 'the' S [1/3] | [2/3]\nT -> S S 'end'", name="mine"),
    ],
    ids=str,
)
def test_save_and_load(made, tmp_path):
    saved = sample_batches(made, (0, 12), 12, 3, np.random.default_rng(0))
    saved.about["note"] = "hello"
    saved.save(tmp_path / "deep" / "train.v1")
    assert sorted(os.listdir(tmp_path / "deep")) == ["train.v1.json", "train.v1.txt"]
    loaded = Dataset.load(tmp_path / "deep" / "train.v1")
    assert loaded.lengths == saved.lengths
    assert loaded.about == {"note": "hello"}
    assert loaded.language.symbols == made.symbols
    assert str(loaded.language) == str(made)
    assert all((a == b).all() for a, b in zip(loaded.batches, saved.batches, strict=True))
    assert (loaded.log_probs == saved.log_probs).all()
    assert loaded.lower_bound() == saved.lower_bound()
    scores = loaded.language.log_prob_given_length(loaded.strings)
    np.testing.assert_allclose(scores, saved.log_probs, atol=1e-12)


def test_contents_of_files(tmp_path):
    found = Dataset(get_language("dyck"), (2, 4), [np.array([[0, 1], [2, 3]]), np.array([[0, 2, 3, 1]])])
    found.save(tmp_path / "d")
    assert (tmp_path / "d.txt").read_text() == "( )\n[ ]\n( [ ] )\n"
    about = json.loads((tmp_path / "d.json").read_text())
    assert about["batch_sizes"] == [2, 1]
    assert about["lengths"] == [2, 4]
    assert about["num_valid_lengths"] == 2
    assert about["symbols"] == ["(", ")", "[", "]"]
    assert about["language"]["grammar"].startswith("S -> S T [1/2]")
    assert about["log_probs_given_length"] == found.log_probs.tolist()
    assert about["lower_bound"]["with_length_term"] == found.lower_bound()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("d.txt", b"( )\n", r"d\.txt: number of lines: expected 2, as stated in d\.json, got 1"),
        ("d.txt", b"( )\n( x\n", r"d\.txt, line 2: expected the symbols .*, got 'x' as symbol 2"),
        ("d.txt", b"( )\n( ( ) )\n", r"d\.txt, line 2: expected length 2, as in the first string of the batch, got 4"),
        ("d.txt", b"( )\n( \xe9\n", r"d\.txt, line 2: not UTF-8: byte 0xe9 at column 3"),
        ("d.json", b'{"format": 1}', r"d\.json: format: expected 'stackattn-strings-1', found 1"),
        ("d.json", b'{\n"format', r"d\.json, line 2: not JSON"),
    ],
)
def test_errors_of_damaged_files_name_file_and_line(file, content, message, tmp_path):
    found = Dataset(get_language("dyck"), (2, 4), [np.array([[0, 1], [2, 3]])])
    found.save(tmp_path / "d")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Dataset.load(tmp_path / "d")


def test_loading_a_missing_dataset(tmp_path):
    with pytest.raises(FileNotFoundError):
        Dataset.load(tmp_path / "nothing")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_errors():
    generator = np.random.default_rng(0)
    with pytest.raises(ValueError, match="lengths: dyck has no strings of length 5"):
        sample_batches(dyck(), (5, 5), 1, 1, generator)
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
        sample_batches(dyck(), (2, 6), 1, 0, generator)
    with pytest.raises(TypeError, match="generator: expected a numpy"):
        sample_every_length(dyck(), (2, 6), 1, 0)
    empty = sample_batches(dyck(), (2, 6), 0, 1, generator)
    assert len(empty) == 0
    with pytest.raises(ValueError, match="expected a data set with at least one string"):
        empty.lower_bound()


def test_changed_files_are_refused(tmp_path):
    Dataset(get_language("dyck"), (2, 4), [np.array([[0, 1], [2, 3]])]).save(tmp_path / "d")
    text, about = (tmp_path / "d.txt").read_text(), (tmp_path / "d.json").read_text()
    (tmp_path / "d.txt").write_text("".join(reversed(text.splitlines(keepends=True))))
    with pytest.raises(ValueError, match=r"d\.txt: its content does not match the checksum in d\.json"):
        Dataset.load(tmp_path / "d")
    (tmp_path / "d.txt").write_text(text)
    (tmp_path / "d.json").write_text(about.replace("log_probs_given_length", "log_probs").replace("crc32", "old"))
    with pytest.raises(ValueError, match=r"d\.json: missing key 'log_probs_given_length'"):
        Dataset.load(tmp_path / "d")
