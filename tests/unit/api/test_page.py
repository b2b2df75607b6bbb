"""What notebooks are shown: one table, in which nothing that a job says is markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.page import block, table
from edl.api.screen import NotebookScreen
from edl.common.clock import FakeClock

pytestmark = pytest.mark.fast

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;'


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[Any] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> _Tags:
    made = _Tags()
    made.feed(text)
    made.close()
    return made


def evil(text: str) -> dict[str, Any]:
    return {
        "job_name": text,
        "state": text,
        "message": text,
        "metrics": {text: 0.5},
        "checkpoint": text,
        "records_done": 1,
        "workers": [{"state": text}],
        "quarantined": [{"source": text, "records": [1], "error": text}],
    }


def test_a_table_says_what_a_status_says() -> None:
    shown = parsed(table({**evil("x"), "message": "why"}))

    assert {"table", "tr", "th", "td"} == shown.tags
    assert "metrics" not in shown.text
    for text in ("state", "x: why", "1 records", "x 0.5000", "quarantined", "workers1"):
        assert text in shown.text


@given(st.text() | st.just(EVIL))
def test_nothing_that_a_job_says_is_markup(text: str) -> None:
    for shown in (parsed(table(evil(text))), parsed(block([text, EVIL]))):
        assert shown.tags <= {"table", "tr", "th", "td", "pre"}
        assert [] == shown.attributes


def test_a_notebook_is_drawn_once_a_second_and_at_the_end() -> None:
    drawn: list[tuple[str, str]] = []
    clock = FakeClock()
    screen = NotebookScreen(lambda *both: drawn.append(both), {"job_name": "demo"}, clock)
    status = {
        "job_name": "demo",
        "state": "running",
        "records_done": 5,
        "events": [{"t": 1.0, "text": EVIL}],
    }

    with screen:
        screen.note("starting")
        for done in range(8):  # four a second, as a master's status comes
            screen.show({**status, "records_done": done})
            clock.advance(0.25)
        screen.end({**status, "state": "done"}, 0)

    assert 4 == len(drawn)
    assert [True, True] == [f"{n} records" in drawn[i][0] for i, n in ((1, 0), (2, 4))]
    assert ("starting", "<pre>starting</pre>") == drawn[0]
    assert f"[0:01] {EVIL}" in drawn[1][0]
    assert all(parsed(html).tags == {"pre"} for _, html in drawn)
    assert "done" in drawn[-1][0]
