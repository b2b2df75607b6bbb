"""Long cases that are alike take turns: a commit tests some of them, the next ones others.

Whose turn it is stands in the hash of what the commit holds, so that a commit is tested alike on
each day. EDL_TEST_TURN=12 tests those of that turn; `make test-all` tests all. Hypothesis draws
others for each commit too (tests/conftest.py), and fewer at a time.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

TURN = "EDL_TEST_TURN"
ALL_EXAMPLES = "EDL_TEST_ALL_EXAMPLES"
Test = TypeVar("Test", bound=Callable[..., Any])


def set_turn() -> None:
    """Choose the turn, for this process and those that it starts: 0 outside a repository."""
    if TURN in os.environ:
        return
    asked = ("git", "rev-parse", "HEAD^{tree}")
    said = subprocess.run(
        asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    os.environ[TURN] = str(int(said.stdout[:8] or "0", 16))


def turn() -> int:
    return int(os.environ[TURN])


def in_turn(number: int, parts: int = 4) -> Callable[[Test], Test]:
    """Mark a test to be left out but in one turn of so many."""
    has_turn = number % parts == turn() % parts
    return lambda test: test if has_turn else pytest.mark.other_turn(test)


def some(cases: Iterable[Any], parts: int = 2) -> list[Any]:
    """Return the cases as parameters, of which every so many-th is tested in a turn."""
    found = []
    for number, case in enumerate(cases):
        given = case if hasattr(case, "marks") else pytest.param(case)
        others = [] if number % parts == turn() % parts else [pytest.mark.other_turn]
        found.append(pytest.param(*given.values, marks=[*given.marks, *others], id=given.id))
    return found


def examples(number: int, parts: int = 3) -> int:
    """Return how many of a test's examples are drawn in a turn."""
    return number if os.environ.get(ALL_EXAMPLES) else -(-number // parts)
