"""The pod of a master: whose it is, and whether it is still wanted."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from queue import Queue

import pytest
from tools.strict_json import strict

from edl.common.errors import Fenced, UsageError
from edl.common.settings import JobSettings
from edl.k8s import connection, job_status, objects, pods
from edl.k8s.api import Api
from edl.k8s.home import Home
from edl.k8s.outside.state import status_of

JOB = JobSettings(job_name="demo", image_name="edl:1")
OWNER = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "name": "demo", "uid": "u"}
EDLJOB = {"kind": "EdlJob", "metadata": {"name": "demo"}, "spec": {}}


@pytest.fixture
def home(api, server, tmp_path, monkeypatch):
    """Return a function that makes a home, in a pod of this owner."""
    made = []
    monkeypatch.setenv("EDL_POD", "edl-demo-master-0")
    monkeypatch.setattr(Api, "connect", lambda **_who: api)
    monkeypatch.setattr(pods, "SETTINGS_DIR", str(tmp_path))
    (tmp_path / objects.TEMPLATES).write_text(json.dumps(pods.templates(JOB)))

    def home(owner, deleted=False):
        about = {"name": "edl-demo-master-0", "ownerReferences": [owner]}
        if deleted:
            about["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.create("Pod", {"metadata": about})
        made.append(Home(JOB))
        return made[0]

    yield home
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("kind", "controlled"),
    [("EdlJob", True), ("Job", None)],  # a Job would count them as its own
)
def test_what_a_master_makes_is_its_owners(home, kind, controlled):
    pod = home({**OWNER, "kind": kind, "blockOwnerDeletion": False})._make(
        "worker", 0, "a1", {}, (), ""
    )

    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {
        **OWNER,
        "kind": kind,
        **({"controller": controlled} if controlled else {}),
    }


def test_a_pod_that_was_told_to_go_before_it_began_does_not_begin(home):
    """Process 1 of a pod without a handler hears no SIGTERM."""
    with pytest.raises(Fenced, match="told to go"):
        home(OWNER, deleted=True)


def test_the_end_is_told_to_a_batch_job_and_not_to_an_edljob(home, api, server):
    here = home(OWNER)

    here.decided({"state": "failed", "exit_code": 1})

    written = api.get("ConfigMap", "edl-demo-status")
    assert json.loads(written["data"][objects.STATUS])["exit_code"] == 1
    assert written["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert not any(method == "PATCH" and "/jobs/" in path for method, path in server.requests)


def test_a_loss_that_is_no_number_is_told_in_json_that_kubectl_can_hand_on(home, api, server):
    home(OWNER).decided({"state": "done", "exit_code": 0, "loss": math.nan})

    found = api.get("ConfigMap", "edl-demo-status")
    assert {"/loss": "nan"} == strict(found["data"][objects.STATUS])["not_finite"]
    assert math.isnan(job_status.told_by(found)["loss"])
    assert math.isnan(status_of("demo", EDLJOB, found, [])["loss"])


def test_what_is_wanted_is_done_and_each_question_for_a_checkpoint_told(home, api, server):
    here, told, wanted = home(OWNER), [], {"num_workers": 2, "num_ps": 1, "stop": ""}
    config = objects.config(JOB, {})
    config["data"][objects.WANTED] = json.dumps(wanted)  # as of an older version of edl
    api.create("ConfigMap", config)
    here.serve(
        lambda *numbers: told.append(numbers),
        lambda why: told.append(why),
        lambda _why: None,
        lambda question: told.append(question),
    )
    server.wait_until(lambda: told == [(2, 1, 0, 0)])

    asked = {objects.WANTED: json.dumps({**wanted, "checkpoints": ["a", "b"], "stop": "enough"})}
    api.patch("ConfigMap", config["metadata"]["name"], {"data": asked})

    server.wait_until(lambda: len(told) >= 4)
    assert told[1:] == ["a", "b", "enough"]


def test_a_volume_that_is_not_for_this_user_is_told_once(home, tmp_path, monkeypatch):
    """A kubelet makes the folder of a sub path as root; root itself writes everywhere."""
    folder = tmp_path / "job"

    def forbidden(path, *arguments, **more):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    here = home(OWNER)

    with pytest.raises(UsageError, match=rf"--job_volume: .*Permission denied: {folder}"):
        here.acquire(folder)


def test_a_master_whose_account_was_made_anew_is_fenced_with_the_reason(home, server, monkeypatch):
    """Helm has uninstalled and installed edl, say: another pod's master goes on.

    Broken once: it is refused for ever, and neither ends nor says so."""
    monkeypatch.setattr(connection, "REFUSED_S", 0.0)
    fenced = Queue()
    here = home(OWNER)
    server.fail("GET", "/configmaps", 401, times=10_000)

    here.serve(lambda *_: None, lambda _: None, fenced.put)

    assert "refuses the credentials" in fenced.get(timeout=60.0)
