"""A cache that tells each change once, whatever lists and events bring; a thread that survives."""

from __future__ import annotations

from queue import Queue

from hypothesis import given
from hypothesis import strategies as st

from edl.k8s.reflector import Cache, Change, Reflector

WAIT_S = 300.0


def item(uid, version):
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}}


# A history of a cluster: at each step one object is set or removed.
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30)


@given(STEPS, st.data())
def test_whatever_is_lost_doubled_or_listed_the_changes_add_up_to_the_truth(steps, data):
    """Events are lost and doubled; a list at the end tells the rest. What was told adds up."""
    truth: dict = {}
    events = []
    for version, (uid, there) in enumerate(steps):
        if there:
            kind = "MODIFIED" if uid in truth else "ADDED"
            truth[uid] = item(uid, version)
            events.append((kind, truth[uid]))
        elif uid in truth:
            events.append(("DELETED", truth.pop(uid)))
    cache, told = Cache(), {}

    def follow(changes):
        for change in changes:
            uid = change.after["metadata"]["uid"]
            assert (change.before is None) == (uid not in told)
            if change.gone:
                del told[uid]
            else:
                assert told.get(uid) != change.after  # nothing is told twice
                told[uid] = change.after

    for event in events:
        for _ in range(data.draw(st.integers(0, 2))):
            follow(cache.apply(*event))
    follow(cache.replace(truth.values()))

    assert told == truth == dict(cache.objects)


def reflected(api, **more):
    changes: Queue[Change] = Queue()
    lists: Queue[int] = Queue()
    found = Reflector(
        api, "Pod", "app=x", changes.put, lambda _, objects: lists.put(len(objects)), **more
    )
    found.start()
    lists.get(timeout=WAIT_S)
    return found, changes, lists


def make(api, name, labels=None):
    return api.create("Pod", {"metadata": {"name": name, "labels": labels or {"app": "x"}}})


def test_events_come_as_they_happen_and_only_those_that_are_selected(api):
    reflector, changes, _ = reflected(api)

    make(api, "other", {"app": "y"})
    make(api, "mine")
    first = changes.get(timeout=WAIT_S)
    api.delete("Pod", "mine", grace_s=0)
    second = changes.get(timeout=WAIT_S)
    reflector.close()

    assert (first.after["metadata"]["name"], first.gone) == ("mine", False)
    assert (second.after["metadata"]["name"], second.gone) == ("mine", True)


def test_after_410_gone_all_is_listed_and_what_was_missed_is_told(api, server):
    make(api, "before")
    reflector, changes, lists = reflected(api)
    assert not changes.get(timeout=WAIT_S).gone
    server.hold_watches = True
    api.delete("Pod", "before", grace_s=0)
    make(api, "after")

    server.forget_history()
    lists.get(timeout=WAIT_S)
    found = {(c.after["metadata"]["name"], c.gone) for c in (changes.get(), changes.get())}
    reflector.close()

    assert found == {("before", True), ("after", False)}


def test_an_event_that_never_came_is_found_by_the_next_list(api, server):
    make(api, "lost")
    reflector, changes, _lists = reflected(api, resync_s=0.0)
    changes.get(timeout=WAIT_S)

    server.remove("lost", tell=False)
    found = changes.get(timeout=WAIT_S)
    reflector.close()

    assert found.gone


def test_the_api_server_goes_away_and_comes_back(api, server):
    silences: Queue = Queue()
    reflector, changes, _lists = reflected(api, on_silence=silences.put)

    server.fail("GET", "/pods", 503, times=10**6)
    server.forget_history()  # the watch is cut
    away = silences.get(timeout=300.0)
    server.faults.clear()
    back = silences.get(timeout=300.0)
    make(api, "later")
    found = changes.get(timeout=WAIT_S)
    reflector.close()

    assert away is not None
    assert back is None
    assert found.after["metadata"]["name"] == "later"
