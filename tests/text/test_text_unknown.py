"""Classes of unknown words: a hand-written word for each rule, and for each precedence between rules."""

import pytest

from stackattn.text.unknown import unknown_class

DICTIONARY = {"the", "shares", "bank"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("%%", "UNK"),  # no feature applies
        ("Bank", "UNK-INITC-KNOWNLC"),
        ("Bonk", "UNK-INITC"),
        ("BONK", "UNK-CAPS"),
        ("McBonk", "UNK-CAPS"),
        ("BANK", "UNK-CAPS"),  # known in lower case, but has more than one capital
        ("'N", "UNK-CAPS"),
        ("8B", "UNK-CAPS-NUM"),
        ("iBonk", "UNK-LC"),  # begins with a lower-case letter
        ("bonk", "UNK-LC"),
        ("'tis", "UNK-LC"),  # no -s after i, and no other suffix
        ("37.5", "UNK-NUM"),
        ("1990s", "UNK-LC-NUM-s"),
        ("-", "UNK-DASH"),
        ("bonk-like", "UNK-LC-DASH"),
        ("10-bonk", "UNK-LC-NUM-DASH"),
        ("Bonk-ly", "UNK-INITC-DASH"),  # with a dash, no suffix counts ...
        ("x-bonks", "UNK-LC-DASH-s"),  # ... except -s
        ("bonks", "UNK-LC-s"),
        ("Shares", "UNK-INITC-KNOWNLC-s"),
        ("as", "UNK-LC"),  # too short for -s
        ("oks", "UNK-LC-s"),
        ("boss", "UNK-LC"),
        ("taxis", "UNK-LC"),
        ("bus", "UNK-LC"),
        ("BONKS", "UNK-CAPS-s"),
        ("bonked", "UNK-LC-ed"),
        ("red", "UNK-LC"),  # too short for other suffixes
        ("bonking", "UNK-LC-ing"),
        ("bonktion", "UNK-LC-ion"),
        ("bonker", "UNK-LC-er"),
        ("bonkest", "UNK-LC-est"),
        ("bonkly", "UNK-LC-ly"),
        ("bonkity", "UNK-LC-ity"),
        ("bonky", "UNK-LC-y"),
        ("bonkal", "UNK-LC-al"),
        ("Bonking", "UNK-INITC-ing"),
        ("X1bonked", "UNK-INITC-NUM"),  # digit and capital: no suffix
        ("1bonked", "UNK-LC-NUM-ed"),
        ("Ébonk", "UNK-LC"),  # only ASCII letters count
    ],
)
def test_classes(word, expected):
    assert unknown_class(word, DICTIONARY) == expected
