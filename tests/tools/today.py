"""Long cases that are alike: each day some of them are tested, all by hand.

EDL_TEST_DAY=20260131 tests what was tested on that day; `-m "slow or not slow"` tests all.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

DAY = "EDL_TEST_DAY"
Test = TypeVar("Test", bound=Callable[..., Any])


def set_day() -> None:
    """Choose the day, for this process and those that it starts: they test the same at midnight."""
    os.environ.setdefault(DAY, f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")


def has_turn(number: int, parts: int) -> bool:
    """Return whether this is the day of the cases of this number, one day in so many."""
    day = datetime.datetime.strptime(os.environ[DAY], "%Y%m%d").date().toordinal()
    return number % parts == day % parts


def on_day(number: int, parts: int = 2) -> Callable[[Test], Test]:
    """Mark a test as slow on all days but those of its number."""
    return lambda test: test if has_turn(number, parts) else pytest.mark.slow(test)


def of_today(cases: Iterable[Any], parts: int = 2) -> list[Any]:
    """Return the cases as parameters, marked as slow but for every so many-th, each day others."""
    found = []
    for number, case in enumerate(cases):
        given = case if hasattr(case, "marks") else pytest.param(case)
        marks = given.marks if has_turn(number, parts) else [*given.marks, pytest.mark.slow]
        found.append(pytest.param(*given.values, marks=marks, id=given.id))
    return found
