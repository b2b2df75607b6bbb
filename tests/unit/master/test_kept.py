"""The writings of versions before are read as they were meant: tests/kept/README.md."""

from __future__ import annotations

import pytest
from kept import books
from kept.folders import JOB, all_kept

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("kept", all_kept(*books.OF))
def test_what_a_version_has_left_is_read_as_it_was(kept, tmp_path, monkeypatch):
    monkeypatch.chdir(kept.place(tmp_path / "home"))

    assert kept.expected["told"] == books.OF[kept.expected["kind"]](tmp_path / "home" / JOB)
