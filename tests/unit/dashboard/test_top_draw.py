"""The screen of `edl top`: as large as the terminal, telling the snapshot, and nothing else."""

import io
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from edl.common.plain import inert
from edl.dashboard.terminal import events, texts
from edl.dashboard.terminal.draw import frame, snapshot_lines
from edl.dashboard.terminal.events import Key, Listed, Seen
from edl.dashboard.terminal.machine import State, step

from .top_snapshots import HOSTILE, NOW, all_kinds, empty, failed, heard, hostile, launched, played

SIZES = [(80, 24), (60, 20), (140, 40), (200, 60), (20, 5), (1, 1)]


def opened(snapshot, height=24, *keys):
    state = State(job="deepfm", alone=True, height=height)
    state, _ = step(state, Seen("deepfm", snapshot))
    for key in keys:
        state, _ = step(state, Key(key))
    return state


def shown(snapshot, width=80, height=24, *keys):
    return text_of(opened(snapshot, height, *keys), width)


def text_of(state, width=80):
    return "\n".join(line.plain for line in frame(state, width, NOW))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("snapshot", all_kinds(), ids=lambda s: str(len(s["incarnations"])))
def test_every_screen_is_filled_and_none_is_too_large(snapshot, width, height):
    for keys in ((), ("l",), ("+",), ("?",)):
        lines = frame(opened(snapshot, height, *keys), width, NOW)
        assert [width] * height == [line.cell_len for line in lines]


def test_a_job_at_80_by_24_tells_all_its_parts():
    snapshot = {**played(), "at": NOW, "heard_s": 0.25}
    text, meter = shown(snapshot), snapshot["meter"]

    assert snapshot["health"]["text"] in text
    assert "heard 0.2 s ago" in text
    assert f"0 lost · 0 twice · applied {meter['applied']:,} · leased {meter['leased']:,}" in text
    assert f"{meter['applied']:,}/{meter['total']:,} records" in text
    assert f"{snapshot['scalars']['loss'][-1][2]:.4f}" in text
    assert "recomputed 512" in text
    for name in ("master", *(f"worker-{n}" for n in range(4)), "server-0", "server-1"):
        assert f"  {name} " in text or f"> {name} " in text
    assert f"{snapshot['shards'][0]['rows']:,}" in text
    assert snapshot["events"][-1]["text"] in text
    assert "s sort: process" in text.splitlines()[-1]
    assert "state▼" in shown(snapshot, 80, 24, "s", "r")


def test_the_page_and_the_terminal_say_the_same_of_a_process():
    row = played()["status"]["workers"][2]
    line = next(line for line in shown(played()).splitlines() if "  worker-2 " in line)

    assert line.split() == [
        "worker-2",
        row["state"],
        "1",
        row["incarnation"],
        f"{row['records_per_s']:,.0f}",
        "rec/s",
        f"{row['heartbeat_age_s']} s".split()[0],
        "s",
        str(row["task"]),
        "-",
    ]


def test_a_task_of_no_plan_has_a_short_number():
    told = heard(
        {"job_name": "a", "workers": [{"index": 0, "state": "evaluating", "task": 10**12 + 7}]}
    )

    assert "evaluating" in shown({**told, "health": {"level": "good", "text": "Evaluates."}})
    assert " +7 " in shown(told)


def test_of_200_workers_those_around_the_cursor_are_shown():
    assert "1-" in shown(played(200))
    assert "of 203" in shown(played(200))
    assert "> server-1" in shown(played(200), 80, 24, "end")
    assert "> worker-9 " in shown(played(200), 80, 24, *["down"] * 10)


def test_a_wide_screen_has_the_servers_beside_the_processes():
    lines = shown(played(), 140, 40).splitlines()

    assert any("process" in line and "server " in line for line in lines)


def test_what_is_not_known_is_not_drawn():
    text = shown(empty())

    assert "not heard" in text
    assert "meter" not in text
    assert "loss" not in text
    assert "events" not in text


def test_a_failed_job_says_why_and_which_records_were_skipped():
    text = shown(failed())

    assert "Failed: worker 0 failed 3 times: ZeroDivisionError." in text
    assert r"skipped   [red]\x1b[2J" in text
    assert "record 3: ValueError: x" in shown(failed(), 120)
    assert "x stop" in shown(played())
    assert "x stop" not in text  # the actions are the snapshot's


def test_a_scripts_job_has_nodes_and_says_why_it_waits():
    text = shown(launched())

    assert "waits for a second node" in text
    assert "node-0" in text
    assert "train.py" in text
    assert "Scale deepfm from 1 to 2 nodes?" in shown(launched(), 80, 24, "+")


def test_where_the_others_wait_is_told():
    snapshot = {**played(), "schedule": {"why": "it waits for a slot", "workers": 3}}
    snapshot["teaching"] = {"wait_share": 0.25, "cached": 1200, "teachers": [{"index": 0}]}
    snapshot["cost"] = {"usd": 1.25}
    text = shown(snapshot)

    assert "it waits for a slot · workers 3" in text
    assert "1 there · workers wait 25 % · cached 1,200" in text
    assert "usd 1.25" in text


def test_the_next_curve_is_shown_at_m():
    assert " loss " in shown(played())
    assert " auc " in shown(played(), 80, 24, "m")
    assert shown(played()) == shown(played(), 80, 24, "m", "m")
    assert " auc " in shown(played(), 80, 40)  # there is room for both


