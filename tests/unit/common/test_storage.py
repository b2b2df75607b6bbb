"""The faults of a checkpoint that its manifest cannot hide."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from tools.strict_json import strict
from tools.turns import in_turn

from edl.common import storage
from edl.common.errors import CheckpointError

pytestmark = pytest.mark.fast


@pytest.fixture
def two(tmp_path):
    """Write two checkpoints, the newer one of two files."""
    for version in (1, 2):
        path = storage.version_directory(tmp_path, version)
        path.mkdir()
        files = [storage.write_file(path / f"shard-{n}.bin", bytes(200)) for n in range(version)]
        storage.write_manifest(
            path,
            version=version,
            num_shards=version,
            num_slots=1024,
            files=files,
            model={"dense": []},
            books={"epoch": version, "seen": {7: [1, 2.5, None, True], 10: "x"}},
        )
    return tmp_path, path / storage.MANIFEST


def test_a_manifest_torn_at_any_byte_is_refused_by_name_and_the_previous_used(two):
    folder, path = two
    data = path.read_bytes()

    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError, match=r"version-000000000002/MANIFEST\.json"):
            storage.read_manifest(path.parent)

    assert 1 == storage.latest(folder).version


@in_turn(0)
def test_any_bit_of_a_manifest_that_is_turned_over_is_found(two):
    """The books count too, which no file's checksum covers; only what was written is read."""
    _, path = two
    data = path.read_bytes()
    expected = storage.read_manifest(path.parent)

    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            found = storage.read_manifest(path.parent, checksums=False)
        except CheckpointError:
            continue
        assert expected == found  # e.g. "1" written as "1 "


def test_any_block_of_a_file_with_a_flipped_bit_is_found(two):
    folder, path = two
    victim = path.with_name("shard-1.bin")
    data = victim.read_bytes()

    for at in range(0, len(data), 16):
        changed = bytearray(data)
        changed[at] ^= 1
        victim.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"shard-1\.bin is damaged"):
            storage.load(path.parent)

    assert 1 == storage.load(folder).version


def test_an_older_format_is_refused_by_name(two):
    folder, path = two
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps({**values, "format": 1}))

    with pytest.raises(CheckpointError, match=r"MANIFEST\.json has format 1; this version reads 2"):
        storage.load(path.parent)
    assert 1 == storage.load(folder).version


def test_an_infinity_in_the_books_is_in_no_manifest_and_comes_back(two):
    _, path = two
    books = {"judges": {"best": {"value": -math.inf}}}

    storage.write_manifest(
        path.parent, version=2, num_shards=1, num_slots=1, files=(), model={}, books=books
    )

    assert {"/books/judges/best/value": "-inf"} == strict(path.read_bytes())["not_finite"]
    assert books == storage.read_manifest(path.parent).books


def test_a_manifest_of_a_version_that_wrote_infinities_as_tokens_is_still_read(two):
    _, path = two
    values = json.loads(path.read_bytes())
    values |= {"books": {"value": math.inf}, "files": []}
    del values["checksum"]
    said = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**values, "checksum": said}))

    assert {"value": math.inf} == storage.read_manifest(path.parent).books
