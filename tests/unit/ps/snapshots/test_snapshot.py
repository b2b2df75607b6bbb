"""Snapshots: the next step equals the uninterrupted run's, on any number of shards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edl.common import storage
from edl.common.errors import CheckpointError, EdlError
from edl.nn import ByName, optimizers
from edl.nn.model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.snapshots import cut as snapshot
from edl.ps.worker_client import PushOutcome

WAIT = {"timeout_s": 120.0}  # a fresh checkout compiles its kernels meanwhile
IDS = np.arange(0, 3000, 7, dtype=np.int64) * 1_000_003 - 5
SYNC = Policy(grads_to_wait=4, staleness=0)


def model(optimizer, dim=3, seed=5):
    dense = [DenseSpec(f"layer{i}.weight", (3, i + 1)) for i in range(6)]
    dense += [DenseSpec("running_mean", (4,), "buffer")]
    tables = (TableSpec("users", dim), TableSpec("items", 2, "normal", 0.1))
    return ModelSpec(tuple(dense), tables, optimizer, seed)


ADAM = model(optimizers.Adam(lr=0.01, amsgrad=True))


def values(spec, seed):
    rng = np.random.default_rng(seed)
    return {d.name: rng.normal(size=d.shape).astype(np.float32) for d in spec.dense}


def push(shards, spec, number):
    """Push number `number` of a fixed run; a few tensors and rows each."""
    rng = np.random.default_rng(1000 + number)
    dense = values(spec, number)
    for name in list(dense)[number % 3 :: 3]:
        del dense[name]
    tables = {}
    for table in spec.tables:
        ids = rng.permutation(IDS)[:50]
        tables[table.name] = ids, rng.normal(size=(50, table.dim)).astype(np.float32)
    span = Span(number // 10, 1, number % 10, number % 10 + 1)
    versions = [store.version for store in shards.stores]
    result = shards.client.push(span, versions, dense=dense, tables=tables, **WAIT)
    assert PushOutcome.APPLIED == result.outcome


def everything(shards, spec):
    dense = values(spec, 0)
    pulled = shards.client.pull({t.name: IDS for t in spec.tables}, dense=dense, full=True, **WAIT)
    return {**dense, **pulled.rows, "version": np.array(pulled.version)}


def save(shards, spec, directory, books=None):
    cut = shards.control.cuts.take("save", hold_s=5.0, **WAIT)
    path = storage.version_directory(directory, cut.version)
    files, version = shards.control.snapshot("save", str(path), **WAIT)
    shards.control.cuts.unpin("save", **WAIT)
    assert cut.version == version
    return storage.write_manifest(
        path,
        version=version,
        num_shards=shards.client.num_shards,
        num_slots=shards.client.slot_map.num_slots,
        files=[storage.FileRecord(*file) for file in files],
        books=books,
    )


def restored(start_shards, count, manifest, spec=None, policy=SYNC, new_job=False):
    shards = start_shards(count, spec, policy)
    for store in shards.stores:
        snapshot.restore(store, manifest, new_job=new_job)
    return shards


def run(start_shards, count, spec, pushes, policy=SYNC):
    shards = start_shards(count, spec, policy)
    shards.client.init(spec, values(spec, 99), **WAIT)
    for number in range(pushes):
        push(shards, spec, number)
    return shards


def assert_equal(expected, actual):
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name, strict=True)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_next_steps_equal_the_uninterrupted_run(start_shards, tmp_path, n, m):
    """A13: "Save with N PS and Adam, restore with M: weights + slots + version + data position
    equal; next step equals an uninterrupted run", here in the midst of a sync version."""
    going_on = run(start_shards, n, ADAM, 14)
    manifest = save(going_on, ADAM, tmp_path)
    resumed = restored(start_shards, m, manifest, ADAM)
    assert_equal(everything(going_on, ADAM), everything(resumed, ADAM))
    assert [going_on.stores[0].ledger()] * m == [store.ledger() for store in resumed.stores]

    for number in range(14, 34):  # five versions
        push(going_on, ADAM, number)
        push(resumed, ADAM, number)

    assert_equal(everything(going_on, ADAM), everything(resumed, ADAM))
    assert [8] * m == [store.version for store in resumed.stores]


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.SGD(0.1),
        optimizers.SGD(0.1, momentum=0.9, dampening=0.5),
        optimizers.Adagrad(0.1),
        optimizers.AdamW(0.1),
        optimizers.FTRL(0.1),
        optimizers.RowWiseAdagrad(0.1),
        optimizers.GroupAdam(0.1, l1=0.01, l21=0.01),
        optimizers.NAdam(0.1),
        ByName(
            optimizers.AdamW(0.1),
            {"users": optimizers.RowWiseAdagrad(0.1), "layer[12]": optimizers.SGD(0.1, 0.9)},
        ),
    ],
)
def test_each_optimizers_state_is_restored(start_shards, tmp_path, optimizer):
    spec, policy = model(optimizer), Policy(use_async=True)
    going_on = run(start_shards, 2, spec, 6, policy)
    resumed = restored(start_shards, 1, save(going_on, spec, tmp_path), spec, policy)

    for number in range(6, 9):
        push(going_on, spec, number)
        push(resumed, spec, number)

    assert_equal(everything(going_on, spec), everything(resumed, spec))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_16_bits_are_restored_to_the_bit_and_go_on(start_shards, tmp_path, dtype):
    """Stochastic rounding too is the same afterwards: it depends on the row's steps."""
    tables = (TableSpec("users", 3, dtype=dtype, rounding="stochastic"),)
    spec = dataclasses.replace(ADAM, tables=tables)
    going_on = run(start_shards, 2, spec, 8)
    resumed = restored(start_shards, 3, save(going_on, spec, tmp_path), spec)
    assert_equal(everything(going_on, spec), everything(resumed, spec))

    for number in range(8, 16):
        push(going_on, spec, number)
        push(resumed, spec, number)

    assert_equal(everything(going_on, spec), everything(resumed, spec))


