"""Parquet read from a real S3 server, and through connections that fall silent or are reset."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tools import s3
from tools.turns import in_turn

pytest.importorskip("s3fs")
pytest.importorskip("boto3")

ROWS, GROUP = 60_000, 9000
READS = """
import hashlib, json, os, sys
import numpy as np
from edl.data.open import open_reader
from tools.proxy import Proxy

def digest(reader, before=lambda start: None):
    name = reader.sources()[0].name
    read, found = hashlib.sha256(), []
    for start in range(0, int(sys.argv[2]), 5000):
        before(start)
        records = reader.read(name, start, min(start + 5000, int(sys.argv[2])))
        for column, values in records.items():
            kind = getattr(values, "values", values).dtype  # of a Ragged those of its elements
            read.update(f"{column} {kind}".encode())
            for value in values:
                read.update(np.asarray(value).tobytes())
    return read.hexdigest()

found = {}
for columns in ("", "n|lists", "word"):
    chosen = {"columns": columns} if columns else {}
    local = digest(open_reader(sys.argv[1], **chosen))
    found[f"all of {columns}"] = [local, digest(open_reader("s3://bucket/data.parquet", **chosen))]

def fail(proxy, how):
    def before(start):  # a reader asks for the next row group soon
        if start == 20_000 and how == "silent":
            proxy.deaf_after = 100_000
        if start == 20_000 and how == "reset":
            proxy.reset()
    return before

url = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
for how in ("silent", "reset"):
    with Proxy(url) as proxy:
        # fsspec knows a server by its settings: another one by another address
        os.environ["AWS_ENDPOINT_URL"] = f"http://{proxy.address}"
        import fsspec, s3fs
        s3fs.S3FileSystem.clear_instance_cache()
        reader = open_reader("s3://bucket/data.parquet")
        found[how] = [digest(open_reader(sys.argv[1])), digest(reader, fail(proxy, how))]
        found[f"{how}, struck"] = proxy.deaf_after is None and proxy.accepted > 1
print(json.dumps(found))
"""


@in_turn(0)
def test_parquet_in_a_bucket_is_what_it_is_locally_even_where_connections_fail(tmp_path):
    r = np.random.default_rng(0)
    made = pyarrow.table(
        {
            "n": np.arange(ROWS),
            "x": r.normal(size=ROWS),
            "word": [f"w{n}" for n in r.integers(0, 5000, ROWS)],
            "lists": [list(range(n % 4)) for n in range(ROWS)],
        }
    )
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(made, path, row_group_size=GROUP, compression="none")

    with s3.server("bucket") as variables:
        with s3.client(variables) as client:
            client.upload_file(str(path), "bucket", "data.parquet")
        soon = json.dumps({"config_kwargs": {"read_timeout": 2}})
        found = json.loads(s3.python(READS, variables | {"FSSPEC_S3": soon}, str(path), str(ROWS)))

    assert [True, True] == [found.pop("silent, struck"), found.pop("reset, struck")]
    assert {how: [local, local] for how, (local, _) in found.items()} == found
