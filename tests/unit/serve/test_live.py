"""Generations of a job: each is the model that the job would predict with at that cut."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from tools.deltas import Writer
from tools.jobs import ZOO
from tools.servers import empty, write_checkpoint
from tools.stores import clear_memory
from tools.trained import KNOWN, features_of, train, train_on

import edl
from edl.common import storage
from edl.common.errors import CheckpointError, EdlError
from edl.ps.snapshots import cut
from edl.serve import deltas
from edl.serve.deltas import Gap
from edl.serve.follow import Folder, Follower, Pursuit
from edl.serve.live import LiveModels


@pytest.fixture
def trained(tmp_path):
    return train(tmp_path / "trained", 2)


def written(trained, root):
    return Writer(trained.stores, root, model_def="ranker", model_zoo=str(ZOO), model_params={})


def pursued(root):
    """Return all generations that a folder leads to from its oldest base on."""
    folder, found = Folder(root), []
    pursuit = Pursuit(folder)
    names = folder.names()
    oldest = next(name for name in names if name.since is None)
    while pursuit.look([oldest, *(n for n in names if n.since is not None)], time.monotonic()):
        found.append(pursuit.here)
    return found


def outputs(model, features):
    with torch.no_grad():
        return model(features)


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_each_generation_predicts_what_its_job_does_and_the_older_ones_go_on_so(
    trained, tmp_path, where
):
    """Of ids that were never trained, too. Broken once: `_changed` writes into shared values."""
    clear_memory()
    root = "memory://deltas" if where == "memory" else str(tmp_path / "deltas")
    writer, features = written(trained, root), features_of(trained.definition, 0, 2 * KNOWN)
    writer.base()
    expected = [trained.predicted(features, 2)]
    for number in range(3):
        train_on(trained, [10 + number])
        writer.delta()
        trained.checkpoint = write_checkpoint(trained.stores, tmp_path / f"version-{number:012d}")
        expected.append(trained.predicted(features, 2))

    found = pursued(root)
    live = LiveModels()
    models = [live.of(generation) for generation in found]

    assert 4 == len(found)
    for model, outputs_then in zip(models, expected, strict=True):
        torch.testing.assert_close(outputs(model, features), outputs_then, rtol=1e-6, atol=1e-6)
    assert not torch.equal(expected[0], expected[3])


def test_a_base_is_loaded_as_a_checkpoint_is(trained, tmp_path):
    base = written(trained, tmp_path / "deltas").base()
    features = features_of(trained.definition, 0, 2 * KNOWN)

    model = edl.load(str(base))

    expected = outputs(edl.load(trained.checkpoint), features)
    torch.testing.assert_close(outputs(model, features), expected)
    assert [] == list(edl.rows(str(base), "items").state)


def test_a_delta_is_applied_to_the_cut_that_it_begins_from_only(trained, tmp_path):
    writer = written(trained, tmp_path / "deltas")
    first = deltas.opened(deltas.read(writer.base()))
    train_on(trained, [10])
    second = writer.delta()
    train_on(trained, [11])
    third = writer.delta()

    with pytest.raises(Gap, match="begins at cut-2, and what is here is cut-1 of job"):
        deltas.applied(first, deltas.read(third))
    with pytest.raises(Gap, match="is a delta"):
        deltas.opened(deltas.read(second))
    assert (
        3
        == deltas.applied(
            deltas.applied(first, deltas.read(second)), deltas.read(third)
        ).about.number
    )


@pytest.mark.parametrize("cut_off", [1, 1000])
def test_a_torn_or_damaged_file_is_named_and_nothing_of_it_used(trained, tmp_path, cut_off):
    writer = written(trained, tmp_path / "deltas")
    writer.base()
    train_on(trained, [10])
    place, told = writer.delta(), []
    path = place.path / next(r.name for r in deltas.read(place).files if "table" in r.name)
    data = path.read_bytes()
    path.write_bytes(data[:-cut_off] if cut_off == 1 else data[:-1] + bytes([data[-1] ^ 1]))

    pursuit, folder = (
        Pursuit(Folder(str(tmp_path / "deltas")), told.append),
        Folder(str(tmp_path / "deltas")),
    )
    while pursuit.look(folder.names(), 0.0):
        pass

    assert 1 == pursuit.here.about.number
    assert path.name in told[0]


def test_a_checkpoint_is_no_base(trained):
    with pytest.raises(CheckpointError, match="it is no base and no delta of a running job"):
        deltas.opened(storage.read_manifest(trained.checkpoint))


def test_a_base_is_none_to_train_on_from(trained, tmp_path):
    base = written(trained, tmp_path / "deltas").base()

    with pytest.raises(EdlError):
        cut.restore(empty(1)[0], storage.read_manifest(base), new_job=True)


def test_a_follower_hands_over_what_is_new_and_no_mistake_of_the_callback_ends_it(
    trained, tmp_path
):
    writer, seen, told = written(trained, tmp_path / "deltas"), [], []

    def take(generation):
        seen.append(generation.about.number)
        if len(seen) == 1:
            raise ValueError("a mistake")

    follower = Follower(str(tmp_path / "deltas"), take, tell=told.append)

    assert 0 == follower.look()
    writer.base()
    assert 1 == follower.look()
    train_on(trained, [10])
    writer.delta()
    train_on(trained, [11])
    writer.delta()
    assert 2 == follower.look()
    assert 0 == follower.look()
    assert [1, 3] == seen
    assert ["cut 1 was not taken: ValueError('a mistake')"] == told
    assert np.all(follower.current.tables["items"].known(np.zeros(0, np.int64)))
