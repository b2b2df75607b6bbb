"""What is told of masters that end: what they said last, which stands in no status of theirs."""

from __future__ import annotations

import pytest

from edl.k8s.job import wanted
from edl.k8s.masters import Memory, note
from edl.k8s.outside.state import waits_for
from edl.k8s.pods import container_of

from .edljobs import edljob, pod

pytestmark = pytest.mark.fast

SAYS = (
    'edl: error: pods "edl-demo-master-1" is forbidden: User "system:serviceaccount:lab:mine" '
    'cannot get resource "pods" in API group "" in the namespace "lab"'
)


def test_what_a_master_may_not_do_stands_in_the_status_and_not_in_its_log_alone():
    ended = {"exitCode": 1, "reason": "Error", "message": f"starts\n{SAYS}\n"}
    master = pod(edljob(), "master", 1, phase="Failed")
    master["status"]["containerStatuses"] = [{"name": "edl", "state": {"terminated": ended}}]

    said = note(Memory(deaths=2), [master], [], None)
    of_job = waits_for({"kind": "Job", "metadata": {}}, [master])
    container = container_of(wanted(edljob()).templates["master"])

    assert said == (
        "the master ended 2 times in a row within 60 s of its start, the last one with: exit code "
        f"1: {SAYS}; the next one is made after a pause"
    )
    assert of_job == f"the master's pod ended (with exit code 1: {SAYS}); another one comes"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
