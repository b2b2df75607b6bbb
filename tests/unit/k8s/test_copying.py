"""The helper pod that gives out a job's files: who makes it, of what, and whom it answers."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import threading
import time

import pytest

from edl.common.identity import Identity
from edl.jobs import transfer
from edl.k8s import copying, job_status, objects, pods, send
from edl.k8s.decide import decide
from edl.k8s.job import wanted
from edl.k8s.masters import Memory
from edl.k8s.plans import Seen

from .edljobs import edljob, pod

NOW = "2026-01-01T00:00:00Z"
WISH = copying.Wish("a1", "checkpoints", "d" * 64)


def asked(wish: copying.Wish | None = WISH, **spec):
    job = edljob(**spec)
    if wish is not None:
        job["metadata"]["annotations"] = {copying.ANNOTATION: wish.to_annotation()}
    return job


def actions(job, *there):
    owner = {"kind": "EdlJob", "name": "demo", "uid": job["metadata"]["uid"]}
    config = objects.config(wanted(job).settings, wanted(job).templates)
    config["metadata"] |= {"ownerReferences": [owner], "uid": "c", "resourceVersion": "1"}
    seen = Seen(job, there, config, None)
    made = decide(seen, Memory(), 0.0, NOW, lambda _: Identity("t"))
    return [each for each in made.actions if "copy" in each.name]


def helper(job, id: str = "a1", phase: str = "Running"):
    return pod(job, copying.ROLE, phase=phase, name=f"edl-demo-copy-{id}")


def test_who_asks_by_an_annotation_gets_one_pod_with_the_rights_of_a_worker():
    job = asked()

    (made,) = actions(job)
    again = actions(job, helper(job))

    spec = made.body["spec"]
    container = pods.container_of(made.body)
    assert made.body["metadata"]["name"] == "edl-demo-copy-a1"
    assert container["command"] == ["python", "-m", "edl.k8s.send"]
    assert container["args"] == ["checkpoints", "d" * 64]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
        pods.REPLICA_ACCOUNT,
        False,
    )
    assert pods.JOB_DIR in [each["mountPath"] for each in container["volumeMounts"]]
    assert again == []


@pytest.mark.parametrize("path", ["/etc/shadow", "../../secret", "/dev/shm/x", "/data/../etc"])
def test_nothing_is_given_out_but_the_jobs_folder_and_the_volumes_of_its_pods(path):
    claim = {"persistentVolumeClaim": {"claimName": "c"}}
    mounts = {
        "volumes": [{"name": "d", **claim}],
        "volumeMounts": [{"name": "d", "mountPath": "/data"}],
    }
    templates = wanted(edljob(**mounts)).templates

    said = copying.refusal(templates, path)
    allowed = [
        copying.refusal(templates, each) for each in ("checkpoints", ".", "/data/out", "/data")
    ]
    (made,) = actions(asked(copying.Wish("a1", "/data/out", "d" * 64), **mounts))

    assert said == (
        f"{path} is neither in the job's folder nor in a volume of its pods (/data): name a path "
        "in one of them."
    )
    assert allowed == [""] * 4
    assert actions(asked(copying.Wish("a1", path, "d" * 64), **mounts)) == []
    variables = {each["name"]: each.get("value") for each in pods.container_of(made.body)["env"]}
    assert variables[copying.FROM].split(":") == [pods.JOB_DIR, "/data"]


@pytest.mark.parametrize("wish", [None, copying.Wish("b2", "x", "e" * 64)])
def test_a_helper_that_nobody_asks_for_any_more_is_deleted(wish):
    job = asked(wish)

    found = actions(job, helper(job))

    assert [each.verb for each in found if each.name == "edl-demo-copy-a1"] == ["delete"]
    assert [each.verb for each in found if each.name != "edl-demo-copy-a1"] == (
        ["create"] if wish else []
    )


def test_an_annotation_that_is_none_of_ours_makes_nothing():
    job = edljob()
    job["metadata"]["annotations"] = {copying.ANNOTATION: "{}"}

    assert actions(job) == []


def test_a_suspended_job_gives_files_and_is_suspended_all_the_same():
    job = asked(suspend=True)
    (made,) = actions(job)

    plan = decide(Seen(job, [helper(job)], None, None), Memory(), 0.0, NOW, lambda _: Identity("t"))

    assert made.verb == "create"
    (status,) = [each.body["status"] for each in plan.actions if each.subresource == "status"]
    assert status["phase"] == "Suspended"
    assert job_status.of_role([helper(job)], "worker") == []


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve a folder; return a function that asks for it with a secret."""
    (tmp_path / "file").write_text("content")
    identity = Identity.create("token")
    monkeypatch.setenv("EDL_TOKEN", "token")
    monkeypatch.setenv("EDL_IDENTITY", identity.to_variable())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(send, "FILES_PORT", port)
    monkeypatch.setattr(send, "JOB_DIR", str(tmp_path))
    codes = []
    digest = hashlib.sha256(b"secret").hexdigest()
    thread = threading.Thread(target=lambda: codes.append(send.main(["file", digest])), daemon=True)
    thread.start()

    def ask(secret: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cadata=identity.certificate_pem)
        context.check_hostname = False
        give_up = time.monotonic() + 60.0
        while time.monotonic() < give_up:
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
            try:
                connection.request("GET", f"/{secret}")
            except ConnectionRefusedError:
                continue
            answer = connection.getresponse()
            return answer.status, answer.read()
        raise AssertionError("nobody serves")

    yield ask
    thread.join(60.0)
    assert codes == [0]


def test_whoever_knows_the_secret_is_answered_and_nobody_else(served, tmp_path):
    refused, _ = served("guess")
    status, data = served("secret")

    transfer.receive(iter([data]), tmp_path / "copy")
    assert (refused, status) == (404, 200)
    assert (tmp_path / "copy").read_text() == "content"
