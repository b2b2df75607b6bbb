"""One master at a time: who holds the lease, who takes it over, who learns that it is lost."""

from __future__ import annotations

import threading
from queue import Queue

import pytest
from tools.apiserver import ApiServer

from edl.common.errors import JobError
from edl.k8s import leadership as module
from edl.k8s.leadership import Leadership

WAIT_S = 300.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "RENEW_S", 0.01)


def leadership(api, holder: str) -> Leadership:
    return Leadership(api, "edl-demo", holder, {})


def make_pod(api, server: ApiServer, name: str, phase: str = "Running") -> None:
    api.create("Pod", {"metadata": {"name": name}})
    server.set_status(name, phase=phase)


def holder(api) -> str:
    return api.get("Lease", "edl-demo")["spec"]["holderIdentity"]


def test_the_first_one_has_it_and_has_it_again_after_a_restart_in_its_pod(api):
    leadership(api, "a").acquire()
    leadership(api, "a").acquire()

    assert holder(api) == "a"
    assert api.get("Lease", "edl-demo")["spec"]["leaseTransitions"] == 0


def test_who_is_given_it_up_needs_not_wait(api, server):
    first = leadership(api, "a")
    make_pod(api, server, "a")
    first.acquire()
    first.keep(lambda why: None)
    first.close()

    leadership(api, "b").acquire()

    assert holder(api) == "b"


@pytest.mark.parametrize("phase", [None, "Failed", "Succeeded"])
def test_a_pod_that_is_gone_or_has_ended_has_lost_it(api, server, phase):
    """Broken once: only time takes it away."""
    leadership(api, "a").acquire()
    if phase:
        make_pod(api, server, "a", phase)

    leadership(api, "b").acquire()

    assert holder(api) == "b"
    assert api.get("Lease", "edl-demo")["spec"]["leaseTransitions"] == 1


def test_a_pod_that_runs_but_renews_no_more_loses_it_in_the_end(api, server, monkeypatch):
    monkeypatch.setattr(module, "DURATION_S", 0.05)
    make_pod(api, server, "a")
    leadership(api, "a").acquire()

    leadership(api, "b").acquire()

    assert holder(api) == "b"


def test_who_renews_keeps_it_and_the_other_ends_with_one_error(api, server, monkeypatch):
    """Broken once: a renewal does not count as a sign of life."""
    monkeypatch.setattr(module, "DURATION_S", 2.0)
    monkeypatch.setattr(module, "_ACQUIRE_S", 3.0)
    make_pod(api, server, "a")
    first = leadership(api, "a")
    first.acquire()
    first.keep(lambda why: pytest.fail(why))

    with pytest.raises(JobError, match="another one runs, in the pod a"):
        leadership(api, "b").acquire()
    first.close()


def test_who_lost_it_is_told_by_whom(api, server):
    told: Queue[str] = Queue()
    first = leadership(api, "a")
    first.acquire()
    first.keep(told.put)

    leadership(api, "b").acquire()  # no pod named a is there

    assert told.get(timeout=WAIT_S) == "the pod b has the lease edl-demo now"
    first.close()
    assert holder(api) == "b"


def test_of_many_that_try_at_once_one_has_it(api, server, monkeypatch):
    monkeypatch.setattr(module, "_ACQUIRE_S", 1.0)
    names = [f"pod-{i}" for i in range(6)]
    for name in names:
        make_pod(api, server, name)
    won: Queue[str] = Queue()

    def acquire(name: str) -> None:
        try:
            leadership(api, name).acquire()
        except JobError:
            return
        won.put(name)

    threads = [threading.Thread(target=acquire, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert [holder(api)] == list(won.queue)


def test_the_api_server_is_away_and_the_lease_is_kept(api, server):
    """No other pod can take the Lease meanwhile either."""
    lost: Queue[str] = Queue()
    first = leadership(api, "a")
    first.acquire()
    first.keep(lost.put)

    server.fail("GET", "/leases", 503, times=2)
    with server.lock:
        before = server.objects["leases", "edl-demo"]["metadata"]["resourceVersion"]
    server.wait_until(
        lambda: server.objects["leases", "edl-demo"]["metadata"]["resourceVersion"] != before
    )
    first.close()

    assert lost.empty()