def test_a_snapshot_shows_the_cut_and_not_what_was_pushed_since(start_shards, tmp_path):
    shards = run(start_shards, 2, ADAM, 8)
    expected = everything(shards, ADAM)
    cut = shards.control.cuts.take("c", hold_s=5.0, **WAIT)
    for number in range(8, 16):
        push(shards, ADAM, number)
    files, _ = shards.control.snapshot("c", str(tmp_path / "version-000000000002"), **WAIT)

    manifest = storage.write_manifest(
        tmp_path / "version-000000000002",
        version=cut.version,
        num_shards=2,
        num_slots=1024,
        files=[storage.FileRecord(*file) for file in files],
    )

    assert_equal(expected, everything(restored(start_shards, 1, manifest, ADAM), ADAM))


def test_large_tables_and_tensors_are_written_in_pieces(start_shards, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE_NBYTES", 1000)
    shards = run(start_shards, 2, ADAM, 8)

    manifest = save(shards, ADAM, tmp_path)

    assert len(manifest.files) > 30
    assert max(f.nbytes for f in manifest.files if "table" in f.name) < 3000
    assert_equal(
        everything(shards, ADAM), everything(restored(start_shards, 3, manifest, ADAM), ADAM)
    )


def test_a_tensor_of_several_chunks_is_restored(start_shards, tmp_path):
    spec = ModelSpec((DenseSpec("big", (CHUNK_ELEMENTS + 5,)),), (), optimizers.SGD(0.1))
    shards = run(start_shards, 2, spec, 0, Policy(use_async=True))

    manifest = save(shards, spec, tmp_path)

    actual = everything(restored(start_shards, 3, manifest, spec), spec)
    assert_equal(everything(shards, spec), actual)


def test_a_new_job_takes_parameters_and_optimizer_state_but_no_ledger(start_shards, tmp_path):
    old = run(start_shards, 2, ADAM, 14)
    manifest = save(old, ADAM, tmp_path)

    new = restored(start_shards, 2, manifest, ADAM, new_job=True)
    new.client.init(ADAM, values(ADAM, 1), **WAIT)

    assert_equal(everything(old, ADAM), everything(new, ADAM))
    assert [()] * 2 == [store.ledger() for store in new.stores]
    assert {0: (3, 0), 1: (3, 0)} == new.control.flush(**WAIT)
    push(new, ADAM, 0)


def test_a_new_job_may_change_the_optimizer_and_keeps_the_parameters(start_shards, tmp_path):
    old = run(start_shards, 2, ADAM, 8)
    spec = model(optimizers.SGD(0.1, momentum=0.9))
    new = restored(start_shards, 2, save(old, ADAM, tmp_path), spec, new_job=True)

    new.client.init(spec, values(spec, 1), **WAIT)

    assert_equal(everything(old, ADAM), everything(new, spec))
    for number in range(4):
        push(new, spec, number)
    assert [3, 3] == [store.version for store in new.stores]


def test_a_checkpoint_of_another_model_is_refused(start_shards, tmp_path):
    old = run(start_shards, 1, ADAM, 4)
    other = model(optimizers.Adam(), dim=4)
    new = restored(start_shards, 1, save(old, ADAM, tmp_path), other, new_job=True)

    with pytest.raises(EdlError, match="another model.* has dim 4 here, 3 there"):
        new.client.init(other, values(other, 1), **WAIT)


def test_shards_of_different_cuts_are_refused(start_shards, tmp_path):
    shards = run(start_shards, 2, ADAM, 4)
    shards.stores[0].pins.freeze("a", 5.0)
    shards.stores[0].pins.pin("a", {}, 5.0)
    push(shards, ADAM, 4)
    shards.stores[1].pins.freeze("a", 5.0)
    shards.stores[1].pins.pin("a", {}, 5.0)
    files, _ = shards.control.snapshot("a", str(tmp_path), **WAIT)
    records = [storage.FileRecord(*file) for file in files]
    manifest = storage.write_manifest(
        tmp_path, version=1, num_shards=2, num_slots=1024, files=records
    )

    with pytest.raises(CheckpointError, match=r"not one cut.*positions \[4, 5\] of task 0"):
        restored(start_shards, 1, manifest)


def test_a_snapshot_of_no_cut_is_refused(start_shards, tmp_path):
    shards = run(start_shards, 1, ADAM, 0)

    with pytest.raises(EdlError, match="cut 'x' is not pinned"):
        shards.control.snapshot("x", str(tmp_path), **WAIT)


# -- The folder of checkpoints


def two_checkpoints(start_shards, tmp_path):
    shards = run(start_shards, 2, ADAM, 4)
    first = save(shards, ADAM, tmp_path, {"epoch": 1})
    for number in range(4, 8):
        push(shards, ADAM, number)
    return first, save(shards, ADAM, tmp_path)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [(truncate, "is torn"), (flip, "is damaged"), (lambda path: path.unlink(), "is missing")],
)
def test_a_torn_checkpoint_is_refused_by_name_and_the_previous_used(
    start_shards, tmp_path, caplog, harm, wrong
):
    """A16b: "Truncate one checkpoint shard: restore refuses that version and uses the previous
    complete one"."""
    first, second = two_checkpoints(start_shards, tmp_path)
    victim = second.directory / second.files[1].name
    harm(victim)

    with pytest.raises(CheckpointError, match=f"{victim.name} {wrong}"):
        storage.load(second.directory)

    assert first == storage.load(tmp_path)
    assert victim.name in caplog.text


