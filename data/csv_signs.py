"""Signs of a user's own for a missing value in CSV: `na_values=-|unknown|-999`, as in pandas.

They are for all columns. In a column of numbers a sign is a text, without the blanks around it, or
a number by its value, so that -999 is -999.0 too; in a column of texts it is the text as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import UsageError
from ..common.spelled import NUMBER

BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f "  # around a number they are nothing
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Signs:
    """Texts that stand for a missing value, and the numbers that are among them."""

    texts: frozenset[str] = frozenset()
    numbers: frozenset[int | float] = frozenset()

    @classmethod
    def parse(cls, value: object) -> Signs:
        """Parse "-|unknown|-999", a number, or several of either. Raises UsageError."""
        if value is None:
            return cls()
        if isinstance(value, str):
            value = value.split("|")
        several = value if isinstance(value, Sequence) else [value]
        if bad := [each for each in several if not isinstance(each, str | int | float)]:
            raise UsageError(
                f"The parameter na_values is texts or numbers that stand for a missing value in "
                f"all columns, a|b, not {bad[0]!r}."
            )
        texts = {str(each) for each in several} - {""}  # which is missing anyhow
        numbers = map(_number, texts)
        return cls(frozenset(texts), frozenset(each for each in numbers if each is not None))

    def has(self, field: str) -> bool:
        """Tell whether a field of a column of numbers is a sign."""
        field = field.strip(BLANKS)
        return field in self.texts or (bool(self.numbers) and _number(field) in self.numbers)

    def blanked(self, fields: Sequence[str]) -> Sequence[str]:
        """Return the fields of a column of numbers, with "" in place of each sign."""
        return ["" if self.has(each) else each for each in fields] if self.texts else fields

    def blanked_texts(self, fields: Sequence[str]) -> Sequence[str]:
        """Return the fields of a column of texts, with "" in place of each sign."""
        return ["" if each in self.texts else each for each in fields] if self.texts else fields

    def among(self, values: NDArray[np.generic]) -> NDArray[np.bool_] | None:
        """Return which of these numbers or texts are signs; None: there are none of that kind."""
        if values.dtype.kind == "U":
            return np.isin(values, list(self.texts)) if self.texts else None
        kind = values.dtype.type
        fitting = [n for n in self.numbers if kind is np.float64 or _is_within(kind, n)]
        return np.isin(values, np.array(fitting, kind)) if fitting else None


def _number(text: str) -> int | float | None:
    """Return the number that a text is, exactly if it is a whole one; None: it is none."""
    text = text.strip(BLANKS)
    if _WHOLE.fullmatch(text) and len(text) < 400:  # more digits are no number of ours
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else None


def _is_within(kind: Any, number: float) -> bool:
    """Tell whether a number is a whole one that a type of numpy can hold."""
    limits = np.iinfo(kind)
    whole = abs(number) < 2**65 and number == int(number)
    return bool(whole and limits.min <= number <= limits.max)
