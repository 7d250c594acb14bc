"""Sentences of plain text, and vocabularies of words and of pieces."""

import gzip
import os
from pathlib import Path

import pytest

from stackattn.lines import read_lines
from stackattn.text.byte_pairs import load_model, train_model
from stackattn.text.plain import PlainTextOptions, drop_long, split_sentences, to_pieces, to_sentences
from stackattn.text.vocabulary import Vocabulary, count_vocabulary


@pytest.mark.parametrize(
    "text",
    [
        "It ended . | He left",
        "Why ? | No ! | Yes .",
        'He said " It ended . " | She left .',
        'He said " It ended . " and left .',  # continues with a lower-case letter
        '" It ended . | She left . " | He stayed .',
        "( It ended . ) | He left .",
        "It ended ... Or not",
        "What ? ! | No .",
        "Mr. Smith left . | The end",
        ". . .",
        "",
    ],
)
def test_splitting_sentences(text):
    expected = [part.split() for part in text.split("|") if part.strip()]
    assert split_sentences(text.replace("|", "").split()) == expected


def test_headings_blank_lines_and_long_sentences_are_counted():
    lines = ["", " = Title = ", " = = Part = = ", " One . Two three . ", "a = b", " \t ", "= ="]
    sentences, counts = to_sentences(lines, drop_headings=True, split=True)
    assert sentences == [["One", "."], ["Two", "three", "."], ["a", "=", "b"], ["=", "="]]
    assert counts == {"lines": 7, "blank": 2, "headings": 2, "sentences": 4}
    assert drop_long(sentences, 2) == ([["One", "."], ["=", "="]], {"too_long": 2, "tokens_too_long": 6})
    found, counts = to_sentences(lines, drop_headings=False, split=False)
    assert len(found) == counts["sentences"] == 5
    assert counts["headings"] == 0
    assert drop_long(sentences, None) == (sentences, {"too_long": 0, "tokens_too_long": 0})
    assert to_sentences([], drop_headings=False, split=False)[1]["lines"] == 0


@pytest.mark.parametrize("drop", [False, True])
def test_articles_from_title_to_title(drop):
    lines = ["Before", " = One = ", "", "first line", " = = Part = = ", "second", " = Two = ", " = Three = ", "third"]
    found, counts = to_sentences(lines, drop_headings=drop, split=False, join=True)
    whole = ["Before", "= One = first line = = Part = = second", "= Two =", "= Three = third"]
    expected = ["Before", "first line second", "third"] if drop else whole
    assert [" ".join(words) for words in found] == expected
    assert counts["sentences"] == len(expected)


def test_articles_are_not_split_into_sentences():
    with pytest.raises(ValueError, match="join_articles: expected False with split_sentences, got True"):
        PlainTextOptions(join_articles=True, split_sentences=True)