def test_the_list_has_a_row_for_each_job():
    jobs = [snapshot["status"] for snapshot in all_kinds()]
    text = text_of(step(State(), Listed(jobs))[0])

    assert "jobs · 7" in text
    for job in jobs:
        assert f"  {inert(job['job_name'])[:10]}" in text.replace(">", " ")
    assert 1 == text.count(" 22 %")


def test_where_nothing_is_known_that_is_said():
    assert "There are no jobs here" in text_of(step(State(), Listed([]))[0])
    assert "Asking" in text_of(State())


def test_a_question_about_a_job_of_a_long_name_is_whole_on_a_small_screen():
    name = "a" * 63
    state, _ = step(State(job=name, alone=True), Seen(name, played()))
    state, _ = step(state, Key("x"))

    assert f"Stop {'a' * 19}…?  y: yes  n: no" in text_of(state, 60)


# -- nothing that anybody says does anything


def is_inert(text):
    return all(
        character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
        for character in text
    )


@pytest.mark.parametrize("keys", [(), ("l",), ("x",), ("+",), ("m",), ("?",)])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_hostile_names_are_inert_and_no_markup(keys, width):
    state = opened(hostile(), 50, *keys)
    state, _ = step(state, events.Lines("master", [HOSTILE], True))
    state, _ = step(state, events.Told(HOSTILE)) if not keys else (state, ())

    assert is_inert(text_of(state, width))
    if keys in ((), ("l",)):
        assert r"[red]\x1b[2J" in text_of(state, width)


def test_hostile_jobs_are_inert_in_the_list_and_off_the_screen():
    state, _ = step(State(), Listed([hostile()["status"]]))

    assert is_inert(text_of(state, 200))
    told = "\n".join(line.plain for line in snapshot_lines(opened(hostile()), 160, NOW))
    assert is_inert(told)


@given(st.text())
def test_any_text_is_inert(text):
    assert is_inert(inert(text))
    assert "\n" not in inert(text)


def test_what_can_be_read_stays_as_it_is():
    assert "Größe 大 ½ [a]" == inert("Größe 大 ½ [a]")
    assert r"a    b\x1b c\u202e" == inert("a\tb\x1b\u00a0c\u202e")


def printed(lines, **how):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, **how)
    console.print(Text("\n").join(lines), no_wrap=True, crop=False, overflow="ignore")
    return console.file.getvalue()


def test_without_colours_everything_is_said_all_the_same():
    lines = frame(opened(played()), 80, NOW)

    coloured = printed(lines, color_system="truecolor", no_color=False)
    without = printed(lines, color_system="truecolor", no_color=True)
    assert "\x1b[32m" in coloured  # green
    assert "\x1b[32m" not in without
    assert "\x1b[7m" in without
    for use in ("█ useful", "▓ recomputed"):  # a character beside each colour
        assert use in text_of(opened(played()))


def test_a_terminal_of_ascii_gets_ascii():
    lines = frame(opened(hostile()), 80, NOW, ascii_only=True)

    assert all(line.plain.isascii() for line in lines)
    assert [80] * 24 == [line.cell_len for line in lines]


def test_a_metric_that_is_no_number_is_told_as_that():
    told = {"version": 1, "metrics": {"auc": math.nan}}
    status = {"job_name": "deepfm", "state": "running", "loss": math.inf, "evaluations": [told]}

    lines = [" ".join(line.split()) for line in shown(heard(status), 80, 40).splitlines()]

    assert any(line.startswith("loss inf") for line in lines)
    assert any(line.startswith("auc nan") for line in lines)


# -- small drawings


def test_a_curve_keeps_its_shape():
    points = [(n, float(n), float(n)) for n in range(100)]

    assert "▁▂▃▄▅▆▇█" == texts.curve(points, 8)
    assert "█▁" == texts.curve([(0, 0.0, 5.0), (1, 1.0, math.nan), (2, 2.0, 1.0)], 2)
    assert "" == texts.curve([(0, 0.0, math.nan)], 5)
    assert "▅" == texts.curve([(0, 0.0, 5.0)], 1)
    assert 4 == len(texts.curve([(0, 0.0, float("inf")), (1, 1.0, 1e308), (2, 2.0, -1e308)], 4))


@given(
    st.dictionaries(st.sampled_from([*texts.USES, "else"]), st.floats(0, 1e9), max_size=8),
    st.integers(8, 60),
)
def test_a_bar_of_uses_is_never_too_long(shares, width):
    made = texts.parts(shares, width)

    assert made.cell_len <= width
    used = [name for name, value in shares.items() if value > 0 and name in texts.USES]
    assert {texts.USES[name][0] for name in used} == set(made.plain)


def test_a_meter_is_full_only_at_its_end():
    assert ("░░", "█░", "██") == tuple(texts.meter(share, 2).plain for share in (0, 0.5, 1))
    assert "██" == texts.meter(7.0, 2).plain


def test_ages_go_on_between_two_snapshots():
    state = opened(heard({"job_name": "deepfm", "state": "running"}))

    assert "heard 0.0 s ago" in frame(state, 80, NOW)[0].plain
    assert "heard 7.5 s ago" in frame(state, 80, NOW + 7.5)[0].plain
