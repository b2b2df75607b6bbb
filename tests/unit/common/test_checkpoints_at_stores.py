"""Checkpoints at a store that fails and lists late: what is whole, what is newest, what is removed.

The oracle is the store's own memory: what a reader with a listing of now would find.
"""

import contextlib
import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tools.stores import world
from tools.turns import examples

from edl.common import storage
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.common.stores import Asking

pytestmark = pytest.mark.fast

FOLDER = "store/checkpoints"


def patient():
    """Return the folder, for one who waits in no time."""
    now = [0.0]

    def wait(seconds):
        now[0] += seconds

    return Place(f"flaky://{FOLDER}", Asking(30.0, wait, lambda: now[0]))


def write(version, folder=None, content=b"x"):
    place = storage.free_directory(folder or patient(), version)
    books = json.dumps({"model": {"dense": []}}).encode()
    files = place.write_all([("shard-0.bin", [content]), ("shard-1.bin", [content])])
    files.append(place.write("shard-0.json", books))
    return storage.write_manifest(place, version=version, num_shards=1, num_slots=1, files=files)


@pytest.fixture
def there():
    return world("store", new=True)


def test_a_checkpoint_at_a_store_is_written_found_and_read(there):
    write(3)
    made = write(7, content=b"seven")
    again = write(7)

    assert f"flaky://{FOLDER}/version-000000000007.1" == str(again.place)
    assert again == storage.latest(patient()) == storage.load(f"flaky://{FOLDER}")
    assert made == storage.load(str(made.place))
    assert b"seven" == storage.read_checked(made, made.files[0])
    assert [3, 7, 7] == [
        storage.read_manifest(place).version for place in storage.find_checkpoints(patient())
    ]


def test_the_manifest_is_written_last(there):
    write(3)

    puts = [call.rpartition("/")[2] for call in there.calls if call.startswith("put")]
    assert {"shard-0.bin", "shard-1.bin", "shard-0.json"} == set(puts[:3])
    assert ["MANIFEST.json", "LATEST"] == puts[3:]


def test_the_newest_is_found_before_a_listing_shows_it(there):
    write(3)
    shown = len(there.shown)
    newest = write(7)
    there.lag = len(there.shown) - shown

    assert newest == storage.latest(patient())


def test_a_removed_one_that_is_still_listed_is_passed_over(there):
    older, newest = write(3), write(7)
    shown = len(there.shown)
    storage.remove(newest.place)
    there.lag = len(there.shown) - shown

    assert older == storage.latest(patient())


@pytest.mark.parametrize("shown", [False, True])
def test_all_of_a_removed_one_goes_whether_listed_or_not(there, shown):
    made = write(3)
    there.lag = 0 if shown else 99

    storage.remove(made.place)

    assert [f"{FOLDER}/LATEST"] == list(there.objects)
    removed = [call.rpartition("/")[2] for call in there.calls if call.startswith("rm")]
    assert "MANIFEST.json" == removed[0]


def test_a_torn_one_is_none_of_those_that_are_kept(there):
    older, torn = write(3), write(7)
    del there.objects[f"{FOLDER}/version-000000000007/shard-1.bin"]

    assert [] == storage.prune(patient(), 1)
    newest = write(9)
    assert [older.place, torn.place] == storage.prune(patient(), 1)
    assert newest == storage.latest(patient())


def test_a_torn_and_a_damaged_one_are_passed_over_and_refused_by_name(there):
    older, damaged, torn = write(3), write(7), write(9)
    there.objects[f"{FOLDER}/version-000000000007/shard-1.bin"] = b"y"
    there.objects[f"{FOLDER}/version-000000000009/shard-1.bin"] = b"xx"

    assert older == storage.latest(patient())
    assert damaged == storage.newest_whole([damaged.place], checksums=False)
    with pytest.raises(CheckpointError, match=r"version-000000000007/shard-1.bin is damaged"):
        storage.read_manifest(damaged.place)
    with pytest.raises(CheckpointError, match=r"version-000000000009/shard-1.bin is torn: 2 bytes"):
        storage.load(torn.place, checksums=False)


