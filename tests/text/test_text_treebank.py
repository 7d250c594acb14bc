"""The Penn Treebank: sections, special cases, vocabulary and file layouts, with small hand-written trees."""

import os
from pathlib import Path

import pytest

from stackattn.lines import read_json_object
from stackattn.text import penn_treebank
from stackattn.text.corpus import SPLITS
from stackattn.text.monolingual_corpus import MonolingualCorpus, divide, write_monolingual
from stackattn.text.penn_treebank import by_section, find_files, read_part, read_sections, treebank_vocabulary


def trees(*sentences):
    return "".join(f"( (S {' '.join(f'(NN {word})' for word in x.split())} (-NONE- *)) )\n" for x in sentences)


def whole(folder, layout="{section}/wsj_{section}{number}.mrg", **changes):
    """Write a treebank: files of the sections that are read, each with its number as a word, and a file of section 00.

    `changes` replaces the sentences of single files, for example `s0300=["a sentence"]`.
    """
    files = {(f"{section:02d}", "00"): [f"the file {section:02d}00 ."] for section in (*range(2, 22), 23)}
    files |= {("24", number): [f"the file 24{number} ."] for number in ("22", "23", "24")}
    files[("00", "01")] = ["not for training"]
    files |= {(name[1:3], name[3:]): sentences for name, sentences in changes.items()}
    for (section, number), sentences in files.items():
        path = folder / layout.format(section=section, number=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trees(*sentences))
    return folder


@pytest.mark.parametrize(
    "layout",
    [
        "parsed/mrg/wsj/{section}/wsj_{section}{number}.mrg",
        "wsj_{section}{number}.mrg",
        "WSJ/{section}/WSJ_{section}{number}.MRG",
    ],
)
def test_sections_and_the_replacement_file(layout, tmp_path):
    whole(tmp_path, layout)
    (tmp_path / "brown").mkdir()
    (tmp_path / "brown/cf01.mrg").write_text(trees("not the Journal"))
    splits, _ = read_sections(tmp_path)
    assert [x[2] for x in splits["train"]] == [f"{section:02d}00" for section in range(2, 22)]
    assert [x[2] for x in splits["validation"]] == ["2422", "2424", "2424"]
    assert [x[2] for x in splits["test"]] == ["2300"]


def test_the_omitted_sentence(tmp_path):
    whole(tmp_path, s0300=["# 200 million of notes", "# not the one"])
    splits, notes = read_sections(tmp_path, left_out=2)
    assert [x[0] for x in splits["train"]] == ["the", "#", *["the"] * 18]
    assert splits["train"][1][1] == "not"
    assert (notes["trees without words"], notes["training sentence left out"]) == (0, 2)
    counts = {f"{section:02d}": 1 for section in (*range(2, 22), 23)} | {"03": 2, "24": 3}
    assert notes["sentences of sections"] == counts  # counted before the omission
    splits, notes = read_sections(tmp_path, left_out=1)  # it begins with another word, so it is kept
    assert len(splits["train"]) == 21
    assert notes["training sentence left out"] is None


def test_trees_without_words_are_counted(tmp_path):
    whole(tmp_path, s0300=["", "words"])
    splits, notes = read_sections(tmp_path)
    assert notes["trees without words"] == 1
    assert splits["train"][1] == ["words"]