def test_reading_files(tmp_path):
    content = "one\r\ntwo\u2028still two\n\nthree".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content))
    assert list(read_lines(tmp_path / "a.txt")) == ["one", "two\u2028still two", "", "three"]
    assert list(read_lines(tmp_path / "b.txt.gz")) == list(read_lines(tmp_path / "a.txt"))
    (tmp_path / "c.gz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"c\.gz, after line 0: not a gzip file"):
        list(read_lines(tmp_path / "c.gz"))
    (tmp_path / "d.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"d\.txt, line 1: not UTF-8"):
        list(read_lines(tmp_path / "d.txt"))


def test_vocabulary_of_words(tmp_path):
    vocabulary = count_vocabulary([["b", "a", "b", "rare"], ["a"]], 2, "<unk>")
    assert vocabulary.types == ("<unk>", "a", "b")
    assert vocabulary.encode(["b", "never", "<unk>"]) == [2, 0, 0]
    assert (vocabulary.eos, vocabulary.bos, vocabulary.pad) == (3, 4, 5)
    assert (vocabulary.output_size, vocabulary.input_size) == (4, 6)
    assert vocabulary.decode([1, 2]) == "a b"
    vocabulary.save(tmp_path)
    assert Vocabulary.load(tmp_path) == vocabulary
    assert sorted(x.name for x in tmp_path.iterdir()) == ["vocabulary.json"]


def test_invalid_vocabularies(tmp_path):
    with pytest.raises(ValueError, match="types: expected distinct types, got 'a' more than once"):
        Vocabulary(("a", "a"))
    with pytest.raises(ValueError, match="unknown: expected one of the types"):
        Vocabulary(("a",), "b")
    with pytest.raises(FileNotFoundError, match=r"vocabulary\.json: no such file"):
        Vocabulary.load(tmp_path)
    for text, message in (
        ("{", ", line 1: not JSON: Expecting property name"),
        ("[]", ": expected a JSON object, got list"),
        ("{}", ": types: expected a list of types"),
        ('{"types": ["a"]}', ": expected the keys unknown .* and pieces"),
        ('{"types": ["a", "a"], "unknown": null, "pieces": false}', ": types: expected distinct types, got 'a'"),
        ("[" * 100_000, ": cannot read this JSON: maximum recursion depth"),
        ('{"types": ' + "1" * 5000 + "}", ": cannot read this JSON: Exceeds the limit"),
    ):
        (tmp_path / "vocabulary.json").write_text(text)
        with pytest.raises(ValueError, match=rf"vocabulary\.json{message}"):
            Vocabulary.load(tmp_path)
    (tmp_path / "vocabulary.json").write_bytes(b'{"types":\n["\xff"]}')
    with pytest.raises(ValueError, match=r"vocabulary\.json, line 2: not UTF-8: byte 0xff at column 3"):
        Vocabulary.load(tmp_path)


def test_pieces(tmp_path):
    pytest.importorskip("sentencepiece")
    training = [["the", "bonkers", "bank"], ["the", "banker", "bonks"]] * 20
    lines = [" ".join(sentence) for sentence in training]
    model = train_model(lines, 30)
    assert train_model(lines, 30) == model
    pieces = to_pieces(training, model)
    assert all("".join(x).replace("▁", " ").split() == y for x, y in zip(pieces, training, strict=True))
    vocabulary = count_vocabulary(pieces, 1, "<unk>", model)
    vocabulary.save(tmp_path)
    read = Vocabulary.load(tmp_path)
    tokens = read.split("the bonkers %")
    assert tokens[-1] == "<unk>"  # a character that does not occur in the training text
    assert read.decode(read.encode(tokens[:-2])) == "the bonkers"
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        Vocabulary(("a",), None, b"no").split("a")
    (tmp_path / "pieces.model").write_bytes(model[: len(model) // 2])
    with pytest.raises(ValueError, match=r"pieces\.model: not a SentencePiece model"):
        Vocabulary.load(tmp_path)


def test_pieces_are_learned_from_very_long_sentences():
    pytest.importorskip("sentencepiece")
    lines = ["the bonkers bank", "the banker bonks"] * 20
    model = train_model(lines, 30)
    for size in (4192, 4193, 20000):
        longer = load_model(train_model([*lines, "é " + "e" * (size - 3)], 40))
        assert not longer.is_unknown(longer.piece_to_id("é"))
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    # max_sentence_length is set only if a sentence is longer than the default of SentencePiece
    assert not ModelProto.FromString(model).trainer_spec.HasField("max_sentence_length")


@pytest.mark.skipif("STACKATTN_DATA" not in os.environ, reason="needs corpora in STACKATTN_DATA")
def test_wikitext_2():
    folder = Path(os.environ["STACKATTN_DATA"]) / "wikitext-2"
    lines = list(read_lines(folder / "train.txt.gz"))
    whole, counts = to_sentences(lines, drop_headings=False, split=False)
    assert counts["lines"] == 36718
    assert sum(map(len, whole)) == 2051910  # the published number
    parts, _ = to_sentences(lines, drop_headings=False, split=True)
    assert [x for sentence in parts for x in sentence] == [x for line in whole for x in line]
