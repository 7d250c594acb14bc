"""Treebank files: the words of trees in any layout, and errors that name the line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackattn.text.trees import parse_sentences, read_sentences

WORDS = st.sampled_from(["The", "end", "-LRB-", "'s", "1\\/2", ",", "-NONE-", "*"])
LEAVES = st.tuples(st.sampled_from(["NN", "-NONE-", "-LRB-", ","]), WORDS)
TREES = st.recursive(
    LEAVES, lambda inner: st.tuples(st.sampled_from(["S", "NP-SBJ-1", ""]), st.lists(inner, max_size=3)), max_leaves=12
)


def write(tree, blank):
    label, inside = tree
    return f"({label}{blank}{inside if isinstance(inside, str) else blank.join(write(x, blank) for x in inside)})"


def words(tree):
    label, inside = tree
    if isinstance(inside, str):
        return [inside] if label != "-NONE-" else []
    return [word for x in inside for word in words(x)]


@given(st.lists(TREES, max_size=4), st.sampled_from([" ", "\n  ", "\n\t", " \n "]))
def test_words_of_any_tree(trees, blank):
    wrapped = [("", [tree]) for tree in trees]
    text = "\n".join(write(tree, blank) for tree in wrapped)
    assert list(parse_sentences(text.split("\n"), "here")) == [words(tree) for tree in wrapped]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( (S (NP (DT The) (NN end)) (. .)) )", [["The", "end", "."]]),
        ("(S (NN end))\n", [["end"]]),  # without the outer bracket
        ("(TOP (S (NP-SBJ (-NONE- *-1)) (VP (VB go) (NP (-NONE- *T*-2)))))", [["go"]]),
        ("( (S (NP (-NONE- *)) ) )", [[]]),
        ("( (S (NP ) () (NN end)) )", [["end"]]),
        ("((NN a)) ((NN b))", [["a"], ["b"]]),
        ("", []),
        ("\n \n", []),
    ],
)
def test_hand_written_trees(text, expected):
    assert list(parse_sentences(text.split("\n"), "here")) == expected


def test_windows_line_ends(tmp_path):
    path = tmp_path / "wsj_0200.mrg"
    path.write_bytes(b"( (S (NN one)\r\n    (NN two) ))\r\n( (NN three) )\r\n")
    assert list(read_sentences(path)) == [["one", "two"], ["three"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "( (S (NN a)\n  (NN b) )\n( (NN c) )",
            "here, line 3: a tree starts here, but the tree on line 1 lacks 1 closing bracket$",
        ),
        ("( (NN a) )\n( (S (NN b)", "here, line 2: the file ends, but the tree on line 2 lacks 2 closing brackets"),
        ("( (NN a) )\n\n )", "here, line 3: unmatched closing bracket"),
        ("( (NN a) )\nstray", "here, line 2: expected a tree, got 'stray'"),
        ("( (NN a\n b) )", r"here, line 2: expected \(TAG word\), got \(NN a b\)"),
        ("( (S (NN a)\n b) )", r"here, line 2: expected \(TAG b\), got 'b' without a tag"),
        ("( (S a\n (NN b)) )", "here, line 2: expected one label before a bracket, got 'S a'"),
    ],
)
def test_errors_name_the_line(text, message):
    with pytest.raises(ValueError, match=message):
        list(parse_sentences(text.split("\n"), "here"))


def test_a_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / "wsj_0200.mrg"
    path.write_bytes(b"( (NN caf\xe9) )")
    with pytest.raises(ValueError, match=r"wsj_0200\.mrg, line 1: not UTF-8: byte 0xe9 at column 10"):
        list(read_sentences(path))
