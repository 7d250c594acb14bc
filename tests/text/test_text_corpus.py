"""Prepared corpora: changed files, and folders without a corpus, are refused; corpora of earlier versions load."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from stackattn.files import write_json
from stackattn.text import bitext_corpus
from stackattn.text.bitext_corpus import BitextCorpus, BitextOptions, prepare_bitext
from stackattn.text.monolingual_corpus import MonolingualCorpus, write_monolingual
from stackattn.text.plain import PlainTextOptions, prepare_plain
from stackattn.text.vocabulary import count_vocabulary

SENTENCES = [["a", "b"], ["b"], ["a", "a", "b"], ["b", "a"], ["a"], ["b", "b"]]


def write_words(folder, train=SENTENCES, validation=SENTENCES[:3], test=SENTENCES[3:]):
    splits = {"train": train, "validation": validation, "test": test}
    write_monolingual(folder, splits, count_vocabulary(SENTENCES, 1, "<unk>"), {})
    return folder


def write_pairs(folder):
    """Write raw files for a bitext corpus, and return their paths by split."""
    folder.mkdir(parents=True)
    files = {}
    for split, size in (("train", 30), ("validation", 6), ("test", 6)):
        files[split] = folder / f"{split}.de", folder / f"{split}.en"
        for path, words in zip(files[split], (["eins", "zwei"], ["one", "two"]), strict=True):
            path.write_text("".join(f"{words[i % 2]} {words[i // 2 % 2]}\n" for i in range(size)))
    return files


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """One corpus of each kind; tests change copies."""
    folder = tmp_path_factory.mktemp("prepared")
    write_words(folder / "monolingual")
    prepare_bitext(write_pairs(folder / "raw"), folder / "bitext", BitextOptions(pieces=20, threshold=1))
    return folder


@pytest.fixture(params=["monolingual", "bitext"])
def corpus(request, prepared, tmp_path):
    """The class of a corpus, and the folder of a copy of the corpus."""
    cls = {"monolingual": MonolingualCorpus, "bitext": BitextCorpus}[request.param]
    return cls, shutil.copytree(prepared / request.param, tmp_path / request.param)


def text_files(cls, split):
    return [f"{split}.txt"] if cls is MonolingualCorpus else [f"{split}.source", f"{split}.target"]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_shortened_split_is_refused(corpus, split):
    cls, folder = corpus
    for name in text_files(cls, split):
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines[: len(lines) // 3]))
        counts = rf"expected line count {len(lines)}, .* as report\.json states, found line count {len(lines) // 3},"
        with pytest.raises(ValueError, match=rf"{split}\.\w+: {counts}"):
            cls(folder).read_split(split)


def test_a_changed_character_is_refused(corpus):
    cls, folder = corpus
    name = text_files(cls, "test")[0]
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(b"b" + data[1:] if data[:1] != b"b" else b"a" + data[1:])
    with pytest.raises(ValueError, match=rf"{name}: expected .* the file was changed after the corpus was prepared"):
        cls(folder).read_split("test")
    cls(folder).read_split("train")  # only files that are read are verified


def test_a_changed_tokenizer_is_refused(corpus):
    cls, folder = corpus
    for path in folder.glob("*.json"):
        if path.name != "report.json":
            path.write_text(path.read_text().replace("a", "x"))
    with pytest.raises(ValueError, match=r"(vocabulary|pieces)\.json: expected .*, found"):
        cls(folder).tokenizer()


def test_an_inconsistent_report_is_refused(corpus):
    cls, folder = corpus
    report = json.loads((folder / "report.json").read_text())
    changed = {**report, "fingerprint": "0" * 32}
    for values, message in (
        (changed, "expected the fingerprint of the listed files, "),
        ({**report, "files": {}}, "expected the fingerprint of the listed files"),
        ({**report, "files": {"train.txt": "x"}}, "files: expected lines, bytes and checksum"),
        ({**report, "files": None}, "files: expected lines, bytes and checksum"),
    ):
        write_json(folder / "report.json", values)
        with pytest.raises(ValueError, match=rf"report\.json: {message}"):
            cls(folder)


def test_the_fingerprint_depends_on_the_splits_and_not_on_the_path(tmp_path):
    """The same text in the same order, divided differently, is a different corpus; a copy in another folder is not."""
    first, again = (MonolingualCorpus(write_words(tmp_path / name)).fingerprint for name in ("one", "two/deeper"))
    assert first == again
    moved = write_words(tmp_path / "moved", train=SENTENCES[:-1], validation=[SENTENCES[-1], *SENTENCES[:3]])
    assert MonolingualCorpus(moved).fingerprint != first
    swapped = write_words(tmp_path / "swapped", validation=SENTENCES[3:], test=SENTENCES[:3])
    assert MonolingualCorpus(swapped).fingerprint != first


def make_old(folder: Path) -> str:
    """Convert a corpus to the format of earlier versions, and return its old fingerprint, computed independently."""
    import hashlib

    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").unlink()
    if (folder / "train.txt").exists():
        (folder / "validation.txt").rename(folder / "valid.txt")
        values = json.loads((folder / "vocabulary.json").read_text())
        text = json.dumps([values["types"], values["unknown"]]).encode()
        text += b"".join((folder / f"{split}.txt").read_bytes() for split in ("train", "valid", "test"))
        found = hashlib.sha256(text).hexdigest()[:16]
        written = {"valid" if k == "validation" else k: v for k, v in report["written"].items()}
        old = {"source": "plain text", "types": report["types"], "written": written, "checksum": found}
    else:
        entries = [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in sorted(folder.iterdir())]
        found = hashlib.sha256(b"".join(name.encode() + b"\0" + x for name, x in entries)).hexdigest()[:32]
        old = {"settings": {}, "files": report["sources"], "pairs": report["read"], "digest": found}
    write_json(folder / "report.json", old)
    return found


def test_corpora_of_earlier_versions(corpus):
    cls, folder = corpus
    expected = {split: cls(folder).read_split(split) for split in ("train", "validation", "test")}
    assert make_old(folder) == cls(folder).fingerprint
    assert {split: cls(folder).read_split(split) for split in expected} == expected
    cls(folder).tokenizer()
    name = text_files(cls, "test")[0]
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data.replace(b"b", b"a", 1).replace(b"z", b"s", 1))
    with pytest.raises(
        ValueError, match=r"expected files with the (checksum|digest) \w+, as report\.json states, found"
    ):
        cls(folder).read_split("train")
    (folder / name).write_bytes(data[: data.index(b"\n") + 1])
    with pytest.raises(ValueError, match=rf"{name}: number of lines: expected \d, as report\.json states, found 1;"):
        cls(folder).read_split("train")


def test_a_hash_recorded_by_an_earlier_version(tmp_path):
    """The hashed files are byte for byte as an earlier version wrote them; the report is shortened."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "vocabulary.json").write_text(
        '{\n "types": [\n  "<unk>",\n  "a"\n ],\n "unknown": "<unk>",\n "pieces": false\n}\n'
    )
    for split, text in (("train", "a a\na\n"), ("valid", "a\n"), ("test", "<unk>\n")):
        (folder / f"{split}.txt").write_text(text)
    write_json(folder / "report.json", {"types": 2, "checksum": "21fd8a8f793764be"})
    assert MonolingualCorpus(folder).read_split("validation") == [["a"]]


