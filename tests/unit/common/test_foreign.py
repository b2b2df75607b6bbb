"""A checkpoint is input: names stay in its folder, and what it says has the right types."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import pytest

from edl.common import foreign, storage
from edl.common.errors import CheckpointError, UsageError
from edl.common.paths import can_go_on, master_address
from edl.common.places import Place
from edl.common.settings import JobSettings

pytestmark = pytest.mark.fast


@pytest.fixture
def checkpoint(tmp_path):
    """Return make(change) -> a checkpoint with the manifest that `change` makes of its own."""
    folder = storage.version_directory(tmp_path, 7)
    folder.mkdir()
    record = storage.write_file(folder / "shard-0.bin", bytes(200))
    storage.write_manifest(
        folder, version=7, num_shards=1, num_slots=1024, files=[record], model={}, books={}
    )

    def make(change=lambda values: None):
        path = folder / storage.MANIFEST
        values = json.loads(path.read_bytes())
        del values["checksum"]
        change(values)
        path.write_text(json.dumps({**values, "checksum": storage._checksum(values)}))
        return folder

    return make


def named(name, nbytes=200):
    def change(values):
        values["files"][0].update(name=name, nbytes=nbytes)

    return change


def test_a_checkpoint_that_says_what_it_must_is_read(checkpoint):
    assert 7 == storage.load(checkpoint()).version


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../../../../etc/hostname", "..", ".", "", "a/b", "a\0b", "MANIFEST.json"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused_and_never_opened(checkpoint, name):
    with pytest.raises(
        CheckpointError, match=r"MANIFEST\.json is damaged: .*(no name|named twice)"
    ):
        storage.load(checkpoint(named(name)))


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def link_out(path):
    (path.parent.parent / "secret").write_bytes(bytes(200))
    path.symlink_to("../secret")


@pytest.mark.parametrize("make", [fifo, device, link_out, os.mkdir], ids=lambda make: make.__name__)
@pytest.mark.parametrize("checksums", [True, False])
def test_what_is_no_plain_file_of_the_folder_is_refused_at_once(checkpoint, make, checksums):
    folder = checkpoint(named("other"))
    make(folder / "other")

    with pytest.raises(CheckpointError, match="other: (no plain file|a link that leads out)"):
        storage.read_manifest(folder, checksums=checksums)
    with pytest.raises(CheckpointError, match="other: (no plain file|a link that leads out)"):
        storage.read_checked(_unchecked(folder), storage.FileRecord("other", 200, ""))


def _unchecked(folder):
    return storage.Manifest(Place(folder), 1, 1, 1024, (), {}, {}, "")


def test_a_link_inside_of_the_folder_is_a_file_like_any_other(checkpoint):
    folder = checkpoint(named("other"))
    (folder / "other").symlink_to("shard-0.bin")

    assert ("other",) == tuple(file.name for file in storage.load(folder).files)


def test_a_file_of_a_mounted_config_map_is_read(tmp_path):
    """A kubelet (AtomicWriter) makes each file a link through `..data`, which it replaces."""
    (tmp_path / "..2026_11_28_12_00_00.1").mkdir()
    (tmp_path / "..2026_11_28_12_00_00.1" / "settings.json").write_text("{}")
    (tmp_path / "..data").symlink_to("..2026_11_28_12_00_00.1")
    (tmp_path / "settings.json").symlink_to("..data/settings.json")

    assert b"{}" == foreign.read_plain(tmp_path / "settings.json")


@pytest.mark.parametrize("make", [fifo, device], ids=lambda make: make.__name__)
def test_a_manifest_that_never_ends_is_no_manifest(checkpoint, make):
    folder = checkpoint()
    (folder / storage.MANIFEST).unlink()
    make(folder / storage.MANIFEST)

    with pytest.raises(CheckpointError, match=r"cannot read MANIFEST\.json: (no plain|a link)"):
        storage.load(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (named(5), r"files\[0\]\.name is 5, not a text"),
        (named("shard-0.bin", "200"), r"files\[0\]\.nbytes is '200', not a whole number"),
        (named("shard-0.bin", -1), r"files\[0\]\.nbytes is -1, not a whole number"),
        (named("shard-0.bin", 10**30), r"files\[0\]\.nbytes is 10+, not a whole number"),
        (lambda v: v.update(books=[1]), r"books is \[1\], not an object"),
        (lambda v: v.update(model="x"), "model is 'x', not an object"),
        (lambda v: v.update(version=True), "version is True, not a whole number"),
        (lambda v: v.update(num_shards=1e400), "num_shards is inf, not a whole number"),
        (lambda v: v.update(files={}), r"files is \{\}, not a list"),
        (lambda v: v.update(files=[7]), r"files\[0\] is 7, not an object"),
        (lambda v: v.pop("books"), "it has no 'books'"),
        (lambda v: v["files"].append(v["files"][0]), "the file 'shard-0.bin' is named twice"),
    ],
)
def test_what_has_another_type_is_one_sentence(checkpoint, change, why):
    with pytest.raises(CheckpointError, match=rf"MANIFEST\.json is damaged: {why}"):
        storage.load(checkpoint(change))


@pytest.mark.parametrize("text", ["[]", "7", '"x"', "[" * 100_000, "{", "\xff"])
def test_what_is_no_manifest_at_all_is_one_sentence(checkpoint, text):
    folder = checkpoint()
    (folder / storage.MANIFEST).write_bytes(text.encode("latin-1"))

    with pytest.raises(CheckpointError, match=r"MANIFEST\.json is damaged"):
        storage.load(folder)


def test_no_more_is_read_than_a_file_may_hold(tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse

    with pytest.raises(OSError, match="1099511627776 bytes, where"):
        foreign.read_plain(path)


@pytest.mark.parametrize("text", ["{}", "[1]", "7", "{"])
def test_a_jobs_folder_that_says_nonsense_is_one_sentence(tmp_path, text):
    for name in ("master.json", "result.json", "settings.json", "journal.sqlite"):
        (tmp_path / name).write_text(text)

    with pytest.raises(UsageError, match=r"master\.json says no address"):
        master_address(tmp_path)
    if text != "{}":
        with pytest.raises(UsageError, match=r"result\.json is no result"):
            can_go_on(tmp_path)
        with pytest.raises(UsageError, match=r"settings\.json is not of this version"):
            JobSettings.of_job(tmp_path)


def test_json_is_parsed_alike_where_others_may_run_meanwhile():
    text = '{"a": [1, -2, 3.5, 1e400, 12345678901234567890, NaN, true, null, "7"], "b": 1.0}'

    at_once, yielding = foreign.parse(text), foreign.parse(text, yields=True)
    assert repr(at_once) == repr(yielding)
    for bad in ("[" * 100_000, "[1, 2", "[1 2]", f"[{'1' * 5000}]"):
        with pytest.raises(ValueError, match=r"."):
            foreign.parse(bad, yields=True)


def test_other_threads_run_while_large_json_is_parsed():
    """json's C code keeps the lock: a ticking thread stands still to its end."""
    text = json.dumps([0.5] * 300_000)
    over, ticks = threading.Event(), []

    def tick():
        while not over.is_set():
            ticks.append(0)
            time.sleep(0)  # gives the lock away, and asks for it again

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    ticking = threading.Thread(target=tick)
    try:
        ticking.start()
        before = len(ticks)
        foreign.parse(text, yields=True)
        after = len(ticks)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        ticking.join()

    assert after - before > 10