def test_files_without_a_manifest_are_no_checkpoint(start_shards, tmp_path):
    first, second = two_checkpoints(start_shards, tmp_path)
    (second.directory / storage.MANIFEST).unlink()

    with pytest.raises(CheckpointError, match=r"no complete checkpoint.*MANIFEST\.json"):
        storage.load(second.directory)

    assert first == storage.latest(tmp_path)


def test_a_damaged_manifest_is_refused_by_name(start_shards, tmp_path):
    first, second = two_checkpoints(start_shards, tmp_path)
    truncate(second.directory / storage.MANIFEST)

    with pytest.raises(CheckpointError, match=r"MANIFEST\.json is damaged"):
        storage.load(second.directory)

    assert first == storage.latest(tmp_path)


def test_the_newest_whole_checkpoint_is_loaded_with_its_books(start_shards, tmp_path):
    first, second = two_checkpoints(start_shards, tmp_path)

    assert (second, first) == (storage.load(tmp_path), storage.load(first.directory))
    assert ({"epoch": 1}, 1, 2) == (first.books, first.version, first.num_shards)


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        storage.load(tmp_path / "nowhere")


def empty_checkpoints(folder, versions):
    for version in versions:
        path = storage.version_directory(folder, version)
        path.mkdir()
        storage.write_manifest(path, version=version, num_shards=1, num_slots=1, files=[], model={})


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4])])
def test_pruning_keeps_the_last_k_and_0_keeps_all(tmp_path, keep, kept):
    """A12: "keep_checkpoint_max=0 keeps all; =k keeps the last k complete: directory listing"."""
    empty_checkpoints(tmp_path, [1, 2, 3, 4])

    storage.prune(tmp_path, keep)

    assert [storage.version_directory(tmp_path, v) for v in kept] == sorted(tmp_path.iterdir())


def test_pruning_counts_complete_ones_only_and_spares_one_in_the_making(tmp_path):
    empty_checkpoints(tmp_path, [1, 2, 4])
    for version in (3, 5):
        storage.version_directory(tmp_path, version).mkdir()

    removed = storage.prune(tmp_path, 2)

    left = [storage.version_directory(tmp_path, v) for v in (2, 3, 4, 5)]
    assert [storage.version_directory(tmp_path, 1)] == removed
    assert left == sorted(tmp_path.iterdir())


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        storage.write_file(tmp_path / "x", b"data")

    assert [] == list(tmp_path.iterdir())
