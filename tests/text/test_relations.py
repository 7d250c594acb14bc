"""Related words of trees: subjects and verbs, brackets and quotation marks."""

import pytest

from stackattn.text.relations import BETWEEN, CLASSES, OTHER, SUBJECT_VERB, find_related, word_class
from stackattn.text.trees import parse_trees


def related(text, relation):
    (tree,) = parse_trees(text.split("\n"), "here")
    words = [leaf.word for leaf in tree.leaves()]
    return [(words[x.earlier], words[x.later]) for x in find_related(tree) if x.relation == relation]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( (S (NP-SBJ (DT the) (NN end)) (VP (VBZ comes))) )", [("end", "comes")]),
        ("(S (NP-SBJ (NP (NNS keys)) (PP (IN to) (NP (DT the) (NN door)))) (VP (VBP fit)))", [("keys", "fit")]),
        ("(S (NP-SBJ-1 (NP (NNP Ann) (POS 's)) (NN dog)) (VP (MD will) (VP (VB bark))))", [("dog", "will")]),
        ("(S (NP-SBJ (PRP it)) (ADVP (RB now)) (VP (VP (VBD came)) (CC and) (VP (VBD went))))", [("it", "came")]),
        ("(S (NP-SBJ (-NONE- *)) (VP (TO to) (VP (VB go))))", []),  # an empty subject
        ("(S (NP-SBJ (NN he)) (VP (TO to) (VP (VB go))))", []),  # no finite verb
        ("(S (VP (VBZ comes)) (NP-SBJ (NN end)))", []),  # the subject follows
        ("(S (NP-TMP (NN today)) (VP (VBZ comes)))", []),  # not a subject
        (
            "(S (NP-SBJ (NP (NN man)) (SBAR (WHNP (WP who)) (S (NP-SBJ (PRP we)) (VP (VBD saw))))) (VP (VBZ runs)))",
            [("we", "saw"), ("man", "runs")],
        ),
    ],
)
def test_subjects_and_their_verbs(text, expected):
    assert related(text, SUBJECT_VERB) == expected


def test_nouns_between_subject_and_verb():
    text = "(S (NP-SBJ (NP (NNS keys)) (PP (IN to) (NP (DT the) (NN door)))) (VP (VBP fit) (NP (NNS locks))))"
    assert related(text, BETWEEN) == [("door", "fit")]


def test_brackets_and_quotation_marks_are_paired_from_the_inside():
    signs = [("-LRB-", "a"), ("``", "b"), ("-LRB-", "c"), ("-RRB-", "d"), ("''", "e"), ("-RRB-", "f"), ("-RRB-", "g")]
    text = f"(S {' '.join(f'({tag} {word})' for tag, word in signs)})"
    assert related(text, "bracket") == [("c", "d"), ("a", "f")]
    assert related(text, "quotation mark") == [("b", "e")]


def test_deeply_nested_trees():
    depth = 5000
    (tree,) = parse_trees([f"{'(NP ' * depth}(NN end){')' * depth}"], "here")
    assert [leaf.word for leaf in tree.leaves()] == ["end"]
    assert find_related(tree) == []


def test_every_tag_has_one_class():
    tags = [tag for group in CLASSES.values() for tag in group]
    assert len(tags) == len(set(tags))
    assert (word_class("NNS"), word_class("FW")) == ("noun", OTHER)
