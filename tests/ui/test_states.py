"""Every state of a job, as the page shows it: what is there, what it counts, that it fits."""

from __future__ import annotations

from typing import Any

import pytest
from ui.story import KILLS, Story, change

pytestmark = pytest.mark.ui


def running(t: float = 75.0, **more: Any) -> Story:
    return Story(kills=KILLS, **more).advance(t)


def failed() -> Story:
    story = running(30)
    told = story.snapshot()
    story.extra = {
        "live": False,
        "health": {"level": "bad", "text": "Failed: 3 workers died of the same error."},
        "status": {**told["status"], "state": "failed", "message": "3 workers died"},
    }
    return story


def large() -> Story:
    kills = tuple((5 + at / 2, f"worker-{37 * at % 200}") for at in range(30))
    return Story(workers=200, tasks=20_000, rate=5_000, kills=kills).advance(24)


STATES = {
    "starting": lambda: Story().advance(0.25),
    "running": running,
    "worker killed": lambda: running(22.5),
    "server killed": lambda: running(41.5),
    "finished": lambda: running(200),
    "failed": failed,
    "200 workers, 20,000 tasks": large,
}
HOW = {
    "wide": {},
    "360 px": {"viewport": {"width": 360, "height": 780}},
    "dark": {"color_scheme": "dark"},
    "reduced motion": {"reduced_motion": "reduce"},
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_shows_its_counts_and_has_a_table_for_each_chart(state, visit):
    story = STATES[state]()
    told = story.snapshot()

    page = visit.job(story)

    assert told["health"]["text"] == page.inner_text(".health .sentence")
    assert _legend(page, ".part-tasks", "todo") == f"{_cells(told, 'todo'):,}"
    assert _legend(page, ".part-tasks", "leased") == f"{told['status']['tasks']['leased']:,}"
    done = [int(_legend(page, ".part-tasks", k).replace(",", "")) for k in ("done", "recomputed")]
    assert sum(done) == told["status"]["tasks"]["done"]
    for kind, name in (("done", "applied"), ("leased", "leased"), ("todo", "todo")):
        assert _legend(page, ".part-meter", kind) == f"{told['meter'][name]:,}"
    assert "0 lost" in page.inner_text(".verdict")
    dead = [life for life in told["incarnations"] if life["end"] == "killed"]
    assert len(dead) == page.locator(".inc.e-killed").count()
    assert len(dead) == page.locator(".tl-faults .fault").count()
    charts = page.locator(".stack, .strip, .tl, .plot")
    assert 0 < charts.count() == page.locator("details.twin table caption").count()


def _legend(page: Any, part: str, kind: str) -> str:
    return (
        page.inner_text(f"{part} .legend [data-kind='{kind}'] .value")
        if page.locator(f"{part} .legend:visible").count()
        else "0"
    )


def _cells(told: dict[str, Any], kind: str) -> int:
    return sum(count for state, count in told["tasks"]["runs"] if state == kind)


@pytest.mark.parametrize("how", HOW)
def test_the_page_fits_its_window_and_the_wish_of_its_reader(how, visit):
    page = visit.job(running(), **HOW[how])

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 128")
    assert light == (how != "dark")
    if how == "reduced motion":
        assert 0 == page.evaluate("document.getAnimations().length")


@pytest.mark.parametrize("state", ["starting", "200 workers, 20,000 tasks"])
def test_the_least_and_the_most_fit_a_phone(state, visit):
    page = visit.job(STATES[state](), **HOW["360 px"])

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_each_of_20000_tasks_is_painted_by_its_state(visit):
    story = large()
    told = story.snapshot()

    page = visit.job(story)

    painted = page.evaluate(
        """async () => {
            const { layout } = await import("/page/strip.js");
            const canvas = document.querySelector(".strip canvas");
            const place = layout(20000, canvas.parentElement.clientWidth);
            const scale = canvas.width / canvas.parentElement.clientWidth;
            const at = (index) => [...canvas.getContext("2d").getImageData(
                (index % place.columns + 0.5) * place.wide * scale,
                (Math.floor(index / place.columns) + 0.5) * place.high * scale, 1, 1).data];
            return [at(3), at(19990), place.columns * place.rows];
        }"""
    )
    assert told["tasks"]["runs"][0][0] in ("done", "recomputed")
    assert painted[0] != painted[1]
    assert painted[2] >= 20_000


def test_the_strip_says_of_each_task_what_it_is(visit):
    page = visit.job(running())
    holder = page.locator(".strip")

    holder.focus()
    page.keyboard.press("Home")

    assert "Task 0: done" == page.inner_text(".part-tasks .reading")
    page.keyboard.press("End")
    assert "Task 479: to do" == holder.get_attribute("aria-valuetext")


def test_names_and_texts_are_found_in_the_page(visit):
    page = visit.job(running())
    page.evaluate("document.activeElement.blur()")

    wanted = ["worker-3", "server-1", "auc", "worker 1 was killed by signal 9", "deepfm-clicks"]
    assert [] == [
        text for text in wanted if not page.evaluate("(t) => window.find(t, 0, 0, 1)", text)
    ]


def test_an_open_table_has_the_numbers_of_its_chart(visit):
    story = running()
    page = visit.job(story)

    page.click(".part-timeline .twin summary")
    page.click(".part-meter .twin summary")

    rows = page.locator(".part-timeline .twin tbody tr")
    assert rows.count() == len(story.snapshot()["incarnations"])
    assert "applied" in page.inner_text(".part-meter .twin tbody")


def test_a_killed_worker_is_marked_within_a_second(visit, site):
    story = running(30)
    page = visit.job(story)
    before = story.snapshot()

    page.focus("[aria-label*='worker-2: runs']")
    story.kill("worker-2")
    site.push(story.snapshot(), change(before, story.snapshot()))

    page.wait_for_selector("[aria-label*='worker-2: was killed']", timeout=1000)
    assert "worker-2: was killed" in page.inner_text(".part-timeline .reading")  # it has the focus
    page.wait_for_selector(".event.v-death:has-text('worker 2 was killed')", timeout=1000)
    assert "2" == page.inner_text("[data-figure='deaths'] .number")
    assert 0 == page.locator(".legend [data-kind]:has-text('NaN')").count()


def test_a_list_without_jobs_says_how_to_begin_and_fills_without_a_reload(visit, site):
    page = visit()
    page.wait_for_selector("text=No job is here yet.")

    site.put(running().snapshot())
    site.put(running(200, name="two-tower").snapshot())
    site.push_jobs()

    page.wait_for_selector("text=1 running, 1 ended")
    page.click("text=two-tower")
    page.wait_for_selector("text=Done: every record was applied exactly once.")
    page.go_back()
    assert page.wait_for_selector("text=1 running, 1 ended").is_visible()


def test_a_job_that_is_not_there_is_said(visit):
    visit.forgives = ("404",)

    page = visit("#/nobody")
    assert page.wait_for_selector("text=No job nobody.").is_visible()

    page = visit("#/100%")
    assert page.wait_for_selector("text=No job 100%.").is_visible()


def test_what_only_some_jobs_have_is_shown_where_it_is(visit):
    story = running()
    page = visit.job(story)
    some = [".part-teaching", ".part-schedule", ".part-cost", ".part-quarantined", ".part-kept"]
    assert 0 == page.locator(", ".join(f"{part}:visible" for part in some)).count()

    story.extra = {
        "teaching": {
            "wait_share": 0.125,
            "records": 1200,
            "cached": 300,
            "decisions": [
                {"t": 3, "wanted": 2, "before": 1, "why": "workers waited 12 % of their time"}
            ],
        },
        "schedule": {"why": "3 workers, since two-tower has the others", "workers": 3},
        "cost": {"useful_s": 360.0, "usd": 1.25},
        "status": {
            **story.snapshot()["status"],
            "quarantined": [{"source": "clicks.csv", "records": [7, 9], "error": "ValueError: x"}],
            "checkpoint": "/jobs/demo/checkpoints/version-000000000125",
            "resume": "/jobs/demo",
        },
    }
    page = visit.job(story)

    assert "12.5 %" in page.inner_text(".part-teaching")
    assert "two-tower has the others" in page.inner_text(".part-schedule")
    assert "$ 1.25" in page.inner_text(".part-cost")
    assert "clicks.csv 7, 9\tValueError: x" in page.inner_text(".part-quarantined")
    assert "edl train --resume /jobs/demo" in page.inner_text(".part-kept")


def test_what_would_turn_a_text_round_is_told_by_its_number(visit):
    story = running(10)
    story.extra = {"health": {"level": "warn", "text": "ValueError: \u202egnp.exe"}}

    page = visit.job(story)

    assert r"ValueError: \u202egnp.exe" == page.inner_text(".health .sentence")


def test_a_long_path_takes_three_lines_of_a_phone_until_it_is_tapped(visit):
    story = running(10)
    path = "/very/long/folder" * 20
    story.extra = {"health": {"level": "bad", "text": f"Failed: there is no file {path}"}}
    height = "() => document.querySelector('.health .sentence').clientHeight"

    page = visit.job(story, viewport={"width": 360, "height": 780})
    short = page.evaluate(height)
    page.click(".health")

    assert short <= 3 * 17 * 1.3 + 2 < page.evaluate(height)
