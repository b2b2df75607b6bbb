"""`edl.train` and `edl.submit` begin what `edl train` begins; a Job says what its commands say."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tools.apiserver import ApiServer
from tools.clustered import add_pod, say, the_job

import edl
from edl.api import run as api
from edl.common.settings import JobSettings
from edl.jobs import reap
from edl.jobs.local import LocalJob
from edl.jobs.wait import TooLate
from edl.k8s import job as edljob

Run = Callable[..., tuple[int, str, str]]


def feed(records: Any, mode: str) -> Any:
    return records, mode


def model() -> Any: ...


def loss(outputs: Any, labels: Any) -> Any: ...


PARTS: dict[str, Any] = {"model": model, "loss": loss, "optimizer": edl.nn.Adam(), "feed": feed}


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.csv"
    path.write_text("a\n1\n")
    return str(path)


# -- arguments


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"num_workers": 3, "use_async": True}, ["--num_workers", "3", "--use_async"]),
        ({"shuffle": False, "lease_s": 2.5}, ["--no_shuffle", "--lease-s", "2.5"]),
        ({"num_workers": (1, 8)}, ["--num_workers", "8", "--min_workers", "1"]),
        ({"num_teachers": (1, 4)}, ["--num_teachers", "1:4"]),
        ({"batch_size": 32, "epochs": 4}, ["--minibatch_size", "32", "--num_epochs", "4"]),
        (
            {"model_params": {"dim": 8, "layers": [1, 2]}, "envs": {"A": "1,2"}},
            ["--model_params", "dim=8,layers=[1, 2]", "--envs", "A=1,2"],
        ),
        ({"model_params": "dim=8", "staleness": None}, ["--model_params", "dim=8"]),
        ({"strategy": "AllReduceStrategy", "seed": "7"}, ["--strategy=allreduce", "--seed=7"]),
        (
            {"batch_rule": "linear", "strategy": "allreduce"},
            ["--batch_rule=linear", "--strategy=allreduce"],
        ),
        (
            {"runtime": "kubernetes", "image": "mine", "num_workers": (2, 4)},
            ["--runtime=kubernetes", "--image=mine", "--num_workers=4", "--min_workers=2"],
        ),
    ],
)
def test_settings_are_those_of_the_same_flags(
    run: Run, data: str, given: dict[str, Any], flags: list[str]
) -> None:
    given = {"job_name": "demo", "training_data": Path(data), **given}
    code, out, err = run(
        *("train", "--model_def", "iris", "--training_data", data, "--job_name", "demo"),
        *(*flags, "--dry_run"),
    )

    assert (0, "") == (code, err)
    expected = yaml.safe_load(out)
    with api.wanted("train", "train", "iris", given) as begun:
        settings = json.loads(begun.settings.to_json())
        assert expected == {name: settings[name] for name in expected}


def test_a_job_file_is_read_and_arguments_go_before_it(data: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("num_workers: 5\nnum_ps: 3\n")
    given = {"training_data": data, "config": str(tmp_path / "job.yaml"), "num_ps": 2}

    with api.wanted("train", "train", "iris", given) as begun:
        assert (5, 2) == (begun.settings.num_workers, begun.settings.num_ps)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"num_workers": 0}, ["--num_workers=0"]),
        ({"num_workers": "many"}, ["--num_workers=many"]),
        ({"strategy": "alreduce"}, ["--strategy=alreduce"]),
        ({"image": "mine"}, ["--image=mine"]),
        ({"job_name": "No Name"}, ["--job_name=No Name"]),
        ({"runtime": "kubernetes"}, ["--runtime=kubernetes"]),
        ({"training_data": "/no/such/file"}, ["--training_data=/no/such/file"]),
        ({"priority": 3}, ["--priority=3"]),
        ({"config": "/no/such.yaml"}, ["--config=/no/such.yaml"]),
        ({"resume": "/no/such"}, ["--resume=/no/such"]),
    ],
)
def test_errors_are_the_sentences_of_the_command_line(
    run: Run, data: str, given: dict[str, Any], flags: list[str]
) -> None:
    _, _, err = run("train", "--model_def=iris", "--training_data", data, *flags)

    with pytest.raises(edl.UsageError) as refused:
        edl.train("iris", **{"training_data": data, **given})

    assert err == f"edl: error: {refused.value}\n"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"num_worker": 2}, "train() got an unexpected keyword argument 'num_worker'; did you"),
        ({"num_workers": (8, 1)}, "num_workers is a number or (MIN, MAX), not (8, 1)"),
        ({"minibatch_size": 1, "batch_size": 2}, "'batch_size' and another name of"),
        ({"zzz": 1}, "train() got an unexpected keyword argument 'zzz' (`edl train --help`"),
    ],
)
def test_an_unknown_argument_is_a_type_error_with_a_suggestion(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError) as refused:
        edl.train("iris", **given)

    assert str(refused.value).startswith(sentence)


def test_a_definition_is_said_once() -> None:
    with pytest.raises(edl.UsageError, match="model, loss, optimizer, feed and a definition"):
        edl.submit("iris", **PARTS)
    with pytest.raises(edl.UsageError, match="--model_def and a definition: leave out one"):
        edl.submit("iris", model_def="deepfm")
    with pytest.raises(edl.UsageError, match="No --model_def"):
        edl.submit()


# -- what was typed, and data in memory


def test_what_was_typed_and_data_in_memory_are_files_of_the_jobs_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    child = subprocess.Popen(["true"])
    begun: list[LocalJob] = []

    def launch(job: LocalJob, lock: int, _master: Any) -> Any:
        os.close(lock)
        begun.append(job)
        return job, child

    monkeypatch.setattr("edl.jobs.start._launch", launch)

    job = edl.submit(**PARTS, training_data={"a": np.arange(3)}, job_name="demo", num_ps=2)

    (local,) = begun
    reap.settle(local, 300.0)
    settings = JobSettings.of_job(local.folder)
    assert (job.name, str(job.path)) == ("demo", str(home / "jobs/demo"))
    assert str(local.folder / "definition.py") == settings.model_def
    assert str(local.folder / "training_data.parquet") == settings.training_data
    assert "optimizer():\n    return edl.nn.Adam()\n" in Path(settings.model_def).read_text()
    assert capsys.readouterr().out.startswith("training_data: 3 records, 0.0 MB, as Parquet")
    assert ["jobs"] == sorted(path.name for path in home.iterdir())


def test_what_is_refused_leaves_nothing(home: Path) -> None:
    with pytest.raises(edl.UsageError, match="--num_workers is at least 1"):
        edl.submit(**PARTS, num_workers=0)

    assert [] == list(home.iterdir())


CLUSTER: dict[str, Any] = {"runtime": "kubernetes", "image": "mine", "job_name": "demo"}


@pytest.mark.parametrize("kind", ["job", "edljob"])
def test_a_typed_definition_goes_to_pods_as_the_jobs_own_config_map(
    server: ApiServer, edljobs: None, kind: str
) -> None:
    edl.submit(
        **PARTS, training_data="/data", volume="claim_name=c,mount_path=/data", kind=kind, **CLUSTER
    )

    top = server.objects["edljobs", "demo"] if kind == "edljob" else the_job(server)
    found = server.objects["configmaps", "edl-demo-definition"]
    assert "def feed(records" in found["data"]["definition.py"]
    assert [top["metadata"]["uid"]] == [r["uid"] for r in found["metadata"]["ownerReferences"]]
    if kind == "edljob":
        wanted = edljob.wanted(top)
        settings, templates = wanted.settings, wanted.templates
    else:
        data = server.objects["configmaps", "edl-demo"]["data"]
        settings = JobSettings.from_json(data["settings.json"])
        templates = json.loads(data["templates.json"])
    assert "/definition/definition.py" == settings.model_def
    for role in ("master", "worker", "ps"):
        spec = templates[role]["spec"]
        name = {"configMap": {"name": "edl-demo-definition"}}
        (volume,) = [v for v in spec["volumes"] if name.items() <= v.items()]
        mounts = spec["containers"][0]["volumeMounts"]
        assert {"name": volume["name"], "mountPath": "/definition"} in mounts


def test_a_job_is_taken_back_where_its_definition_cannot_go(server: ApiServer) -> None:
    server.unknown.discard("edljobs")
    server.forbidden = {("create", "configmaps")}

    with pytest.raises(edl.EdlError, match="may not create configmaps"):
        edl.submit(**PARTS, training_data="/data", kind="edljob", **CLUSTER)

    assert ("edljobs", "demo") not in server.objects


def test_another_jobs_definition_is_not_allowed(server: ApiServer, edljobs: None) -> None:
    volume = "config_map=edl-other-definition,mount_path=/definition"
    edl.submit("iris", training_data="/data", volume=volume, kind="edljob", **CLUSTER)

    with pytest.raises(edl.UsageError, match="configMaps: edl-other-definition"):
        edljob.wanted(server.objects["edljobs", "demo"])


def test_data_in_memory_does_not_go_to_pods(server: ApiServer) -> None:
    with pytest.raises(edl.UsageError, match="training_data is in the memory of this process"):
        edl.submit(**PARTS, training_data={"a": [1]}, **CLUSTER)

    assert [] == [path for method, path in server.requests if method == "POST"]


def test_a_definition_is_checked_as_edl_zoo_check_does(run: Run, tmp_path: Path) -> None:
    run("zoo", "init", str(tmp_path / "mine"))
    data = str(tmp_path / "mine/train.csv")
    torch.manual_seed(0)  # of the model's first values
    _, said, _ = run("zoo", "check", str(tmp_path / "mine/mine.py"), "--training_data", data)

    torch.manual_seed(0)
    found = edl.check(tmp_path / "mine/mine.py", data)

    assert said.splitlines() == [str(each) for each in found]
    with pytest.raises(TypeError, match="no 'num_workers'"):
        edl.check("iris", num_workers=2)


# -- a job


def test_a_job_is_found_by_its_name_and_says_what_its_commands_say(
    run: Run, running: Any, home: Path
) -> None:
    master = running("demo")
    (home / "jobs/demo/logs/worker-0.log").write_text("hi\n")

    job = edl.job()

    told = json.loads(run("status", "demo", "-o", "json")[1])
    assert ("demo", [repr(job)]) == (job.name, [repr(each) for each in edl.jobs()])
    assert (told, told["events"], {"auc": 0.73125}, False) == (
        job.status(),
        job.events(),
        job.metrics(),
        job.done(),
    )
    assert "<th>job</th><td>demo</td>" in job._repr_html_()
    assert ["hi"] == list(job.logs("worker", tail=1))
    job.scale(workers=4, ps=2)
    job.scale(teachers=(1, 3))
    assert "/checkpoints/version-000000000700" == job.checkpoint(timeout=60)
    assert "is stopping" in job.stop()
    assert ["scale: 4, 2 servers", "scale: 0, 1:3 teachers"] == master.asked[:2]
    assert ["checkpoint", "stop: Job.stop"] == [master.asked[2].split()[0], *master.asked[3:]]
    with pytest.raises(edl.UsageError, match="How many"):
        job.scale()
    with pytest.raises(edl.UsageError, match="That is of jobs in a cluster; a local one is"):
        job.suspend()
    with pytest.raises(edl.UsageError, match="There is no job 'other' here. There are: demo."):
        edl.job("other")


def test_a_wait_that_is_too_long_is_a_timeout(running: Any) -> None:
    running("demo")
    job = edl.job("demo")

    with pytest.raises(TimeoutError, match="It is not ended after 0 s, but running"):
        job.wait(0.0)
    with pytest.raises(TooLate):
        asyncio.run(job.wait_async(0.0))
    with pytest.raises(
        edl.UsageError, match="until is one of done, running, failed, stopped, ended, not"
    ):
        job.wait(until="finished")
    assert "running" == job.wait(until="running")["state"]


def test_a_job_that_is_done_has_a_result(ended: Any) -> None:
    local = ended("demo", {"state": "done", "exit_code": 3, "message": "done"})

    result = edl.job("demo").result()

    assert ("demo", "done", 3) == (result.name, result.state, result.exit_code)
    assert {"auc": 0.73125} == result.metrics
    assert [{"version": 600, "epoch": 0, "auc": 0.73125}] == result.history
    assert (str(local.folder), 1) == (result.path, result.restarts["worker"])
    assert [17, 18] == result.quarantined[0]["records"]
    assert "/checkpoints/version-000000000600" == result.checkpoint


def test_a_job_that_was_stopped_in_order_has_a_result_and_a_cancelled_one_has_none(
    ended: Any,
) -> None:
    stopped = {"state": "failed", "exit_code": 130, "message": "stopped"}
    ended("stopped", {**stopped, "resume": "/c/version-1"})
    ended("cancelled", {**stopped, "resume": None})

    async def both() -> Any:
        return await edl.job("stopped")

    assert 130 == asyncio.run(both()).exit_code
    with pytest.raises(edl.JobFailed):
        edl.job("cancelled").result()


def test_a_failed_job_is_an_error_with_its_last_words(ended: Any) -> None:
    local = ended("demo", {"state": "failed", "exit_code": 1, "message": "all workers failed"})
    (local.folder / "logs/worker-0.log").write_text("Traceback\nValueError: mine\n")

    with pytest.raises(edl.JobFailed) as failed:
        edl.job("demo").result()

    error = failed.value
    assert ("all workers failed", 1, "demo") == (error.reason, error.exit_code, error.where)
    assert "Traceback\nValueError: mine" == error.log_tail
    assert "Job demo failed: all workers failed (all it said: `edl logs demo`)" in str(error)


def test_a_job_whose_master_is_gone_is_an_error_that_says_how_it_goes_on(ended: Any) -> None:
    local = ended("demo", None)
    (local.folder / "journal.sqlite").touch()

    with pytest.raises(edl.JobFailed, match="its master is gone; nothing that was acknowledged"):
        edl.job("demo").result()


def test_a_definition_that_is_broken_is_told_by_the_job_as_by_edl_train(
    monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    from edl.jobs import start

    begin, dies = start._launch, ("sh", "-c", "echo 'edl: error: iris lacks loss'; exit 2")
    monkeypatch.setattr(start, "_launch", lambda job, lock, _master: begin(job, lock, dies))

    job = edl.submit("iris", training_data=data, job_name="demo")

    with pytest.raises(edl.UsageError, match=r"^iris lacks loss$"):
        job.result(300.0)
    assert "failed" == edl.job("demo").status()["state"]


def test_a_with_block_stops_the_job_at_its_end(running: Any) -> None:
    master = running("demo")

    def ends_when_asked() -> None:
        while not master.asked:
            threading.Event().wait(0.01)
        folder = Path(os.environ["EDL_HOME"]) / "jobs/demo"
        (folder / "result.json").write_text(json.dumps({**master.status, "state": "failed"}))

    thread = threading.Thread(target=ends_when_asked)
    thread.start()
    with edl.job("demo") as job:
        assert [] == master.asked
    thread.join(300.0)

    assert (["stop: Job.stop"], True) == (master.asked, job.done())


# -- in a cluster


def test_the_same_call_submits_to_a_cluster_and_attaches_to_it(
    server: ApiServer, run: Run, status: dict[str, Any]
) -> None:
    job = edl.submit(
        "iris",
        training_data="/data/iris.csv",
        job_name="demo",
        runtime="kubernetes",
        image="mine",
        namespace="lab",
        job_volume="claim_name=c",
    )

    assert "demo" == the_job(server)["metadata"]["labels"]["edl.dev/job-name"]
    assert [repr(job)] == [repr(each) for each in edl.jobs(runtime="kubernetes", namespace="lab")]
    assert "edl.job('demo', runtime='kubernetes', namespace='lab')" == repr(job)
    add_pod(server, "master")
    say(server, {**status, "job_name": "demo", "quarantined": []})
    job.scale(workers=5)
    assert job.path is None
    say(server, {**status, "job_name": "demo", "state": "done", "exit_code": 0})
    result = edl.job("demo", namespace="lab", runtime="kubernetes").result(30.0)
    assert ("done", "") == (result.state, result.path)
    with pytest.raises(edl.UsageError, match="is one of its pods: copy it here"):
        result.load_model()
    with pytest.raises(edl.UsageError, match="was one of a cluster"):
        result.resume()


def test_a_job_of_a_cluster_is_suspended_and_goes_on(server: ApiServer, edljobs: None) -> None:
    job = edl.submit("iris", training_data="/data", job_volume="claim_name=c", **CLUSTER)

    job.suspend()
    suspended = server.objects["edljobs", "demo"]["spec"]["suspend"]
    job.resume()

    assert (True, False) == (suspended, server.objects["edljobs", "demo"]["spec"]["suspend"])
