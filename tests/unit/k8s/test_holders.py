"""Which controller a namespace has, as whoever submits sees it, and as another controller does."""

from __future__ import annotations

import contextlib
import datetime

import pytest

from edl.common.errors import UsageError
from edl.k8s import holders
from edl.k8s.leadership import Leadership

EVERYWHERE = {holders.SERVES: holders.ALL}
LEASE = "edl-controller"


def leases(server, space, labels=(), age_s=0.0, holder="c-1"):
    """Have a controller of this namespace that renewed its Lease so long ago."""
    when = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
    spec = {"holderIdentity": holder, "renewTime": when.isoformat()}
    server.add("leases", LEASE, metadata={"namespace": space, "labels": dict(labels)}, spec=spec)


@pytest.mark.parametrize(
    ("space", "labels", "age_s", "holder", "sees"),
    [
        ("default", (), 0, "c-1", True),
        ("edl", EVERYWHERE, 0, "c-1", True),
        ("edl", (), 0, "c-1", False),
        ("edl", {holders.SERVES: holders.ONE}, 0, "c-1", False),
        ("edl", EVERYWHERE, 90, "c-1", False),
        ("edl", EVERYWHERE, 0, "", False),
    ],
    ids=["own", "of all", "another's", "of one", "gone", "given up"],
)
def test_the_controller_of_a_namespace_is_its_own_or_that_of_all(
    api, server, space, labels, age_s, holder, sees
):
    leases(server, space, labels, age_s, holder)

    found = holders.controller(api)

    expected = holders.Holder("c-1", space, bool(labels)) if sees else None
    assert expected == found
    if sees and space != "default":
        listed = "/apis/coordination.k8s.io/v1/leases"
        asked = [path for _, path in server.requests if path.startswith(listed + "?")]
        assert ["fieldSelector=metadata.name%3Dedl-controller" in path for path in asked] == [True]


def test_who_may_not_look_sees_no_controller(api, server):
    leases(server, "edl", EVERYWHERE)
    server.forbidden = {("get", "leases"), ("list", "leases")}

    assert holders.controller(api) is None


@pytest.mark.parametrize(
    ("space", "labels", "everywhere", "told"),
    [
        (
            "team",
            (),
            True,
            "is that of that namespace: uninstall it, or leave out --all_namespaces",
        ),
        ("edl", EVERYWHERE, False, "is that of all namespaces: uninstall it, or this one."),
        ("edl", EVERYWHERE, True, "is that of all namespaces: uninstall it, or leave out"),
        ("team", (), False, ""),
        ("default", EVERYWHERE, True, ""),
    ],
    ids=["all beside one", "one beside all", "all beside all", "one beside one", "its own"],
)
def test_two_controllers_of_one_edljob_do_not_begin(api, server, space, labels, everywhere, told):
    leases(server, space, labels)

    with pytest.raises(UsageError, match=told) if told else contextlib.nullcontext():
        holders.check_alone(api, everywhere)


def test_a_lease_says_what_its_new_holder_serves(api, server):
    """Broken once: a controller that was made one of all left the label of the one before."""
    leases(server, "default", {holders.SERVES: holders.ONE, "kept": "yes"}, holder="")

    leadership = Leadership(api, LEASE, "c-2", EVERYWHERE, of_pods=False)
    leadership.acquire(1.0)

    found = holders.controller(api)
    assert (True, "c-2") == (found.everywhere, found.name)
    assert {"kept": "yes", **EVERYWHERE} == server.objects["leases", LEASE]["metadata"]["labels"]
