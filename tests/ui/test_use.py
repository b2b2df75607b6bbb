"""The page is used: by keyboard, by screen readers, with actions, and with hostile names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ui.story import KILLS, Story, change

pytestmark = pytest.mark.ui

ALL = ["scale", "checkpoint", "suspend", "resume", "stop", "kill"]
PHONE = {"viewport": {"width": 360, "height": 780}}
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\';--'


def running(t: float = 75.0, **more) -> Story:
    return Story(kills=KILLS, **more).advance(t)


def acting() -> Story:
    story = running()
    story.extra = {"actions": ALL}
    return story


@pytest.mark.parametrize("how", [{}, {"color_scheme": "dark"}, PHONE])
@pytest.mark.parametrize("t", [0.25, 23.0, 75.0, 200.0])
def test_axe_finds_nothing_serious(t, how, visit, findings):
    story = running(t)
    story.extra = {"actions": ALL}

    page = visit.job(story, **how)
    for summary in page.query_selector_all("details.twin:visible > summary"):
        summary.click()

    assert [] == findings(page, contrast=how is not PHONE)  # a phone's colours are a window's


def test_axe_finds_nothing_serious_in_the_list_and_in_a_question(visit, site, findings):
    page = visit.job(acting())
    page.click("[data-action='kill']")
    assert [] == findings(page)

    page = visit()
    page.wait_for_selector("text=1 running, 0 ended")
    assert [] == findings(page)


def test_everything_is_reached_by_the_tab_key_in_order(visit):
    page = visit.job(acting())
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => { const e = document.activeElement; return e === document.body ? 'end' :
                e.dataset.action || e.id || e.className || e.textContent; }"""
            )
        )
        if reached[-1] == "end":
            break

    assert ["skip", *ALL] == [each for each in reached if each in ("skip", *ALL)]
    for wanted in ("strip", "plot", "log-who", "log-find", "log-follow"):
        assert wanted in reached
    assert 1 == len([each for each in reached if each.startswith("inc")])  # one stop, then arrows
    assert "end" == reached[-1]


def test_focus_is_seen(visit):
    page = visit.job(acting())

    for _ in range(3):
        page.keyboard.press("Tab")

    assert "solid" == page.evaluate("getComputedStyle(document.activeElement).outlineStyle")


def test_arrows_walk_through_the_incarnations(visit):
    page = visit.job(running())
    page.focus(".inc[tabindex='0']")
    read = []

    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "ArrowRight", "End"):
        page.keyboard.press(key)
        read.append(page.inner_text(".part-timeline .reading"))

    assert read[0].startswith("server-0: runs since")
    assert read[1].startswith("server-1, incarnation 2 of 2: runs since")
    assert read[2].startswith("server-1, incarnation 1 of 2: was killed at 0:41")
    assert read[3] == read[1]
    assert read[4].startswith("worker-3")


def test_the_skip_button_goes_to_the_content(visit):
    page = visit.job(running())

    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    assert "main" == page.evaluate("document.activeElement.id")


@pytest.mark.parametrize(
    ("action", "keys", "body"),
    [
        ("scale", ["Control+A", "6"], {"action": "scale", "num_workers": 6}),
        ("checkpoint", [], {"action": "checkpoint"}),
        ("suspend", [], {"action": "suspend"}),
        ("resume", [], {"action": "resume"}),
        ("stop", [], {"action": "stop"}),
        ("kill", ["ArrowDown"], {"action": "kill", "role": "worker", "index": 1}),
    ],
)
def test_an_action_asks_first_and_is_done_by_keyboard(action, keys, body, visit, site):
    page = visit.job(acting())
    page.focus(f"[data-action='{action}']")

    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    assert [] == site.posted
    assert action == page.evaluate("document.activeElement.dataset.action")

    page.keyboard.press("Enter")
    for key in keys:
        page.keyboard.press(key)
    page.focus("dialog button[type='submit']")
    page.keyboard.press("Enter")

    page.wait_for_selector(f".answer:has-text('{action}: asked for')")
    assert [body] == site.posted


def test_an_action_that_is_refused_says_why_in_the_question(visit, site):
    visit.forgives = ("409",)
    site.refuses = "A job of allreduce cannot be scaled below 2 workers."
    page = visit.job(acting())

    page.click("[data-action='scale']")
    page.click("dialog button[type='submit']")

    said = page.wait_for_selector(f"dialog[open] .error:has-text('{site.refuses}')")
    assert said.is_visible()


