"""Names of bases and deltas, and what leads on from where."""

from __future__ import annotations

import pytest

from edl.common import deltas
from edl.common.deltas import Name

pytestmark = pytest.mark.fast


def names(text):
    """Return names by a shorthand: `b3` is the base of cut 3, `2-3` the delta to it from cut 2."""
    made = []
    for word in text.split():
        since, _, number = word.rpartition("-")
        made.append(Name(int(number), int(since)) if since else Name(int(word[1:])))
    return made


def shorthand(found):
    return " ".join(f"b{n.number}" if n.since is None else f"{n.since}-{n.number}" for n in found)


def test_a_name_says_what_it_is():
    for name in names("b3 2-3 b123456789012345"):
        assert name == deltas.parsed(str(name))
    assert "delta-000000000002-000000000003" == str(Name(3, 2))


@pytest.mark.parametrize(
    "name",
    [
        "base-3",
        "delta-000000000003-000000000003",
        "delta-000000000004-000000000003",
        "base-000000000003.1",
        "base-0000000000003",
        "delta-0000000000002-000000000003",
        "version-000000000003",
        "LATEST",
        "",
    ],
)
def test_what_is_no_base_and_no_delta_has_another_name(name):
    assert deltas.parsed(name) is None


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ("", 0, ""),
        ("b1", 0, "b1"),
        ("b1 1-2 2-3", 0, "b1"),
        ("b1 1-2 2-3", 1, "1-2"),
        ("b1 1-2 2-3", 3, ""),
        ("b1 1-2 2-3 b3", 0, "b3 b1"),
        ("b1 1-2 2-3 b3", 2, "2-3 b3"),
        ("2-4 2-3 b5 b9", 2, "2-4 2-3 b9 b5"),
        ("b1 4-5 b5 5-6", 3, "b5"),
        ("b1 1-2", 7, ""),
        ("0-1 b1", 0, "b1"),
    ],
)
def test_a_delta_from_here_leads_on_and_then_the_newest_base(there, here, expected):
    assert expected == shorthand(deltas.candidates(deltas.found(map(str, names(there))), here))


def test_what_is_bad_is_passed_over():
    there = names("1-2 b2 b3")

    assert "b3" == shorthand(deltas.candidates(there, 1, bad=names("1-2 b2")))


@pytest.mark.parametrize(
    ("there", "expected"),
    [("2-3 b3", "b3 2-3"), ("2-3 b3 3-4", "2-3 b3"), ("b4 2-3", "b4 2-3")],
)
def test_a_base_that_leads_as_far_may_go_before_a_delta(there, expected):
    assert expected == shorthand(deltas.candidates(names(there), 2, base_first=True))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("b1 1-2 2-3", ""),
        ("b1 1-2 2-3 b3 3-4", ""),
        ("b1 1-2 2-3 b3 3-4 4-5 b5", "b1 1-2 2-3"),
        ("0-1 1-2 b2 b3", "0-1 1-2"),
    ],
)
def test_what_is_older_than_the_two_newest_bases_is_of_no_use(there, expected):
    assert expected == shorthand(deltas.obsolete(names(there)))