def test_a_store_that_does_not_answer_is_said_in_a_sentence(there):
    write(3)
    there.down = True

    with pytest.raises(CheckpointError, match=r"cannot be read: .*out of order, tried for \d+ s"):
        storage.load(patient())


def test_an_attempt_that_was_given_up_is_not_written_into(there):
    """What it has asked of the store may still come."""
    patient().__truediv__("version-000000000003").write("shard-0.bin", b"late")

    assert "version-000000000003.1" == write(3).place.name


def test_files_are_copied_here_to_be_mapped(there, tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    made = write(3)

    paths = made.fetch(["shard-1.bin", "shard-0.bin"])
    there.down = True

    assert [b"x", b"x"] == [path.read_bytes() for path in paths]
    assert paths == made.fetch(["shard-1.bin", "shard-0.bin"])
    assert {made.directory} == {path.parent for path in paths}
    assert tmp_path in made.directory.parents


class Keeping(RuleBasedStateMachine):
    """Checkpoints are written, kept and looked for in any order; the store fails at times."""

    @initialize()
    def begin(self):
        self.there = world("store", new=True)
        self.folder = patient()
        self.whole = {}  # name: number of its write; written, as the writer was told
        self.writes = 0

    @rule(version=st.integers(1, 4))
    def write(self, version):
        made = write(version, self.folder)

        self.whole[made.place.name] = made

    @rule(version=st.integers(1, 4), up_for=st.integers(0, 12), late=st.booleans())
    def write_while_it_breaks(self, version, up_for, late):
        self.there.up_for, self.there.late = up_for, late
        with contextlib.suppress(OSError):
            made = write(version, self.folder)
            self.whole[made.place.name] = made
        self.there.up_for, self.there.late, self.there.down = None, False, False

    @rule(fails=st.integers(0, 3), version=st.integers(1, 4))
    def write_with_few_failures(self, fails, version):
        self.there.fails = fails
        made = write(version, self.folder)
        self.there.fails = 0

        self.whole[made.place.name] = made

    @rule(lag=st.integers(0, 12))
    def list_late(self, lag):
        self.there.lag = lag

    @rule(keep=st.integers(1, 3))
    def prune(self, keep):
        self._prune(keep, None)

    @rule(keep=st.integers(1, 3), up_for=st.integers(0, 20))
    def prune_while_it_breaks(self, keep, up_for):
        self._prune(keep, up_for)

    def _prune(self, keep, up_for):
        names = self.truth()
        self.there.up_for = up_for
        failed = True
        with contextlib.suppress(OSError):
            storage.prune(self.folder, keep)
            failed = False
        self.there.up_for, self.there.down = None, False

        kept = names[-keep:]
        left = self.truth()
        assert kept == left[len(left) - len(kept) :], "one that was to be kept is gone"
        if not failed and self.there.lag == 0 and up_for is None:
            assert kept == left
            first = kept[0] if kept else ""
            dead = [p for p in self.there.objects if "/version-" in p and p.split("/")[2] < first]
            assert [] == dead
        self.whole = {name: self.whole[name] for name in left if name in self.whole}

    def truth(self):
        """Return the names of all that are whole, oldest first, as the store itself knows."""
        lag, self.there.lag = self.there.lag, 0
        found = [p.name for p in storage.find_checkpoints(self.folder) if storage._is_complete(p)]
        self.there.lag = lag
        return found

    @invariant()
    def what_was_written_is_there(self):
        for name, made in self.whole.items():
            assert made == storage.read_manifest(self.folder / name)

    @rule()  # whatever is whole: threads decide it, and what may be drawn must not depend on them
    def look(self):
        if not self.whole:
            return
        newest = self.truth()[-1]
        noted = self.there.objects.get(f"{FOLDER}/LATEST", b"").decode()
        found = storage.latest(self.folder)

        if self.there.lag == 0 or noted == newest:
            assert newest == found.place.name
        for record in found.files if found else ():
            storage.read_checked(found, record)


Keeping.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=12, deadline=None
)
TestKeeping = Keeping.TestCase
