"""The page about lists, run as it is written: one value on all ways, from CSV and from Parquet."""

import re
from pathlib import Path

import pytest
from tools.pages import run_page
from tools.stage import kill_jobs

PAGE = Path(__file__).parents[2] / "docs" / "lists.md"
PORTS = ("8000", "8001", "8010", "8011", "8020", "8021")


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    kill_jobs(tmp_path / "home")


def test_each_block_of_the_page_does_what_the_page_says(tmp_path, home):
    told = run_page(PAGE, tmp_path, home, PORTS)

    assert 3 == told.count("rows, the same bits")
    found = re.findall(r"(\d+) answers, off by (\S+) at most, JSON and bytes (\w+)", told)
    assert [("4000", "True")] * 3 == [(count, same) for count, _, same in found], told
    assert all(float(off) < 1e-6 for _, off, _ in found), told
    assert 2 == told.count("list of text")
