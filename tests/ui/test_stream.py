"""The stream: what comes is drawn at once, a line that is cut comes back, nothing is doubled."""

from __future__ import annotations

import os
import time

import pytest
from ui.story import KILLS, Story, change

pytestmark = pytest.mark.ui

HEAP_S = float(os.environ.get("EDL_UI_HEAP_S", "180"))


def play(site, story, seconds: float, every: float = 0.25) -> None:
    """Let the job go on, and tell the pages, as fast as it goes."""
    before = story.snapshot()
    for _ in range(round(seconds / every)):
        after = story.advance(every).snapshot()
        site.push(after, change(before, after))
        before = after


def ids(page) -> list[str]:
    return page.eval_on_selector_all(".event", "all => all.map(one => one.dataset.id)")


def test_what_is_told_is_what_a_fresh_page_shows(visit, site):
    story = Story(kills=KILLS).advance(20)
    page = visit.job(story)

    play(site, story, 50)
    last = story.snapshot()["events"][-1]["id"]
    page.wait_for_selector(f".event[data-id='{last}']")
    fresh = visit.job(story)

    for part in (
        ".figures",
        ".part-meter .legend",
        ".part-tasks .legend",
        ".part-shards",
        ".events",
    ):
        assert fresh.inner_text(part) == page.inner_text(part), part
    bars = "all => all.map(one => one.getAttribute('aria-label'))"
    assert fresh.eval_on_selector_all(".inc", bars) == page.eval_on_selector_all(".inc", bars)


def test_a_stream_that_is_cut_comes_back_without_reload_and_without_doubled_events(visit, site):
    visit.forgives = ("503", "ERR_")
    story = Story(kills=KILLS).advance(30)
    page = visit.job(story)
    page.evaluate("window.sameDocument = true")
    assert "live" in page.inner_text(".fresh")

    site.cut()
    page.wait_for_selector(".fresh:has-text('connection lost')")
    assert "Trains" in page.inner_text(".health")
    story.advance(15)
    site.put(story.snapshot())
    site.is_down = False

    last = story.snapshot()["events"][-1]["id"]
    page.wait_for_selector(f".event[data-id='{last}']")
    page.wait_for_selector(".fresh:has-text('live')")
    assert page.evaluate("window.sameDocument")
    assert sorted(set(ids(page))) == sorted(ids(page))
    assert len(ids(page)) == len(story.snapshot()["events"])
    play(site, story, 5)
    page.wait_for_function("() => document.querySelectorAll('.inc').length > 0")
    assert sorted(set(ids(page))) == sorted(ids(page))


def test_a_master_that_is_gone_is_said(visit, site):
    story = Story().advance(20)
    page = visit.job(story)
    before = story.snapshot()

    story.extra = {
        "live": False,
        "health": {"level": "bad", "text": "The master is gone without a result."},
        "status": {**before["status"], "state": "silent"},
    }
    site.push(story.snapshot(), change(before, story.snapshot()))

    page.wait_for_selector(".fresh:has-text('its master does not answer')")
    assert page.wait_for_selector(".health.l-bad").inner_text() == story.extra["health"]["text"]


def test_a_server_of_another_schema_is_said(visit, site):
    story = Story().advance(20)
    page = visit.job(story)

    site.push(story.snapshot(), {**story.snapshot(), "schema": "edl-dashboard-9"}, "snapshot")

    assert page.wait_for_selector(".fresh:has-text('load it anew')").is_visible()


def test_a_change_is_painted_within_300_ms(visit, site):
    took = painted_in(visit, site, 20)

    assert took[10] <= 0.3  # the median: the machine of a test may be busy


@pytest.mark.slow
def test_of_twenty_changes_nineteen_are_painted_within_300_ms(visit, site):
    took = painted_in(visit, site, 100)

    print(f"event to paint: median {1000 * took[50]:.0f} ms, p95 {1000 * took[95]:.0f} ms")
    assert took[95] <= 0.3


def painted_in(visit, site, changes: int) -> list[float]:
    """Return the seconds from a change at the server to its line in the page, sorted."""
    story = Story().advance(20)
    page = visit.job(story)
    took = []
    for number in range(changes):
        before = story.snapshot()
        story.tell(f"mark {number}")
        after = story.snapshot()
        began = time.monotonic()
        site.push(after, change(before, after))
        page.wait_for_selector(f".event[data-id='{after['events'][-1]['id']}']", state="attached")
        took.append(time.monotonic() - began)
    return sorted(took)


def cpu_s(session) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in metrics}["TaskDuration"]


def heap(session) -> float:
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in metrics}["JSHeapUsedSize"]


@pytest.mark.slow
def test_the_heap_does_not_grow(visit, site):
    story = Story(
        workers=8,
        tasks=6000,
        rate=600,
        kills=tuple((9.0 * n, f"worker-{n % 8}") for n in range(1, 60)),
    )
    page = visit.job(story.advance(150))  # its series are full
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    play(site, story, 5)
    page.wait_for_timeout(5000)
    before = heap(session)

    end = time.monotonic() + HEAP_S
    while time.monotonic() < end:
        play(site, story, 0.25)
        page.wait_for_timeout(250)

    grown = heap(session) - before
    print(f"heap: {before / 2**20:.1f} MiB, {grown / 2**20:+.2f} MiB in {HEAP_S:.0f} s")
    assert grown < 5e6


@pytest.mark.slow
def test_a_thousand_replicas_take_a_twentieth_of_a_core(visit, site):
    story = Story(workers=1000, tasks=20_000, rate=1000).advance(10)
    page = visit.job(story)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the processor
    page.wait_for_timeout(2000)
    rows = story.snapshot()["status"]["workers"]
    before, began = cpu_s(session), time.monotonic()

    for number in range(80):
        was = story.snapshot()
        story.advance(0.25)
        if number % 20 == 7:
            story.kill(f"worker-{number}")
        now = story.snapshot()
        told = change(was, now)
        told["status"].pop("workers", None)  # as the server does: passing figures are not sent
        if number % 20 == 7:
            told["status"]["workers"] = rows
        site.push(now, told)
        page.wait_for_timeout(max(0, 1000 * (began + 0.25 * (number + 1) - time.monotonic())))

    share = (cpu_s(session) - before) / (time.monotonic() - began)
    print(f"1,000 replicas: {100 * share:.1f} % of a core")
    assert share <= 0.05
