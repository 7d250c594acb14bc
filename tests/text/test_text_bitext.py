"""Bitext: reading, the filters and their order, and samples."""

import gzip
import random

import pytest

from stackattn.text.bitext import Filters, read_pairs, read_sentences, select


@pytest.fixture
def files(tmp_path):
    """Return a function that writes two files of lines and returns their paths."""

    def write(source, target):
        paths = tmp_path / "text.de", tmp_path / "text.en"
        for path, lines in zip(paths, (source, target), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        return paths

    return write


def test_lines_are_normalised_and_end_at_newlines_only(files):
    source, target = files(["ﬁn\u00a0½", "a\u2028b\x0cc\x85d"], ["Ａ", "e\rf"])
    assert list(read_pairs(source, target)) == [("fin 1\u20442", "A"), ("a\u2028b\x0cc\x85d", "e\rf")]


def test_line_ends_and_byte_order_marks_are_removed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree")
    assert list(read_sentences(path)) == ["one", "", "three"]


def test_gzip(tmp_path):
    path = tmp_path / "text.de.gz"
    path.write_bytes(gzip.compress("Grüße\nzwei\n".encode()))
    assert list(read_sentences(path)) == ["Grüße", "zwei"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"text.de.gz, after line \d: not a gzip file, or damaged"):
        list(read_sentences(path))
    path.write_bytes(b"plain text\n")
    with pytest.raises(ValueError, match=r"text.de.gz, after line 0: not a gzip file"):
        list(read_sentences(path))


SGML = """<!DOCTYPE srcset SYSTEM "ftp://example.org/mteval.dtd">
<srcset setid="test" srclang="any">
<doc sysid="ref" docid="one" genre="news" origlang="de">
<hl><seg id="1">A headline &amp; more</seg></hl>
<p>
<seg id="2">Less &lt; than</seg><SEG id="3"> over
two lines </SEG>
</p>
</doc>
</srcset>
"""


@pytest.mark.parametrize("name", ["test.sgm", "test.SGML", "test.sgm.gz"])
def test_segments_of_sgml(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(SGML.encode()) if name.endswith("gz") else SGML.encode())
    assert list(read_sentences(path)) == ["A headline & more", "Less < than", "over two lines"]


def test_sgml_without_segments(tmp_path):
    (tmp_path / "test.sgm").write_text("no segments\n")
    with pytest.raises(ValueError, match=r"test.sgm: expected sentences in <seg>"):
        list(read_sentences(tmp_path / "test.sgm"))


@pytest.mark.parametrize(("a", "b"), [(3, 5), (5, 3), (0, 1)])
def test_different_numbers_of_lines(files, a, b):
    source, target = files(["x"] * a, ["y"] * b)
    pairs = read_pairs(source, target)
    assert [next(pairs) for _ in range(min(a, b))] == [("x", "y")] * min(a, b)
    with pytest.raises(
        ValueError, match=rf"text.de and .*text.en: expected the same number of sentences, got {a} and {b}"
    ):
        next(pairs)


def test_bad_encoding(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes(b"good\nGr\xfc\xdfe\n")
    with pytest.raises(ValueError, match=r"latin, line 2: not UTF-8: byte 0xfc at column 3"):
        list(read_sentences(path))


def test_filters_and_their_order(files):
    """A pair is counted under the first filter that it fails, in the paper's order."""
    pairs = [
        (" \u00a0", "."),  # blank before full stop
        ("a", ""),
        ("text", " . "),
        (".", "x" * 300),  # full stop before ratio
        ("a" * 10, "b" * 41),
        ("a" * 200, "b" * 20),  # ratio before length
        ("a" * 151, "b" * 100),
        ("a" * 100, "b" * 150 + " "),  # spaces count
        ("a" * 150, "b" * 38),
        ("a" * 10, "b" * 40),
        ("ok", "..."),
    ]
    paths = files(*zip(*pairs, strict=True))
    found = select(*paths, Filters())
    assert found.counts() == {
        "read": 11,
        "blank": 2,
        "full stop only": 2,
        "length ratio": 2,
        "too long": 2,
        "kept": 3,
        "used": 3,
    }
    assert found.pairs == pairs[-3:]
    loose = select(*paths, Filters(max_characters=400, max_ratio=None))
    assert loose.counts() == {"read": 11, "blank": 2, "full stop only": 2, "too long": 0, "kept": 7, "used": 7}


def test_characters_are_counted_after_normalisation(files):
    """The ligature ﬃ counts as three characters."""
    assert len(select(*files(["ﬃ"], ["abc"]), Filters(max_characters=3)).pairs) == 1
    with pytest.raises(ValueError, match=r"one pair that passes the filters, found none \(.*too long: 1"):
        select(*files(["ﬃ"], ["abc"]), Filters(max_characters=2))


def test_sampling_equals_random_sample(files):
    lines = [f"{i}" if i % 3 else " " for i in range(100)]
    paths = files(lines, lines)
    kept = [(line, line) for line in lines if line.strip()]
    seen = []

    def watch(pairs):
        for pair in pairs:
            seen.append(pair)
            yield pair

    found = select(*paths, Filters(), 20, 123, watch)
    assert found.pairs == random.Random(123).sample(kept, 20)
    assert found.counts()["kept"] == 66
    assert len(seen) == 200  # read twice, so that only the sample is held in memory
    assert select(*paths, Filters(), 20, 5).pairs == random.Random(5).sample(kept, 20)
    for sample in (66, 1000, None):  # 66 pairs are kept: a sample that is not smaller consists of all of them, in order
        assert select(*paths, Filters(), sample).pairs == kept


def test_invalid_options(files):
    with pytest.raises(ValueError, match="max_characters: expected at least 1, got 0"):
        Filters(max_characters=0)
    with pytest.raises(ValueError, match=r"max_ratio: expected at least 1, got 0.5"):
        Filters(max_ratio=0.5)
    with pytest.raises(ValueError, match="sample: expected at least 1 pair, got -1"):
        select(*files(["a"], ["b"]), Filters(), -1)
