"""The classes that replace unknown words of the Penn Treebank, as defined by Dyer et al. (2016)."""

from __future__ import annotations

import string
from collections.abc import Container

PLAIN = "UNK"
SUFFIXES = ("ed", "ing", "ion", "er", "est", "ly", "ity", "y", "al")


def unknown_class(word: str, dictionary: Container[str]) -> str:
    """Return the class of a word that is not in the dictionary, based on its capitals, digits, dashes and suffix.

    The class of a word with only an initial capital also depends on whether its lower-case form is in the dictionary.
    Only ASCII letters and digits are considered.

    Example::

        >>> unknown_class("Bonks", {"bonk"})
        'UNK-INITC-s'
    """
    lower = word.lower()
    capitals = sum(c in string.ascii_uppercase for c in word)
    digit, dash = any(c in string.digits for c in word), "-" in word
    name = PLAIN
    if word[0] in string.ascii_uppercase:
        if capitals > 1:
            name += "-CAPS"
        else:
            name += "-INITC-KNOWNLC" if lower in dictionary else "-INITC"
    elif capitals and word[0] not in string.ascii_lowercase:
        name += "-CAPS"
    elif any(c in string.ascii_lowercase for c in word):
        name += "-LC"
    name += "-NUM" * digit + "-DASH" * dash
    if len(word) >= 3 and lower.endswith("s"):
        return name if lower[-2] in "siu" else name + "-s"
    if len(word) >= 5 and not dash and not (digit and capitals):
        for suffix in SUFFIXES:
            if lower.endswith(suffix):
                return f"{name}-{suffix}"
    return name
