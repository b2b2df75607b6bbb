"""The scheduler leaves in an EdlJob why it waits, once, and takes it away again."""

import pytest
from tools.scheduled import NOW, edljob

from edl.k8s import names
from edl.scheduler.gate import OPEN, Gate
from edl.scheduler.jobs import Given, Shape
from edl.scheduler.notes import Notes

SUSPENDED = {"status": {}, "suspend": True}
CLOSED = Gate(is_open=False)
HELD = Gate(workers=3, queue="q")
NOTHING = {"a": Given(Shape(), "waits: its minimum of 1 worker does not fit")}


def written(it, notes=None, plan=None, ignored="", gate=OPEN, now=NOW):
    said = {"a": ignored} if ignored else {}
    patches = (notes or Notes()).patches({"a": it}, plan or {}, said, {"a": gate}, now)
    if "a" not in patches:
        return None
    for name, value in patches["a"]["metadata"]["annotations"].items():
        it["metadata"]["annotations"].pop(name, None)
        if value is not None:
            it["metadata"]["annotations"][name] = value
    return patches["a"]["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"plan": NOTHING}, "WaitingForRoom: it waits: its minimum of 1 worker does not fit"),
        ({"ignored": "waits for q", "gate": CLOSED}, "WaitingForQuota: it waits for q"),
        ({"ignored": "is left alone: so"}, "LeftAlone: it is left alone: so"),
    ],
)
def test_why_a_job_waits_is_written_once(more, says):
    it = edljob(**SUSPENDED)

    assert written(it, **more) == {names.SAYS: says}
    assert written(it, **more) is None


def test_a_job_that_runs_bears_its_queue_and_what_limits_it_and_loses_both():
    it = edljob()

    first = written(it, ignored="may have 3 workers", gate=HELD)
    second = written(it, gate=HELD)
    closed = written(it, gate=CLOSED)
    it["spec"]["suspend"] = True

    assert first == {names.SAYS: "Limited: it may have 3 workers", names.ADMITTED: "q"}
    assert second == {names.SAYS: None}
    assert closed is None  # by its queue it is suspended
    assert written(it) == {names.ADMITTED: None}


def test_figures_alone_are_written_anew_after_a_while():
    it, notes = edljob(**SUSPENDED), Notes()

    def waits(amount, at):
        return written(it, notes, ignored=f"waits: {amount} more", gate=CLOSED, now=NOW + at)

    assert [bool(waits(3, 0)), bool(waits(4, 5)), bool(waits(5, 50))] == [True, False, False]
    assert waits(6, 61) == {names.SAYS: "WaitingForQuota: it waits: 6 more"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_job_that_is_over_bears_nothing(phase):
    marks = {names.SAYS: "Limited: so", names.ADMITTED: "q"}
    it = edljob(status={"phase": phase}, annotations=marks)

    assert written(it) == {names.SAYS: None}


def test_one_that_somebody_suspended_bears_nothing():
    it = edljob(suspend=True, annotations={names.SAYS: "Limited: so"})

    assert written(it, ignored="waits") == {names.SAYS: None}


def test_others_words_are_one_plain_line():
    it = edljob(**SUSPENDED)

    said = written(it, ignored=f"waits: \x1b[2J\n{'x' * 9999}")[names.SAYS]

    assert said.isprintable()
    assert len(said) == 600
