"""Who may not do what is told the role of the least that would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tools.apiserver import ApiServer
from tools.clustered import add_pod

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("edljobs")
@pytest.mark.parametrize("command", ["list", "status demo"])
def test_who_may_see_neither_is_told_the_lesser_role(
    run: Run, server: ApiServer, command: str
) -> None:
    server.forbidden = {(v, r) for v in ("get", "list") for r in ("jobs", "edljobs")}

    code, _, err = run(*command.split(), "-n", "lab")

    assert (1, True, False) == (code, "the role edl-user gives it" in err, "edl-submitter" in err)


@pytest.mark.usefixtures("edljobs")
def test_where_one_controller_serves_all_the_role_is_the_clusters(
    run: Run, server: ApiServer
) -> None:
    lease = server.objects["leases", "edl-controller"]
    lease["metadata"] |= {"namespace": "edl", "labels": {"edl.dev/serves": "all-namespaces"}}
    server.forbidden = {("list", "jobs"), ("list", "edljobs")}

    _, _, err = run("list", "-n", "lab")

    assert "kubectl -n lab create rolebinding anna-edl-user --clusterrole edl-user" in err


def test_without_edljobs_who_may_not_see_jobs_is_told_their_role(
    run: Run, server: ApiServer
) -> None:
    server.forbidden = {("list", "jobs")}

    _, _, err = run("list", "-n", "lab")

    assert "the role edl-submitter gives it" in err


@pytest.mark.usefixtures("edljobs")
def test_who_may_make_neither_is_told_the_lesser_role(submitted: Run, server: ApiServer) -> None:
    server.forbidden = {("create", "jobs"), ("list", "edljobs")}

    code, _, err = submitted()

    assert (1, True, False) == (code, "the role edl-user gives it" in err, "edl-submitter" in err)


@pytest.mark.usefixtures("demo")
def test_the_logs_of_servers_are_those_of_ps(run: Run, server: ApiServer) -> None:
    name = add_pod(server, "ps")
    server.logs[name] = b"serves\n"

    by_pods, by_name = (
        run("logs", "demo", "-n", "lab", "--role", role) for role in ("ps", "server")
    )

    assert (0, "serves\n") == by_pods[:2] == by_name[:2]
