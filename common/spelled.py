"""Numbers out of texts, exactly: what spells a number, what spells none and what is missing.

ASCII digits with a sign, a point and an exponent, blanks around them; inf. Python reads more: 1_0
and full-width digits are no numbers here, as in a CSV.
"""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException

MISSING_WORDS = frozenset(("", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "\\N", "?"))
WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")  # written out, perhaps with a point
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_LONG = 400  # digits: a number of more is beyond every type


def is_missing(text: str) -> bool:
    """Tell whether a text stands where a number is missing."""
    return is_missing_word(text.strip())


def is_missing_word(word: str) -> bool:
    """Tell whether a text without blanks around it stands where a number is missing."""
    return word in MISSING_WORDS or word.lstrip("+-").lower() == "nan"


def is_plain(letters: str) -> bool:
    """Tell whether Python's int and float read these letters as `number_of` does."""
    return letters.isascii() and "_" not in letters and "\0" not in letters


def number_of(text: str) -> int | Decimal | float | None:
    """Return the number that a text spells, None where it spells none.

    It is exact: an int, or a Decimal where there is a fraction, an exponent or hundreds of digits.
    A float is infinite. Where even a Decimal has no such exponent, it is 0 or infinite itself.
    """
    if not text.isascii():
        return None
    text = text.strip()
    if whole := WHOLE.fullmatch(text):
        digits, sign = whole[1].lstrip("+-0"), -1 if text[0] == "-" else 1
        return sign * int(digits or 0) if len(digits) < _LONG else Decimal(whole[1])
    if NUMBER.fullmatch(text):
        try:
            return Decimal(text)
        except DecimalException:  # an exponent of twenty digits
            return Decimal(float(text))
    return float(text) if INFINITE.fullmatch(text) else None
