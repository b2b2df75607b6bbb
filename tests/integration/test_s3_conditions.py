"""Conditional writes by the file system that state is kept with, on which a lease can stand."""

import json

import pytest
from tools import s3

pytest.importorskip("s3fs")
pytest.importorskip("boto3")

WRITES = """
import json
from concurrent.futures import ThreadPoolExecutor
from edl.common.stores import open_store

fs, root = open_store("s3://bucket/leases")

def status(name, data, **condition):
    try:
        fs.pipe_file(f"{root}/{name}", data, **condition)
        return "written"
    except OSError as error:
        said = getattr(error.__cause__ or error.__context__, "response", {"ResponseMetadata": {}})
        return [type(error).__name__, said["ResponseMetadata"].get("HTTPStatusCode")]

found = {"created": status("one", b"first", mode="create")}
found["created again"] = status("one", b"second", mode="create")
found["after that"] = fs.cat_file(f"{root}/one").decode()
tag = fs.info(f"{root}/one")["ETag"]
found["replaced"] = status("one", b"third", IfMatch=tag)
found["replaced by who has not seen it"] = status("one", b"fourth", IfMatch=tag)
found["of what is not there"] = status("none", b"fifth", IfMatch=tag)
found["at last"] = fs.cat_file(f"{root}/one").decode()
with ThreadPoolExecutor(8) as all:
    mine = list(all.map(lambda n: status("raced", str(n).encode(), mode="create"), range(8)))
found["won"] = [n for n, each in enumerate(mine) if each == "written"]
found["lost"] = [each for each in mine if each != "written"]
found["kept"] = int(fs.cat_file(f"{root}/raced"))
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", s3.both())
def test_a_write_under_a_condition_that_does_not_hold_is_refused_with_412(kind):
    with s3.server("bucket", kind) as variables:
        found = json.loads(s3.python(WRITES, variables))

    assert ["written", "first"] == [found["created"], found["after that"]]
    assert ["FileExistsError", 412] == found["created again"]
    assert "written" == found["replaced"]
    assert ["OSError", 412] == found["replaced by who has not seen it"]
    assert ["FileNotFoundError", 404] == found["of what is not there"]
    assert "third" == found["at last"]
    if kind == s3.REAL:  # of the mock several may win: it looks first, and writes then
        assert [found["kept"]] == found["won"]
        assert [["FileExistsError", 412]] * 7 == found["lost"]
