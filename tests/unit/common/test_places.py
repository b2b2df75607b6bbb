"""Places: folders here and at stores that fail, are slow, and list late."""

import errno
import itertools
import threading
import time

import pytest
from tools.stores import clear_memory, world

from edl.common import copies, places, stores
from edl.common.errors import CheckpointError, UsageError
from edl.common.places import Place
from edl.common.storage import FileRecord
from edl.common.stores import Asking, StoreError

pytestmark = pytest.mark.fast


class Clock:
    """A clock that only pauses move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def place(clock):
    world("a", new=True)
    return Place("flaky://a/job", Asking(30.0, clock.wait, clock)) / "x"


@pytest.fixture
def there(place):
    return world("a")


@pytest.fixture(params=["path", "file", "memory", "flaky"])
def any_place(request, tmp_path):
    clear_memory()
    world("any", new=True)
    where = {
        "path": str(tmp_path / "x"),
        "file": f"file://{tmp_path}/x",
        "memory": "memory://any/x",
        "flaky": "flaky://any/x/",
    }
    return Place(where[request.param])


def test_what_is_written_is_read_listed_and_removed(any_place):
    record = any_place.write("b", b"one", memoryview(b"two"))
    any_place.write("a", b"")

    assert b"onetwo" == any_place.read("b") == any_place.read_checked(record)
    any_place.check(record)
    assert ["a", "b"] == any_place.names()
    assert (True, False, 6, None) == (
        any_place.has("b"),
        any_place.has("c"),
        any_place.size("b"),
        any_place.size("c"),
    )
    any_place.remove(["c", "b"])
    assert ["a"] == any_place.names()
    any_place.remove_all()
    assert [] == any_place.names() == any_place.parent.names()


def test_a_place_in_a_place_knows_its_name_and_its_parent(any_place):
    inner = any_place / "v"

    assert ("v", any_place, str(any_place)) == (inner.name, inner.parent, str(inner.parent))
    assert inner == Place(str(inner)) == Place(inner)
    assert hash(inner) == hash(Place(str(inner)))
    assert inner != any_place


def test_a_file_of_more_bytes_than_are_believed_is_not_read(any_place):
    any_place.write("a", b"12345")

    with pytest.raises(OSError, match="5 bytes, where 4 are believed"):
        any_place.read("a", most=4)


@pytest.mark.parametrize(
    ("bytes", "wrong"),
    [
        (None, "is missing"),
        (b"12", "is torn: 2 bytes"),
        (b"123456", "is torn: 6"),
        (b"54321", "is damaged"),
    ],
)
def test_what_is_not_as_it_was_written_is_named(any_place, tmp_path, bytes, wrong):
    record = any_place.write("a", b"12345")
    any_place.remove(["a"]) if bytes is None else any_place.write("a", bytes)

    for read in (
        any_place.read_checked,
        any_place.check,
        lambda r: any_place.copy(r, tmp_path / "c"),
    ):
        with pytest.raises(CheckpointError, match=f"{any_place}/a {wrong}"):
            read(record)
    assert not (tmp_path / "c").exists() or [] == list((tmp_path / "c").iterdir())


def test_a_copy_is_made_once(place, there, tmp_path):
    record = place.write("a", b"12345")
    made = place.copy(record, tmp_path / "c")
    there.calls.clear()

    assert made == place.copy(record, tmp_path / "c")
    assert b"12345" == made.read_bytes()
    assert [] == there.calls


def test_a_full_disk_here_is_not_taken_for_the_stores_failure(place, clock, tmp_path, monkeypatch):
    """The device is a real one: the copy's bytes go to /dev/full."""
    record = place.write("a", b"12345" * 10000)
    real = open
    monkeypatch.setattr(places, "open", lambda *a: real("/dev/full", "wb"), raising=False)

    with pytest.raises(CheckpointError, match=r"cannot be written: No space .* set EDL_HOME"):
        place.copy(record, tmp_path / "c")
    assert 0 == clock.now


# -- A store that fails


@pytest.mark.parametrize("late", [False, True])
def test_a_store_that_fails_a_few_times_costs_nothing(place, there, clock, late):
    there.fails, there.late = 3, late
    record = place.write("a", b"12345")
    for read in (place.read_checked, place.check):
        there.fails = 3
        read(record)
    there.fails = 2
    assert ["a"] == place.names()

    assert 0 < clock.now < 10


