"""The pace at which the status is made."""

import pytest

from edl.master.status import Status

pytestmark = pytest.mark.fast


def test_a_status_that_is_dear_is_made_seldomer():
    cheap, dear = Status(0.0), Status(0.0)
    cheap.took(0.0, 0.001)
    dear.took(0.0, 0.05)  # a thousand workers
    times = [0.25 * n for n in range(1, 10)]

    assert times == [now for now in times if cheap.tick(now)]
    assert [1.0, 1.25] == [now for now in times if dear.tick(now)][:2]
    dear.took(10.0, 60.0)  # the machine slept
    assert [False, True] == [dear.tick(11.9), dear.tick(12.0)]


def test_an_event_has_an_id_that_no_other_of_the_job_has_even_of_its_next_master():
    heard = []
    first, second = Status(0.0), Status(0.0)
    first.hear = second.hear = heard.append
    first.tell(1.0, "starting")
    memory = first.memory(recomputed=7)
    first.tell(2.0, "told by nobody's memory: it is killed now")
    second.remember(memory, 3.0, epoch=2)
    second.tell(3.0, "worker 0 was killed", kind="death", role="worker", index=0)

    assert [1, 2] == [event["id"] for event in heard[:2]]
    assert heard[2]["id"] > 2
    assert {"t": 3.0, "kind": "death", "index": 0}.items() <= heard[2].items()
    assert (7, 8) == (second.recomputed, second.memory(1).recomputed)


def test_an_event_is_shown_at_once_unless_statuses_are_dear():
    cheap, dear = Status(0.0), Status(0.0)
    for status, seconds in ((cheap, 0.001), (dear, 0.05)):
        assert status.tick(0.25)
        status.took(0.25, seconds)
        status.tell(0.3, "worker 0 was killed")

    assert (True, False) == (cheap.tick(0.3), dear.tick(0.3))
    assert (False, True) == (cheap.tick(0.4), dear.tick(1.25))
