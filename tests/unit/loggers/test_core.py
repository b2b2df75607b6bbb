"""What loggers are told of a history: every series rises, and nothing comes twice, whoever dies."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.jobs.history import FILE, Reader
from edl.loggers.core import EVENTS, Cursor, Told, fresh, tell
from edl.loggers.kept import load
from edl.loggers.logger import DONE, Run
from edl.loggers.writer import Writer

pytestmark = pytest.mark.fast

POINTS = st.builds(
    lambda version, loss: {
        "t": 1.0,
        "version": version,
        "scalars": {"loss": loss, "records_per_s": 3.0},
        "job": {"workers": 2.0},
    },
    st.integers(0, 12),
    st.sampled_from([0.5, 0.25]),
)
EVALUATIONS = st.builds(
    lambda version: {"t": 1.0, "version": version, "scalars": {"auc": 0.7, "evaluated loss": 0.2}},
    st.integers(0, 12),
)
TEXTS = st.builds(lambda text: {"id": 1, "t": 1.0, "text": text}, st.sampled_from("abc"))
HISTORIES = st.lists(st.one_of(POINTS, EVALUATIONS, TEXTS), max_size=25)


def steps(told):
    """Return the steps of each series, in the order in which they were told."""
    found = {}
    for one in told:
        for name in one.series:
            found.setdefault(name, []).append(one.step)
    return found


def test_a_point_an_evaluation_and_an_event_become_series():
    lines = [
        {"t": 0.5, "id": 1, "text": "starting"},
        {
            "t": 1.0,
            "version": 7,
            "scalars": {"loss": 0.5, "records_per_s": 3.0},
            "job": {"workers": 2.0, "restarts": 0.0, "goodput": 0.9},
        },
        {"t": 2.0, "version": 5, "scalars": {"recall@5": 0.7, "evaluated loss": 0.2}},
    ]

    told, cursor = tell(Cursor(), lines, 99)

    standing = {"workers": 2.0, "restarts": 0.0, "goodput": 0.9}
    assert [
        Told(0, 0, 0.5, text="starting"),
        Told(7, 7, 1.0, {"loss/train": 0.5, "records_per_second": 3.0, **standing}),
        Told(5, 8, 2.0, {"eval/recall_5": 0.7, "eval/loss": 0.2}),
    ] == told
    assert (99, 7) == (cursor.offset, cursor.version)


@given(HISTORIES)
def test_the_steps_of_every_series_and_the_rows_rise_strictly(lines):
    told, _ = tell(Cursor(), lines, 0)

    for each in (*steps(told).values(), [one.row for one in told]):
        assert sorted(set(each)) == each
    assert sum("text" in line for line in lines) == len(steps(told).get(EVENTS, []))


@given(HISTORIES, st.integers(0, 25))
def test_how_the_history_is_cut_changes_nothing(lines, cut):
    whole, end = tell(Cursor(), lines, 9)
    first, between = tell(Cursor(), lines[:cut], 5)
    second, last = tell(between, lines[cut:], 9)

    assert (whole, end) == (first + second, last)


@given(HISTORIES, st.integers(0, 25), st.integers(0, 60))
def test_what_a_logger_has_of_a_batch_is_not_told_again(lines, cut, there):
    """However much of each series a logger has kept of what it was told, it is told the rest."""
    _, before = tell(Cursor(), lines[:cut], 5)
    told, _ = tell(before, lines[cut:], 9)
    had = pieces(told)[:there]
    known = {name: step for name, step, _ in had}

    left = fresh(told, {**before.last, **known})

    assert pieces(told) == had + pieces(left)


def pieces(told):
    """Return what was told, piece by piece: series, step and value."""
    each = ((one, name) for one in told for name in sorted(one.series))
    return [(name, one.step, one.text or one.values[name]) for one, name in each]


class Died(BaseException):
    """The process is killed: nothing catches it."""


class Store:
    """A backend that outlives its loggers, and kills the process in the midst of a write."""

    def __init__(self, tells, sure):
        self.pieces, self.runs, self.tells, self.sure = [], [], tells, sure
        self.lives = iter(())

    def logger(self):
        return Logger(self)


class Logger:
    def __init__(self, store):
        self.store, self.waiting = store, []

    def open(self, run, state):
        self.store.runs.append(run.id)
        known = {name: step for name, step, _ in self.store.pieces}
        return known if self.store.tells else None

    def write(self, told):
        for piece in pieces(told):
            if next(self.store.lives, None) == 0:
                raise Died
            self.waiting.append(piece)
            if self.store.sure:
                self.flush()
        if not self.store.sure:  # what was told the time before is kept by now
            before = len(self.waiting) - len(pieces(told))
            self.store.pieces += self.waiting[:before]
            del self.waiting[:before]
        return self.store.sure

    def flush(self):
        self.store.pieces += self.waiting
        self.waiting = []

    def state(self):
        return {}

    def finish(self, outcome):
        self.flush()
        self.store.end = outcome


def written(folder, store, lines, batches, deaths):
    """Have a history written that comes in batches; after so many pieces, each process dies."""
    folder.mkdir()
    (folder / "loggers").mkdir()
    run = Run("demo-1", "demo", {}, {}, folder / "loggers", 0.0)
    said = []
    lives = iter(deaths)

    def process():
        left = next(lives, None)
        store.lives = iter(range(left, -1, -1)) if left is not None else iter(())
        return Writer("store", store.logger, run, folder, "job", said.append)

    writer = process()
    cuts = [*sorted(min(at, len(lines)) for at in batches), len(lines)]
    done = 0
    for cut in cuts:
        with open(folder / FILE, "ab") as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in lines[done:cut])
        done = cut
        while True:
            try:
                assert writer.turn(0.0)
                break
            except Died:
                writer = process()
    while True:
        try:
            assert writer.finish(DONE, 0.0)
            break
        except Died:
            writer = process()
    assert not said
    return store.pieces


@settings(max_examples=examples(40))  # each cursor is a file that is synced
@given(
    HISTORIES,
    st.lists(st.integers(0, 25), max_size=4),
    st.lists(st.integers(0, 9), max_size=4),
    st.booleans(),
)
@example([{"t": 0.0, "id": 1, "text": text} for text in "abcd"], [1, 2, 3], [2], False)
def test_a_logger_that_tells_what_it_has_gets_all_of_it_once_whenever_the_process_is_killed(
    tmp_path_factory, lines, batches, deaths, sure
):
    """Broken once: the cursor is kept before the write, or too soon; nobody asks what is there."""
    folder = tmp_path_factory.mktemp("job") / "demo"
    whole = pieces(tell(Cursor(), lines, 0)[0])

    store = Store(True, sure)
    assert whole == written(folder, store, lines, batches, deaths)
    assert {"demo-1"} == set(store.runs)
    assert "done" == store.end


@given(HISTORIES, st.lists(st.integers(0, 25), max_size=4), st.lists(st.integers(0, 9), max_size=4))
def test_a_logger_that_cannot_tell_gets_nothing_twice(tmp_path_factory, lines, batches, deaths):
    folder = tmp_path_factory.mktemp("job") / "demo"
    whole = pieces(tell(Cursor(), lines, 0)[0])

    got = written(folder, Store(False, True), lines, batches, deaths)

    rest = iter(whole)
    assert all(piece in rest for piece in got)  # a part of it, in its order
    assert len(got) == len(whole) or deaths


def test_the_job_that_goes_on_in_another_folder_goes_on_with_the_steps(tmp_path):
    """Its history begins anew, and its events come after those of the job before."""
    lines = [
        {"id": 1, "t": 1.0, "text": "a"},
        *({"t": 1.0, "version": v, "scalars": {"auc": 1.0}} for v in (3, 5)),
    ]
    store = Store(True, True)
    written(tmp_path / "demo", store, lines, [], [])
    kept = load(tmp_path / "demo" / "loggers", "store").of("another")

    told, _ = tell(kept.cursor, [lines[0], *lines[1:], {**lines[1], "version": 9}], 0)

    assert 0 == kept.cursor.offset
    assert {EVENTS: [5], "eval/auc": [9]} == steps(told)


def test_a_run_without_a_cursor_here_goes_on_after_what_its_store_has(tmp_path):
    """So goes on, on another machine, what a checkpoint at a store was left by."""
    store = Store(True, True)
    store.pieces = [(EVENTS, 7, "a"), ("eval/auc", 7, 0.5)]
    line = {"t": 1.0, "version": 8, "scalars": {"auc": 1.0}}

    got = written(tmp_path / "demo", store, [{"id": 1, "t": 0.0, "text": "b"}, line], [], [])

    assert [(EVENTS, 8, "b"), ("eval/auc", 8, 1.0)] == got[2:]


def test_reading_goes_on_at_an_offset(tmp_path):
    path = Path(tmp_path, FILE)
    path.write_text('{"t": 1.0, "version": 1, "scalars": {}}\n')
    reader = Reader(tmp_path)
    assert 1 == len(reader.lines())
    with open(path, "a") as file:
        file.write('{"t": 2.0, "version": 2, "scalars": {}}\n')

    assert [2] == [line["version"] for line in Reader(tmp_path, reader.offset).lines()]


def test_lines_that_are_no_points_are_passed_over():
    lines = [
        {"t": 1.0, "version": "7", "scalars": {"loss": 0.5}},
        {"t": 1.0, "version": 7, "scalars": [1]},
        {"t": 1.0, "version": 7, "scalars": {"loss": "x"}},
    ]

    assert [] == tell(Cursor(), lines, 0)[0]
    assert replace(Cursor(), version=7) == tell(Cursor(), lines, 0)[1]