def test_a_folder_of_the_wrong_kind(prepared, tmp_path):
    with pytest.raises(
        ValueError, match="expected a bitext corpus made by `stackattn mt prepare`, found a monolingual"
    ):
        BitextCorpus(prepared / "monolingual")
    with pytest.raises(ValueError, match="found a bitext corpus made by `stackattn mt prepare`"):
        MonolingualCorpus(prepared / "bitext")
    old = shutil.copytree(prepared / "monolingual", tmp_path / "old")
    make_old(old)
    with pytest.raises(ValueError, match="found a monolingual corpus made by `stackattn lm prepare`"):
        BitextCorpus(old)


@pytest.mark.parametrize(
    ("file", "description"),
    [
        ("metrics.jsonl", "a training run"),
        ("model.safetensors", "a saved model"),
        ("train.json", "strings made by `stackattn language write`"),
        ("notes", "other files"),
        (None, "an empty folder"),
    ],
)
def test_a_folder_without_a_corpus(file, description, tmp_path):
    if file:
        (tmp_path / file).write_text("")
    with pytest.raises(ValueError, match=rf"report\.json: no such file; expected .*, found {description}"):
        MonolingualCorpus(tmp_path)
    with pytest.raises(ValueError, match="nowhere: no such folder; expected a monolingual corpus made by"):
        MonolingualCorpus(tmp_path / "nowhere")


