"""Conditional writes by the file system that state is kept with, and claims that stand on them."""

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


CLAIMS = """
import json
from concurrent.futures import ThreadPoolExecutor
from edl.common import conditional
from edl.common.claims import EXPIRES_S, FILE, Claim, Holder, Taken
from edl.common.clock import FakeClock
from edl.common.places import Place

def claim(job, id="", wait=lambda: None):
    clock = FakeClock()
    me = Holder(f"{job}-1", job, id or job, "h", master=f"{job} {id}")
    return Claim(Place("s3://bucket/deltas"), me, clock, lambda s: (clock.advance(s), wait()))

def outcome(work):
    try:
        work()
        return "ours"
    except Taken as error:
        return str(error)

first = claim("first")
found = {"first": outcome(first.take), "beats": [outcome(first.renew) for _ in range(2)]}
beating = claim("second", wait=first.renew)
found["second, while the first beats"] = outcome(beating.take)
silent = claim("third")
found["third, as it is silent"] = outcome(silent.take)
found["waited"] = round(silent._clock.now())
found["first after that"] = outcome(first.hold)
again = claim("third", wait=lambda: None)
found["its next master"] = outcome(again.take), again._clock.now()
again.close()
last = claim("fourth")
found["one that was given up"] = outcome(last.take), last._clock.now()
place = Place("s3://bucket/raced")
with ThreadPoolExecutor(8) as all:
    written = list(all.map(lambda n: conditional.swap(place, FILE, b"%d" % n, None), range(8)))
found["won"] = [n for n, each in enumerate(written) if each is not None]
found["kept"] = int(place.read(FILE))
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", s3.both())
def test_a_folder_in_a_bucket_has_one_owner(kind):
    with s3.server("bucket", kind) as variables:
        found = json.loads(s3.python(CLAIMS, variables))

    assert ("ours", ["ours", "ours"]) == (found["first"], found["beats"])
    assert "the job 'first', which is running, writes to" in found["second, while the first beats"]
    assert "ours" == found["third, as it is silent"]
    assert 25 < found["waited"] < 30
    assert "is written to by the job 'third', on h, by now" in found["first after that"]
    assert ["ours", 0.0] == found["its next master"] == found["one that was given up"]
    if kind == s3.REAL:
        assert [found["kept"]] == found["won"]
