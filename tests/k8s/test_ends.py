"""An EdlJob that ends at its deadline, and is gone when it was kept long enough."""

from __future__ import annotations

import json
from typing import Any

from tools.jobs import ZOO, write_records
from tools.kube_objects import IMAGE, volumes
from tools.turns import in_turn

Object = dict[str, Any]


def reason(status: Object) -> str:
    found = [each for each in status.get("conditions") or [] if each["type"] == "Failed"]
    return found[0]["reason"] if found and found[0]["status"] == "True" else ""


@in_turn(1)
def test_a_job_stops_at_its_deadline_with_a_checkpoint_and_is_deleted_after_its_ttl(
    namespace, controller, folder
):
    small = {"resources": {"requests": {"cpu": "250m", "memory": "700Mi"}}}
    spec = {
        "image": IMAGE,
        "settings": {
            "model_zoo": str(ZOO),
            "model_def": "counting",
            "model_params": {"delay_s": 0.2},
            "training_data": str(write_records(folder / "records.npz", 4096)),
            "minibatch_size": 16,
            "num_epochs": 100,
            "use_async": True,
            "checkpoint_dir": str(folder / "checkpoints"),
        },
        **volumes(folder),
        "master": small,
        "ps": {"replicas": 1, **small},
        "worker": {"replicas": 1, **small},
    }
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "counted"}}

    def so(until):
        def look(jobs):
            status = jobs["counted"].get("status", {})
            return status if until(status) else None

        return namespace.wait("edljobs", look, within_s=500.0)

    namespace.apply({**about, "spec": spec})
    so(lambda status: status.get("phase") == "Running")
    ends = {"spec": {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 8}}
    namespace.kubectl("patch", "edljob", "counted", "--type=merge", "-p", json.dumps(ends))
    over = so(reason)
    namespace.wait("edljobs", lambda jobs: "counted" not in jobs, within_s=60.0)

    assert (reason(over), over["phase"]) == ("DeadlineExceeded", "Failed")
    assert "spec.activeDeadlineSeconds: 1 s are over" in over["message"]
    assert (folder / "checkpoints").is_dir()
