"""A job whose state is all at an S3 server: a worker and a server are killed, then it is stopped.

Another job goes on from the bucket alone, and the counting model says what was applied.
"""

import json
import signal

import pytest
from tools import s3
from tools.jobs import Job, send, write_records
from tools.turns import some

pytest.importorskip("s3fs")
pytest.importorskip("boto3")

RECORDS, EPOCHS = 1600, 2
LOOK = """
import edl, json, sys
from edl.common import storage
from tools.servers import assert_exact

folder, records, epochs, zoo = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
newest = storage.load(folder)
assert_exact(folder, records, epochs)
rows = edl.rows(folder, "counts")
sys.path.insert(0, zoo)
model = edl.load(folder)
print(json.dumps({
    "newest": str(newest.place),
    "kept": [place.name for place in storage.find_checkpoints(folder)],
    "rows": [int(rows.ids.sum()), float(rows.weight.sum())],
    "loaded": float(model.total.sum()),
}))
"""


def job_of(folder, **settings):
    return Job(
        folder,
        model_def="counting",
        model_params={"delay_s": 0.01},
        training_data=str(write_records(folder.parent / "records.npz", RECORDS)),
        minibatch_size=16,
        num_minibatches_per_task=8,
        num_epochs=EPOCHS,
        num_workers=2,
        num_ps=2,
        lease_s=2.0,
        snapshot_s=0.3,
        use_async=True,
        checkpoint_dir="s3://bucket/checkpoints",
        snapshot_dir="s3://bucket/snapshots",
        checkpoint_steps=20,
        keep_checkpoint_max=2,
        **settings,
    )


def done(job, part):
    return job.watch(
        lambda s: (
            s["records_total"]
            and s["records_done"] >= part * s["records_total"]
            and all(each["pid"] for each in (*s["servers"], *s["workers"]))
        )
    )


@pytest.mark.parametrize("server", some(s3.both(), parts=3))
def test_a_job_whose_state_is_in_a_bucket_survives_kills_and_is_gone_on_with(
    server, tmp_path, monkeypatch
):
    with s3.server("bucket", server) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with job_of(tmp_path / "first") as job:
            status = done(job, 0.2)
            assert send(status["workers"][0]["pid"], signal.SIGKILL)
            assert send(status["servers"][1]["pid"], signal.SIGKILL)
            done(job, 0.5)
            client = job.client()
            client.stop("a test")
            client.close()
            job.wait()
            first = job.result()
            killed = [first["restarts"][f"{role}preemptions"] for role in ("", "server_")]
            assert [1, 1] == killed, job.logs()
            assert first["checkpoint"].startswith("s3://bucket/checkpoints/version-"), job.logs()

        with job_of(tmp_path / "second", resume=first["checkpoint"]) as job:
            assert 0 == job.wait(), job.logs()
            second = job.result()

        zoo = job.settings.model_zoo
        arguments = ["s3://bucket/checkpoints", str(RECORDS), str(EPOCHS), zoo]
        found = json.loads(s3.python(LOOK, {"EDL_HOME": str(tmp_path / "home")}, *arguments))

    assert second["checkpoint"] == found["newest"]
    assert 2 == len(found["kept"])
    assert [sum(range(RECORDS)), RECORDS * EPOCHS] == found["rows"]
    assert RECORDS * EPOCHS == found["loaded"]