def test_missing_and_duplicate_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.mrg files"):
        find_files(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        find_files(tmp_path / "nowhere")
    whole(tmp_path)
    copy = tmp_path / "copy/wsj_0200.mrg"
    copy.parent.mkdir()
    copy.write_text("")
    with pytest.raises(
        ValueError, match=r"expected one file wsj_0200\.mrg, found .*02/wsj_0200\.mrg and .*copy/wsj_0200\.mrg"
    ):
        read_sections(tmp_path)
    copy.unlink()
    for name in ("05/wsj_0500.mrg", "23/wsj_2300.mrg"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"missing: 05, 23\. Divide a part of the treebank with --split 80/10/10"):
        read_sections(tmp_path)


def test_a_missing_replacement_file(tmp_path):
    whole(tmp_path)
    (tmp_path / "24/wsj_2424.mrg").unlink()
    with pytest.raises(ValueError, match=r"section 24: expected the files .*, found no wsj_2424\.mrg"):
        read_sections(tmp_path)


def test_vocabulary():
    training = [["The", "bank", "bank", "bonks"], ["The", "Bank", "37"], ["the", "the", "7-up"]]
    vocabulary = treebank_vocabulary(training, whole=True)
    known, classes = ["The", "bank", "the"], ["UNK-INITC-KNOWNLC", "UNK-LC-NUM-DASH", "UNK-LC-s", "UNK-NUM"]
    assert list(vocabulary.types) == sorted(known + classes)
    assert [vocabulary.type_of(x) for x in ("bank", "Bank", "donks", "12")] == [
        "bank",
        "UNK-INITC-KNOWNLC",
        "UNK-LC-s",
        "UNK-NUM",
    ]
    with pytest.raises(ValueError, match="'DONKS' is not in the vocabulary"):
        vocabulary.type_of("DONKS")
    part = treebank_vocabulary(training, whole=False)
    assert part.type_of("DONKS") == "UNK"
    assert set(part.types) - set(vocabulary.types) == {"UNK"}


def test_dividing_a_part_in_order(tmp_path):
    path = tmp_path / "part.mrg"
    path.write_text(trees(*(f"sentence {i}" for i in range(21))))
    splits, notes = read_part(path, [80, 10, 10])
    assert [len(x) for x in splits.values()] == [16, 2, 3]
    assert [x[1] for split in splits.values() for x in split] == [str(i) for i in range(21)]
    assert notes == {"trees without words": 0}
    with pytest.raises(ValueError, match=r"shares: expected 3 positive numbers such as 80/10/10, got 90/10"):
        divide([], [90, 10])


def test_writing_a_corpus(tmp_path):
    splits = {"train": [["a", "a", "Bonk"]], "validation": [["a", "donk", "Honk"]], "test": [["a"]]}
    vocabulary = treebank_vocabulary(splits["train"], whole=False)
    report = write_monolingual(tmp_path / "data", splits, vocabulary, {"source": "here"})
    assert (tmp_path / "data/validation.txt").read_text() == "a UNK UNK-INITC\n"
    assert report["written"]["validation"] == {"sentences": 1, "tokens": 3, "unknown": 2}
    assert read_json_object(tmp_path / "data/report.json") == report
    corpus = MonolingualCorpus(tmp_path / "data")
    assert corpus.fingerprint == report["fingerprint"]
    read = corpus.tokenizer()
    assert read == vocabulary
    assert corpus.encode_split("train", read) == [[2, 2, 1]]  # UNK, UNK-INITC, a
    assert sorted(x.name for x in tmp_path.iterdir()) == ["data"]  # no temporary files
    with pytest.raises(FileExistsError, match="data already exists"):
        write_monolingual(tmp_path / "data", splits, vocabulary, {})
    other = write_monolingual(tmp_path / "other", splits | {"test": [["Bonk"]]}, vocabulary, {})
    assert other["fingerprint"] != report["fingerprint"]
    for text, message in (
        ("{", ", line 1: not JSON: Expecting property name"),
        ("[]", ": expected a JSON object, got list"),
        (
            "{}",
            ": expected a monolingual corpus made by `stackattn lm prepare` or .*, found a report without a known kind",
        ),
    ):
        (tmp_path / "other/report.json").write_text(text)
        with pytest.raises(ValueError, match=rf"other/report\.json{message}"):
            MonolingualCorpus(tmp_path / "other")


def test_the_word_classes_is_an_ordinary_word(tmp_path):
    """`classes` is also the value of `unknown` that selects the classes of unknown words."""
    splits = {split: [["classes", "classes", "Bonk"]] for split in SPLITS}
    report = write_monolingual(tmp_path / "data", splits, treebank_vocabulary(splits["train"], whole=True), {})
    assert report["written"]["train"] == {"sentences": 1, "tokens": 3, "unknown": 1}


def test_a_failed_write_leaves_no_folder(tmp_path):
    vocabulary = treebank_vocabulary([["a", "a"]], whole=True)
    with pytest.raises(ValueError, match="validation, sentence 2: 'b' is not in the vocabulary"):
        write_monolingual(
            tmp_path / "data", {"train": [["a"]], "validation": [["a"], ["b"]], "test": [["a"]]}, vocabulary, {}
        )
    with pytest.raises(ValueError, match="test: expected at least one sentence, found none after preparation"):
        write_monolingual(tmp_path / "data", {"train": [["a"]], "validation": [["a"]], "test": []}, vocabulary, {})
    assert not list(tmp_path.iterdir())


def test_comparison_with_the_expected_counts():
    vocabulary = treebank_vocabulary([["a", "a", "Bonk"]], whole=False)
    written = {"train": {"sentences": 39831, "tokens": 3}, "test": {"sentences": 2415}}
    lines = penn_treebank.compare({"written": written, "sentences of sections": {"24": 1345}}, vocabulary)
    found = {what: (expected, number) for what, expected, number in lines}
    assert found["training sentences"] == (39831, 39831)
    assert found["test sentences"] == (2416, 2415)
    assert found["sentences of section 24"] == (1346, 1345)
    assert found["types"] == (23832, 3)
    assert found["classes of unknown words"] == (66, 2)


def test_files_of_a_section_are_sorted_by_name():
    files = [Path(x) for x in ("b/wsj_0301.mrg", "a/wsj_0302.mrg", "c/WSJ_0300.MRG", "wsj_0200.mrg", "wsj_02.mrg")]
    assert {k: [x.name.lower() for x in v] for k, v in by_section(files).items()} == {
        2: ["wsj_0200.mrg"],
        3: ["wsj_0300.mrg", "wsj_0301.mrg", "wsj_0302.mrg"],
    }


@pytest.mark.skipif("STACKATTN_DATA" not in os.environ, reason="needs corpora in STACKATTN_DATA")
def test_nltk_sample():
    folder = Path(os.environ["STACKATTN_DATA"]) / "ptb-nltk-sample"
    splits, notes = read_part(folder, [80, 10, 10])
    sentences = [x for split in splits.values() for x in split]
    assert (len(sentences), sum(map(len, sentences))) == (3914, 94084)  # counted by an independent reader
    assert notes["trees without words"] == 0