def test_a_store_that_fails_for_long_is_one_clear_sentence(place, there, clock):
    there.down = True

    with pytest.raises(StoreError) as raised:
        place.write("a", b"1")

    text = "flaky://a/job/x cannot be written: the store is out of order, tried for"
    assert text in str(raised.value)
    assert 20 < clock.now < 30
    assert (errno.EIO, "flaky://a/job/x") == (raised.value.errno, raised.value.filename)


def test_a_bucket_that_is_not_there_is_said_and_not_made(place, there, monkeypatch):
    monkeypatch.setattr(stores, "_BUCKETS", {"flaky"})
    there.down, there.error = True, FileNotFoundError("The specified bucket does not exist")

    with pytest.raises(StoreError, match="flaky://a/job/x/a cannot be written: The specified"):
        place.write("a", b"1")
    assert ["put a/job/x/a"] == there.calls


class NoCredentialsError(Exception):
    """As botocore's."""


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Access Denied"), NoCredentialsError("Unable to locate any")]
)
def test_what_more_tries_do_not_change_is_said_at_once(place, there, clock, error):
    there.down, there.error = True, error

    with pytest.raises(StoreError, match=r"flaky://a/job/x cannot be listed: .*(Access|Unable)"):
        place.names()
    assert 0 == clock.now


def test_a_call_that_hangs_is_one_that_fails(monkeypatch):
    monkeypatch.setattr(stores, "_LEAST_S", 0.02)
    there, over = world("hangs", new=True), threading.Event()
    there.before = lambda *_: over.wait(10)
    began = time.monotonic()

    with pytest.raises(StoreError, match="cannot be read: it does not answer"):
        Place("flaky://hangs/x", Asking(patience_s=0.02)).read("a")

    assert time.monotonic() - began < 5
    over.set()


def test_the_reason_is_the_last_that_the_store_gave(monkeypatch):
    monkeypatch.setattr(stores, "_LEAST_S", 0.02)
    there, over, answers = world("hangs", new=True), threading.Event(), iter(["no room"])

    def before(*_):
        for text in answers:
            raise OSError(text)
        over.wait(10)

    there.before = before
    asking = Asking(patience_s=0.3, wait=lambda _: None)

    with pytest.raises(StoreError, match="cannot be read: no room"):
        Place("flaky://hangs/x", asking).read("a")
    over.set()


def test_a_store_of_an_unknown_kind_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"nosuch://x/y cannot be opened.*Install"):
        Place("nosuch://x/y")


# -- Several at once


def test_files_are_written_and_read_several_at_once_and_come_in_order(place, there):
    both = threading.Barrier(2, timeout=60)  # one at a time would wait for ever
    there.before = lambda what, path: both.wait() if what in ("put", "get") else None

    records = place.write_all((name, [name.encode()]) for name in "abcdef")
    found = list(place.each(place.read_checked, records))

    assert list("abcdef") == [record.name for record in records]
    assert [b"a", b"b", b"c", b"d", b"e", b"f"] == found


def test_no_more_files_are_asked_for_than_are_worked_on(place):
    asked = []

    def files():
        for number in itertools.count():
            asked.append(number)
            yield str(number)

    got = place.each(lambda name: name, files())
    next(got)

    assert len(asked) <= 5
    got.close()


def test_one_that_fails_is_the_error_of_all(place, there):
    there.error = PermissionError(13, "Access Denied")
    place.make()
    there.up_for = 2

    with pytest.raises(StoreError, match="cannot be written"):
        place.write_all((name, [b"1"]) for name in "abcdef")


# -- Copies


def test_the_copies_used_last_are_kept_and_those_of_others_for_a_week(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    place = Place("flaky://a/mine/version-1")
    made = [copies.folder(place, [FileRecord("a", 1, str(n))]) for n in range(5)]
    other = copies.folder(Place("flaky://a/other/version-1"), [FileRecord("a", 1, "0")])
    copies.make_room(other, 0.0)
    for number, folder in enumerate(made):
        copies.make_room(folder, 1.0 + number)

    assert [False, False, True, True, True] == [folder.exists() for folder in made]
    assert other.exists()
    copies.make_room(made[4], 8 * 24 * 3600.0)
    assert not other.exists()