def test_only_what_the_server_names_can_be_done(visit):
    page = visit.job(running())
    assert 0 == page.locator("[data-action]").count()

    story = running()
    story.extra = {"actions": ["stop", "unheard-of"]}
    page = visit.job(story)
    assert ["Stop…"] == page.locator("[data-action]").all_inner_texts()


def test_logs_are_shown_found_and_followed(visit, site):
    site.logs = {"worker-1": "one\nTraceback: two\nthree", "master-0": "of the master"}
    page = visit.job(running())

    page.select_option("#log-who", "worker/1")
    page.wait_for_selector(".log:has-text('Traceback')")
    page.fill("#log-find", "traceb")
    assert "Traceback: two" == page.inner_text(".log")
    page.fill("#log-find", "")
    site.logs["worker-1"] += "\nfour"
    page.check("#log-follow")
    page.wait_for_selector(".log:has-text('four')")


def test_events_are_told_to_screen_readers_at_most_every_five_seconds(visit, site):
    story = running(30)
    page = visit.job(story)
    page.evaluate(
        """() => {
            window.told = [];
            const all = {childList: true, characterData: true, subtree: true};
            const log = document.querySelector("[role=log]");
            new MutationObserver(() => window.told.push(1)).observe(log, all);
        }"""
    )

    for number in range(30):
        before = story.snapshot()
        story.tell(f"storm {number}", "death")
        site.push(story.snapshot(), change(before, story.snapshot()))
    page.wait_for_selector(".event:has-text('storm 29')")
    page.wait_for_timeout(300)

    assert 1 == page.evaluate("window.told.length")


def test_hostile_names_and_texts_are_only_text(visit, site):
    story = running(30, name=HOSTILE)
    story.tell(HOSTILE, HOSTILE)
    story.scalars[HOSTILE] = [[1, 2.0, 3.0], [2, 3.0, 4.0]]
    told = story.snapshot()
    told["incarnations"][-1] |= {
        "name": HOSTILE,
        "machine": HOSTILE,
        "role": HOSTILE,
        "why": HOSTILE,
    }
    told["incarnations"][-1] |= {"ended": 20.0, "end": f'" {HOSTILE}'}
    told["shards"][0] |= {"name": HOSTILE, "state": HOSTILE}
    told["health"] = {"level": f'x" {HOSTILE}', "text": HOSTILE}
    told["status"] |= {"message": HOSTILE, "state": HOSTILE}
    told["schedule"] = {"why": HOSTILE, HOSTILE: HOSTILE}
    told["actions"] = [*ALL, HOSTILE]
    told["tasks"]["by"] = [HOSTILE] * len(told["tasks"]["runs"])
    site.logs = {"worker-0": HOSTILE}
    site.put(told)

    page = visit()
    page.wait_for_selector("table.jobs tbody tr")
    page.click("table.jobs a")
    page.wait_for_selector(".event")
    page.select_option("#log-who", "worker/0")
    page.wait_for_selector(".log:has-text('onerror')")
    for summary in page.query_selector_all("details.twin:visible > summary"):
        summary.click()
    page.click("[data-action='kill']")
    page.wait_for_timeout(200)

    assert page.evaluate("window.hit") is None
    assert 0 == page.locator("#app img, #app script, #app style, #app iframe").count()
    assert HOSTILE == page.inner_text("h1")
    assert HOSTILE in page.inner_text(".events")


def test_a_saved_file_opens_from_the_disk_and_asks_nobody(visit, tmp_path):
    from edl.dashboard.single_file import single_file

    story = running(200, name=HOSTILE)
    story.tell("</script><script>window.hit=1</script>")
    saved = tmp_path / "job.html"
    saved.write_text(single_file(story.snapshot()), encoding="utf-8")

    page = visit(url=saved.as_uri())
    page.wait_for_selector("text=Done: every record was applied exactly once.")

    assert page.inner_text(".fresh").startswith("saved ")
    assert page.evaluate("window.hit") is None
    assert 2 == page.locator(".plot canvas").count()
    assert 0 == page.locator(".part-logs:visible, [data-action]").count()
    assert page.locator(".inc.e-killed").count() == len(KILLS)


def test_the_pure_modules_do_what_their_tests_under_node_say():
    if shutil.which("node") is None:
        pytest.skip("the page's pure modules are tested by node: apt-get install nodejs")
    tests = sorted(Path(__file__).parent.glob("*.test.mjs"))
    command = ["node", "--test", *map(str, tests)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
