"""The messages of a job: in order, none twice, and a snapshot for who is too slow."""

import asyncio
import json
import math

from tools.strict_json import strict

from edl.common import finite
from edl.dashboard import feed as feeds
from edl.dashboard.feed import Feed, encode
from edl.dashboard.model import Model

HARDLY_S = 0.01


def snapshots(count):
    model = Model()
    for number in range(count):
        model.history([{"id": number + 1, "t": float(number), "text": f"event {number}"}])
        yield model.snapshot(float(number))


def told(text):
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields["event"], fields["id"], json.loads(fields["data"])


def read(feed, after):
    """Return all that a reader gets now, and the number of its last message."""

    async def run():
        number, found = after, []
        while (message := await feed.next(number, HARDLY_S)) is not None:
            number = message[0]
            found.append(told(message[1]))
        return number, found

    return asyncio.run(run())


def fed(count):
    feed = Feed("f", lambda: 0.0)
    for each in snapshots(count):
        feed.put(each)
    return feed


def test_the_first_message_is_a_snapshot_and_the_others_say_what_is_new():
    feed = fed(2)
    number, ((kind, _, first),) = read(feed, -1)
    assert ("snapshot", 2) == (kind, len(first["events"]))

    for each in list(snapshots(4))[2:]:
        feed.put(each)
    _, found = read(feed, number)

    assert [("change", [3]), ("change", [4])] == [
        (kind, [event["id"] for event in values["events"]]) for kind, _, values in found
    ]


def test_a_reader_that_comes_back_gets_what_came_meanwhile_and_nothing_twice():
    feed = fed(5)
    _, found = read(feed, feed.known("f-3"))

    assert [[4], [5]] == [[event["id"] for event in values["events"]] for _, _, values in found]
    assert ["f-4", "f-5"] == [number for _, number, _ in found]


def test_a_reader_of_another_server_or_of_nothing_gets_a_snapshot():
    feed = fed(3)

    for last_id in ("", "g-2", "f-9", "f-x", "f", "f-2-2"):
        assert "snapshot" == read(feed, feed.known(last_id))[1][0][0]


def test_a_reader_that_is_too_slow_gets_a_snapshot_and_memory_stays(monkeypatch):
    monkeypatch.setattr(feeds, "_KEPT", 3)
    feed = fed(10)

    (kind, number, values), *more = read(feed, 2)[1]
    assert ("snapshot", "f-10", 10, []) == (kind, number, len(values["events"]), more)
    assert ["f-9", "f-10"] == [number for _, number, _ in read(feed, 8)[1]]


def test_nothing_new_is_no_message():
    feed = fed(1)
    feed.put(next(snapshots(1)))

    assert [] == read(feed, 1)[1]


def test_whoever_waits_is_woken_by_the_next_message():
    async def run():
        feed = Feed("f", lambda: 0.0)
        waiting = asyncio.create_task(feed.next(-1, 60.0))
        await asyncio.sleep(0)
        feed.put(next(snapshots(1)))
        return await waiting

    assert 1 == asyncio.run(run())[0]


def test_what_is_no_number_is_null_for_a_browser_and_told_beside():
    text = encode({"a": [math.nan, 1.0], "b": math.inf})

    told = {"/a/0": "nan", "/b": "inf"}
    assert {"a": [None, 1.0], "b": None, "not_finite": told} == strict(text)


def test_a_loss_that_stays_no_number_is_no_news():
    model, feed = Model(), Feed("f", lambda: 0.0)
    for done in (1, 2):
        told = {"state": "running", "loss": math.nan, "records_done": done}
        model.hear(finite.loads(finite.dumps(told)), 1.0)
        feed.put(model.snapshot(1.0))

    ((kind, _, made),) = read(feed, 1)[1]
    assert ("change", {"records_done": 2}) == (kind, made["status"])
