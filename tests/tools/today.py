"""Long cases that are alike: each day some of them are tested, all by hand.

EDL_TEST_DAY=20260131 tests what was tested on that day; `-m "slow or not slow"` tests all.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import Any

import pytest

DAY = "EDL_TEST_DAY"


def set_day() -> None:
    """Choose the day, for this process and those that it starts: they test the same at midnight."""
    os.environ.setdefault(DAY, f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")


def of_today(cases: Iterable[Any], parts: int = 2) -> list[Any]:
    """Return the cases as parameters, of which the days of `parts` days have one part each.

    Those that are not of today are marked slow.
    """
    day = datetime.datetime.strptime(os.environ[DAY], "%Y%m%d").date().toordinal()
    found = []
    for number, case in enumerate(cases):
        given = case if hasattr(case, "marks") else pytest.param(case)
        slow = [] if number % parts == day % parts else [pytest.mark.slow]
        found.append(pytest.param(*given.values, marks=[*given.marks, *slow], id=given.id))
    return found
