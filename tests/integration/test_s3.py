"""The S3 servers of the tests: side by side, and gone with whoever started them."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tools import s3
from tools.turns import some

pytest.importorskip("boto3")

END_S = 60.0
STARTS = """
import os, psutil, signal, sys
from tools import s3

with s3.server("bucket", sys.argv[1]) as variables:
    print(psutil.Process().children()[0].pid, variables["AWS_ENDPOINT_URL"], flush=True)
    input()
"""
READS = """
import time

import boto3
from edl.common.errors import DataError
from edl.data.open import open_reader

store = boto3.client("s3")

def put(key, *values):
    text = "v\\n" + "".join(f"{value}\\n" for value in values)
    store.put_object(Bucket="bucket", Key=key, Body=text.encode())

def values(reader):
    return [
        int(value)
        for each in reader.sources()
        for value in reader.read(each.name, 0, each.records)["v"]
    ]

put("data/a.csv", 1, 2)
reader = open_reader("s3://bucket/data")
print(values(reader))
time.sleep(1.1)  # stores tell of whole seconds
put("data/a.csv", 3, 4)
try:
    print(values(reader))
except DataError as error:
    print("has changed since its records were counted" in str(error))
put("data/a.csv", 5, 6, 7)
put("data/b.csv", 8)
print(values(open_reader("s3://bucket/data")))
"""
both = pytest.mark.parametrize("kind", s3.both())


@both
def test_servers_side_by_side_have_objects_of_their_own(kind):
    with (
        s3.server("bucket", kind) as one,
        s3.server("bucket", kind) as other,
        s3.client(one) as mine,
        s3.client(other) as theirs,
    ):
        mine.put_object(Bucket="bucket", Key="a/b", Body=b"mine")
        theirs.put_object(Bucket="bucket", Key="c", Body=b"theirs")
        keys = [
            [each["Key"] for each in client.list_objects_v2(Bucket="bucket")["Contents"]]
            for client in (mine, theirs)
        ]

    assert [["a/b"], ["c"]] == keys


@both
def test_a_server_ends_with_the_process_that_started_it_even_when_that_is_killed(kind, tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS, kind],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "TMPDIR": str(tmp_path),  # who is killed removes nothing
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        pid, url = starter.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        starter.send_signal(signal.SIGKILL)

        assert select.select([server], [], [], END_S)[0], f"{url} is still served"
        os.close(server)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()


def test_the_real_server_refuses_whoever_does_not_know_its_secret():
    if s3.archive() is None:
        pytest.skip(s3.LACKING)
    with s3.server("bucket", s3.REAL) as variables:
        wrong = variables | {"AWS_SECRET_ACCESS_KEY": "another"}

        with s3.client(wrong) as client, pytest.raises(Exception, match="SignatureDoesNotMatch"):
            client.list_objects_v2(Bucket="bucket")


@both
def test_what_is_replaced_is_no_more_read_by_a_reader_and_a_new_one_sees_all_that_is_there(kind):
    pytest.importorskip("s3fs")
    with s3.server("bucket", kind) as variables:
        said = subprocess.run(
            [sys.executable, "-c", READS],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
        )

    assert ["[1, 2]", "True", "[5, 6, 7, 8]"] == said.stdout.split("\n")[:3], said.stderr


@pytest.mark.parametrize(
    ("changes", "path", "why"),
    some(
        [
            pytest.param({"AWS_SECRET_ACCESS_KEY": "another"}, "s3://bucket/x", "signature"),
            pytest.param(
                {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
                "s3://bucket/x",
                "credentials",
            ),
            pytest.param({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://bucket/x", "connect"),
            pytest.param({"AWS_ENDPOINT_URL": "127.0.0.1:9"}, "s3://bucket/x", "endpoint"),
            pytest.param({}, "s3://", "S3"),
            pytest.param({}, "s3://BUCKET/x", "bucket"),
        ],
        3,
    ),
)
def test_what_keeps_data_in_a_store_from_being_opened_is_one_sentence(changes, path, why, tmp_path):
    pytest.importorskip("s3fs")
    if s3.archive() is None:
        pytest.skip(s3.LACKING)
    with s3.server("bucket", s3.REAL) as variables:
        env = {**os.environ, **variables, "HOME": str(tmp_path), **changes}
        env = {name: value for name, value in env.items() if value}
        env["AWS_EC2_METADATA_DISABLED"] = "true"
        said = subprocess.run(
            [sys.executable, "-m", "edl", "data", "analyze", path],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=2 * END_S,
            check=False,
        )

    assert said.returncode != 0
    (line,) = said.stderr.splitlines()[-1:]
    assert line.startswith("edl: error: "), said.stderr
    assert "Traceback" not in said.stderr
    assert why.lower() in line.lower()
