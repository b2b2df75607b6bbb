"""What follows of keys and news: no order of them breaks it, and nothing is done unasked."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.dashboard.terminal import events as news
from edl.dashboard.terminal import machine, tables
from edl.dashboard.terminal.draw import frame
from edl.dashboard.terminal.events import Act, Close, Follow, Key, Listed, Open, Quit
from edl.dashboard.terminal.machine import State, step

from .top_snapshots import HOSTILE, NOW, all_kinds, empty, launched, played

KEYS = [*"jkgGsSrlmc+-=xzynq?f12 0", "up", "down", "left", "right", "home", "end"]
KEYS += ["pageup", "pagedown", "enter", "esc", "backspace", "tab"]
LIST = [each["status"] for each in all_kinds()]


def pressed(state, *keys):
    """Return the state after these keys, and all their effects."""
    effects = []
    for key in keys:
        state, more = step(state, Key(key))
        effects += more
    return state, effects


def text_of(lines):
    return "\n".join(line.plain for line in lines)


def opened(snapshot=None, **more):
    state = State(job="deepfm", alone=True, **more)
    return step(state, news.Seen("deepfm", snapshot or played()))[0]


# -- any sequence


def check(before, event, state, effects):
    """Check what holds after each step."""
    names = [machine.name_of(row) for row in state.rows]
    cursor = state.cursor
    assert (cursor.at, cursor.row) == (0, "") if not names else names[cursor.at] == cursor.row
    if state.log is not None:
        assert 0 <= state.log.below <= len(state.log.lines)
    for act in [each for each in effects if isinstance(each, Act)]:
        assert before.ask is not None
        assert (Key("y"), None) == (event, before.ask.number)
        assert (before.ask.asked, before.job) == (act.asked, act.job)
        assert act.asked["action"] in before.actions


events = st.one_of(
    st.sampled_from(KEYS).map(Key),
    st.lists(st.sampled_from(LIST), max_size=4).map(Listed),
    st.builds(news.Seen, st.sampled_from(["deepfm", "script"]), st.sampled_from(all_kinds())),
    st.builds(
        news.Lines,
        st.sampled_from(["master", "worker-0"]),
        st.lists(st.sampled_from(["a line", HOSTILE, ""]), max_size=50),
        st.booleans(),
    ),
    st.just(news.Told(HOSTILE)),
    st.integers(1, 50).map(news.Height),
)


@given(
    st.lists(events, max_size=40), st.booleans(), st.integers(1, 150), st.sampled_from(all_kinds())
)
def test_nothing_breaks_it_and_nothing_is_done_without_a_yes(events, alone, width, first):
    state = State(job="deepfm" if alone else "", alone=alone)
    if alone:
        state, _ = step(state, news.Seen("deepfm", first))
    for event in events:
        before = state
        state, effects = step(state, event)

        check(before, event, state, effects)
    lines = frame(state, width, NOW)
    assert [width] * state.height == [line.cell_len for line in lines]


@given(st.lists(st.sampled_from([*"xcyn+-17?q", "enter", "esc", "backspace"]), max_size=12))
def test_no_order_of_keys_acts_without_a_yes_to_a_question_that_was_shown(keys):
    state = opened()
    for key in keys:
        before, shown = state, text_of(frame(state, 80, NOW))
        state, effects = step(state, Key(key))

        check(before, Key(key), state, effects)
        if any(isinstance(effect, Act) for effect in effects):
            assert f"{machine.question(before, before.ask)}  y: yes" in shown


# -- the list


def test_a_job_of_the_list_is_opened_and_left():
    state, _ = step(State(), Listed([{"job_name": "a"}, {"job_name": "b"}]))

    state, effects = pressed(state, "down", "enter")
    assert ("a", [Open("a")]) == (state.job, effects)  # the newest is first
    state, effects = pressed(state, "esc")
    assert ("", [Close()], "a") == (state.job, effects, state.cursor.row)
    assert [Quit()] == pressed(state, "q")[1]


def test_jobs_that_go_on_are_before_those_that_ended_and_the_cursor_stays_on_its_job():
    ended, runs = {"job_name": "a", "state": "done"}, {"job_name": "b", "state": "running"}
    state, _ = step(State(), Listed([runs, ended]))
    assert ["b", "a"] == [row["job_name"] for row in state.rows]

    state, _ = pressed(state, "down")
    state, _ = step(state, Listed([{**runs, "state": "done"}, {**ended, "state": "running"}]))
    assert ("a", 0) == (state.cursor.row, state.cursor.at)
    state, _ = step(state, Listed([runs]))
    assert ("b", 0) == (state.cursor.row, state.cursor.at)
    assert "" == step(state, Listed([]))[0].cursor.row


# -- one job


def test_processes_are_sorted_by_the_next_column_and_the_other_way_round():
    state = opened()
    by_rate = [column.name for column in tables.PROCESSES].index("rate")

    state, _ = pressed(state, *"s" * by_rate)
    falling = [row["name"] for row in state.rows]
    assert ["worker-3", "worker-2", "worker-1", "worker-0"] == falling[:4]
    rising = [row["name"] for row in pressed(state, "r")[0].rows]
    assert ["master", "worker-3"] == [rising[-1], rising[-2]]  # what has no rate stays last
    assert "process" == tables.PROCESSES[pressed(state, *"S" * by_rate)[0].cursor.column].name


def test_a_process_that_comes_before_the_cursor_does_not_move_it():
    state, _ = pressed(opened(played(4)), "end", "up", "up")
    assert "worker-3" == state.cursor.row

    state, _ = step(state, news.Seen("deepfm", played(200)))
    assert ("worker-3", 4) == (state.cursor.row, state.cursor.at)


def test_news_of_another_job_are_none():
    state = opened()

    assert state == step(state, news.Seen("another", empty()))[0]


def test_a_job_that_was_asked_for_alone_is_left_to_the_shell():
    assert [Quit()] == pressed(opened(), "esc")[1]


@pytest.mark.parametrize(
    ("keys", "number"), [("+", 5), ("-", 3), ("++-+", 6), ("c12\r", 12), ("-------", 1)]
)
def test_workers_are_scaled_only_after_a_yes(keys, number):
    state, effects = pressed(opened(), *["enter" if key == "\r" else key for key in keys])
    assert [] == effects
    assert f"from 4 to {number} workers?" in machine.question(state, state.ask)

    assert [] == pressed(state, "n", "y")[1]
    state, effects = pressed(state, "y")
    assert [Act("deepfm", {"action": "scale", "num_workers": number})] == effects
    assert state.ask is None


@pytest.mark.parametrize("no", ["n", "esc", "q"])
def test_a_no_does_nothing(no):
    state, effects = pressed(opened(), "x", no, "y")

    assert ([], None) == (effects, state.ask)


def test_a_number_that_is_none_is_asked_for_again():
    state, effects = pressed(opened(), "c", "enter", "0", "enter", "backspace", "a", "y", "enter")

    assert ([], "") == (effects, state.ask.number)
    assert "99999" == pressed(state, *"9999999")[0].ask.number


def test_what_may_not_be_done_is_said_and_not_asked():
    state, _ = pressed(opened(), "z")
    assert (None, "deepfm cannot suspend now: it may scale, stop.") == (state.ask, state.note)
    state, _ = pressed(opened({**played(), "actions": []}), "x")
    assert (None, "deepfm cannot stop now: it is over.") == (state.ask, state.note)


def test_a_job_that_ends_while_the_question_stands_is_left_alone():
    state, _ = pressed(opened(), "x")
    state, _ = step(state, news.Seen("deepfm", {**played(), "actions": []}))

    state, effects = pressed(state, "y")
    assert ([], "deepfm cannot stop: it is over.") == (effects, state.note)


def test_a_suspended_job_is_resumed():
    told = {**played(), "actions": ["resume"]}
    told["status"] = {**told["status"], "state": "suspended"}

    assert [Act("deepfm", {"action": "resume"})] == pressed(opened(told), "z", "y")[1]


# -- logs


def test_the_log_is_of_the_process_under_the_cursor():
    state, effects = pressed(opened(), "down", "l")
    assert [Follow("worker", 0, "worker-0")] == effects

    state, effects = pressed(state, "q")
    assert ([Follow(None)], None, "deepfm") == (effects, state.log, state.job)
    assert [Follow("master", None, "master")] == pressed(opened(), "enter")[1]


def test_the_log_of_a_node_is_its_places():
    state = opened(launched())

    assert [Follow("worker", 1, "node-0")] == pressed(state, "down", "l")[1]


def test_who_reads_further_up_goes_on_to_see_the_same_lines():
    state, _ = pressed(replace(opened(), height=14), "l")
    state, _ = step(state, news.Lines("master", [str(n) for n in range(100)]))
    assert 0 == state.log.below

    state, _ = pressed(state, "up", "up")
    state, _ = step(state, news.Lines("master", ["more", "lines"]))
    assert (4, "99") == (state.log.below, state.log.lines[-3])
    state, _ = pressed(state, "home")
    assert 92 == state.log.below
    assert 0 == pressed(state, "f")[0].log.below


def test_a_log_keeps_its_last_lines():
    state, _ = pressed(opened(), "l")

    state, _ = step(state, news.Lines("master", ["x"] * (machine.LINES + 5), over=True))
    assert (machine.LINES, True) == (len(state.log.lines), state.log.over)
    assert state == step(state, news.Lines("worker-0", ["of another"]))[0]
