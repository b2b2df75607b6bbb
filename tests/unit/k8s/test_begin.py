"""The services of a cluster, from their first request to their end, against an API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.apiserver import ApiServer

WITHIN_S = 120.0
SERVICES = {
    "controller": (
        "from edl.k8s.__main__ import main; sys.exit(main(sys.argv[1:]))",
        ("--namespace", "default", "--master_image", "edl:1"),
    ),
    "scheduler": (
        "import edl.scheduler.in_cluster as i; i._LISTED_S = 1; import edl.cli.main as m; m.main()",
        ("schedule", "serve", "--runtime", "kubernetes", "-n", "default"),
    ),
}
# Credentials that are refused once have ended: nobody waits for it here.
BEGIN = "import sys; import edl.k8s.connection as c; c.REFUSED_S = 0.0; {}"


@pytest.fixture(params=sorted(SERVICES))
def service(request, server: ApiServer, tmp_path: Path):
    """Return a function that runs a service to its end, and returns its code and its words."""
    cluster = {"name": "c", "cluster": {"server": server.address}}
    context = {"name": "x", "context": {"cluster": "c", "user": "me"}}
    made = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster]}
    made |= {"users": [{"name": "me", "user": {"token": "old"}}], "contexts": [context]}
    (tmp_path / "config").write_text(json.dumps(made))
    main, arguments = SERVICES[request.param]

    def run() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN.format(main), *arguments],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "config")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_a_service_begins_on_no_cluster_that_is_too_old(service, server):
    server.git_version = "v1.28.15"

    code, said = service()

    assert 2 == code, said
    assert "This cluster is of Kubernetes v1.28.15, and edl needs 1.29 or newer: update it" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("when", ["/leases", "/edljobs"])  # it waits to act; it acts
def test_a_service_whose_credentials_have_ended_says_so_and_ends(service, server, when):
    """Broken once: a warning each 4 s, for ever."""
    server.fail("GET", when, 401, times=10_000)

    code, said = service()

    assert 1 == code, said
    refused = r"The Kubernetes API at .* refuses the credentials of .*config \(401 Unauthorized\)"
    assert re.search(refused, said)
    assert "Traceback" not in said
