"""Exact numbers from text and Python values, with limits on their size."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

MAX_DIGITS = 4000
"""Maximum number of digits of a numerator or denominator, and maximum exponent of ten."""
_MAX_BITS = MAX_DIGITS * 10 // 3
_EXPONENT = re.compile(r"[eE]([-+]?)([\d_]+)")


def exact(value: object) -> Fraction:
    """Return the exact value of a number: an int, float, Fraction, Decimal or text such as `0.5`, `1/3` or `2e-3`.

    The size is checked before the number is computed: the exact value of `1e-30000000` has 30 million digits.

    Raises:
        TypeError, ValueError, ZeroDivisionError, OverflowError: the value is not a finite number.
        NumberTooLongError: it has more than `MAX_DIGITS` digits or an exponent beyond ±`MAX_DIGITS`.
    """
    if isinstance(value, str):
        value = value.strip()
        if len(value) > 2 * MAX_DIGITS + 2:
            raise NumberTooLongError(f"got {len(value):,} characters")
        if (found := _EXPONENT.search(value)) and not _is_small(found[2].replace("_", "")):
            raise NumberTooLongError(f"got {value[:40]!r}")
    elif isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_DIGITS:
        raise NumberTooLongError(f"got {value}")
    number = Fraction(value)  # type: ignore[arg-type]
    if not fits(number):
        raise NumberTooLongError(f"got a number of {max(bits(number)) * 3 // 10:,} digits")
    return number


class NumberTooLongError(ValueError):
    """A number with more digits than are supported."""

    def __init__(self, found: str):
        super().__init__(
            f"expected a number of at most {MAX_DIGITS:,} digits and an exponent up to ±{MAX_DIGITS:,}, {found}"
        )


def bits(number: Fraction) -> tuple[int, int]:
    """Return the sizes of numerator and denominator in bits."""
    return number.numerator.bit_length(), number.denominator.bit_length()


def fits(number: Fraction, factor: int = 1) -> bool:
    """Return whether a number has at most `factor` times `MAX_DIGITS` digits."""
    return max(bits(number)) <= factor * _MAX_BITS


def _is_small(exponent: str) -> bool:
    return len(exponent.lstrip("0")) <= len(str(MAX_DIGITS)) and int(exponent) <= MAX_DIGITS