def test_missing_and_unknown_splits(corpus):
    cls, folder = corpus
    with pytest.raises(ValueError, match="split: expected one of train, validation, test, got 'valid'"):
        cls(folder).read_split("valid")
    for name in text_files(cls, "train"):
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r"train\.\w+: no such file; prepare the corpus again with `stackattn"):
        cls(folder).read_split("train")


def test_empty_and_uneven_files_of_earlier_versions(prepared, tmp_path):
    """Reports of earlier versions may lack counts, so the sentences are counted when a split is read."""
    folder = shutil.copytree(prepared / "bitext", tmp_path / "bitext")
    (folder / "test.target").write_text("one\n")
    (folder / "validation.source").write_text("")
    found = make_old(folder)
    write_json(folder / "report.json", {"digest": found})
    with pytest.raises(ValueError, match=r"test\.target: number of sentences: expected 6, as in test\.source, found 1"):
        BitextCorpus(folder).read_split("test")
    with pytest.raises(ValueError, match=r"validation\.source: expected at least one sentence, found an empty file"):
        BitextCorpus(folder).read_split("validation")


def test_a_corpus_that_is_not_utf_8(prepared, tmp_path):
    folder = shutil.copytree(prepared / "bitext", tmp_path / "bitext")
    (folder / "test.source").write_bytes(b"eins\nzw\xe9i\n")
    write_json(folder / "report.json", {"digest": make_old(folder)})
    with pytest.raises(ValueError, match=r"test\.source, line 2: not UTF-8: byte 0xe9 at column 3"):
        BitextCorpus(folder).read_split("test")


def test_extras_are_checked_before_anything_is_written(tmp_path, monkeypatch):
    def missing():
        raise ModuleNotFoundError("pieces of words need the package sentencepiece")

    files = write_pairs(tmp_path / "raw")
    monkeypatch.setattr(bitext_corpus, "sentencepiece", missing)
    monkeypatch.setattr("stackattn.text.plain.sentencepiece", missing)
    with pytest.raises(ModuleNotFoundError, match="sentencepiece"):
        prepare_bitext(files, tmp_path / "out")
    with pytest.raises(ModuleNotFoundError, match="sentencepiece"):
        prepare_plain({split: files[split][0] for split in files}, tmp_path / "out", PlainTextOptions(pieces="20"))
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def _prepare(kind, files, folder, barrier, results):
    barrier.wait()
    try:
        if kind == "bitext":
            prepare_bitext(files, folder, BitextOptions(pieces=20, threshold=1))
        else:
            prepare_plain({split: pair[0] for split, pair in files.items()}, folder)
        results.put("written")
    except OSError as error:
        results.put(str(error))


@pytest.mark.parametrize("kind", ["monolingual", "bitext"])
def test_two_processes_prepare_the_same_folder(kind, tmp_path):
    """Exactly one succeeds, the other gets an error that names the folder, and the corpus is complete."""
    files = write_pairs(tmp_path / "raw")
    context = multiprocessing.get_context("fork")
    for i in range(5):
        folder, barrier, results = tmp_path / f"corpus{i}", context.Barrier(2), context.Queue()
        workers = [context.Process(target=_prepare, args=(kind, files, folder, barrier, results)) for _ in range(2)]
        for worker in workers:
            worker.start()
        outcomes = sorted(results.get(timeout=60) for _ in workers)
        for worker in workers:
            worker.join()
        assert outcomes.count("written") == 1, outcomes
        assert str(folder) in next(outcome for outcome in outcomes if outcome != "written")
        corpus = (BitextCorpus if kind == "bitext" else MonolingualCorpus)(folder)
        corpus.tokenizer()
        for split, size in (("train", 30), ("validation", 6), ("test", 6)):
            found = corpus.read_split(split)
            assert [len(side) for side in found] == [size, size] if kind == "bitext" else len(found) == size
        assert {path.name for path in folder.iterdir()} == {*corpus.report["files"], "report.json"}
        assert [x.name for x in tmp_path.iterdir() if "partial" in x.name] == []
