"""`spec.ps.replicas` changes while an EdlJob runs, and while it is suspended: no record is lost."""

from __future__ import annotations

import json

import pytest
from tools.servers import assert_exact

from edl.common import storage

from .test_controller import spec

RECORDS = 4096


@pytest.mark.slow
def test_an_edljob_goes_on_with_other_servers(namespace, controller, folder):
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "counted"}}
    asked = spec(folder)
    asked["settings"]["num_epochs"] = 1

    def change(**values):
        patch = json.dumps({"spec": values})
        namespace.kubectl("patch", "edljob", "counted", "--type=merge", f"-p={patch}")

    def is_so(until, within_s=500.0):
        def look(jobs):
            status = jobs["counted"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if until(status) else None

        return namespace.wait("edljobs", look, within_s=within_s)

    def ready(status):
        return status.get("psReady"), status.get("workersReady")

    namespace.apply({**about, "spec": asked})
    is_so(lambda s: ready(s) == ("2/2", "2/2") and s.get("progressPercentage", 0) >= 2)
    change(ps={"replicas": 3})
    grown = is_so(lambda s: ready(s) == ("3/3", "2/2"))
    change(suspend=True)
    is_so(lambda s: s["phase"] == "Suspended")
    change(ps={"replicas": 1})
    change(suspend=False)
    is_so(lambda s: ready(s) == ("1/1", "2/2"))
    done = is_so(lambda s: s["phase"] == "Succeeded", within_s=500.0)

    assert (grown["ps"], done["exitCode"], done["masters"], done["restarts"]) == (3, 0, 2, 0)
    assert_exact(storage.latest(str(folder / "checkpoints")).directory, RECORDS, 1)
