"""The example of docs/goodput.md shows what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

PAGE = Path(__file__).parents[3] / "docs" / "goodput.md"


def test_the_page_s_example_runs_and_shows_these_numbers():
    found = doctest.testfile(str(PAGE), module_relative=False)

    assert (0, True) == (found.failed, found.attempted >= 10)
