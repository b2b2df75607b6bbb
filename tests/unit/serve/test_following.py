"""A job that trains is served by its deltas: what answers is one cut of it, then a newer one."""

import time

import numpy as np
import pytest
from tools.deltas import Writer
from tools.servers import write_checkpoint
from tools.trained import KNOWN, records_of, train, train_on

from edl.common.errors import UsageError
from edl.serve.following import Following
from edl.serve.from_checkpoint import Options
from edl.serve.repository import Repository

FAR_S = 30.0


@pytest.fixture
def job(tmp_path):
    """Return a model in training, who writes its deltas, and a file of a few records."""
    trained = train(tmp_path / "trained", 2, model_def="deepfm", dim=4, hidden=8)
    writer = Writer(
        trained.stores,
        tmp_path / "deltas",
        model_def="deepfm",
        model_params={"dim": 4, "hidden": 8},
    )
    np.savez(tmp_path / "few.npz", **records_of(trained.definition, np.arange(4)))
    return trained, writer, str(tmp_path / "few.npz")


def following(writer, repository, data, first_s=FAR_S):
    model = repository.add("live")
    made = Following("live", str(writer.root), Options(data=data), period_s=0.01, first_s=first_s)
    return model, made


def answered(model, inputs):
    held = model.hold()
    try:
        return held.version, held.served.infer(inputs)["output"]
    finally:
        model.release(held)


def test_the_newest_generation_answers_and_then_a_newer_one(job):
    """Broken once: the values of all generations are written into one model."""
    trained, writer, data = job
    records = records_of(trained.definition, np.arange(2 * KNOWN))
    inputs = {name: records[name] for name in trained.definition.module.COLUMNS}
    writer.base()
    repository = Repository(keep=2)
    model, made = following(writer, repository, data)
    try:
        made.begin(repository)
        first, before = answered(model, inputs)
        held = model.hold()
        train_on(trained, [30, 31])
        writer.delta()
        deadline = time.monotonic() + FAR_S
        while model.told()["swaps"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        second, after = answered(model, inputs)
        again = held.served.infer(inputs)["output"]
        model.release(held)
    finally:
        made.close()
        repository.close()

    assert ("4", "6") == (first, second)
    assert before.tobytes() == again.tobytes()
    assert np.abs(before - after).max() > 1e-3
    features = trained.definition.feed(records, "predict")[0]
    trained.checkpoint = write_checkpoint(trained.stores, writer.root.path.parent / "version-6")
    np.testing.assert_allclose(after, trained.predicted(features, 2), rtol=0, atol=1e-6)


def test_a_folder_without_a_base_is_one_sentence(job):
    _, writer, data = job
    repository = Repository()
    _, made = following(writer, repository, data, first_s=0.05)
    try:
        with pytest.raises(UsageError, match="had no base that is whole"):
            made.begin(repository)
    finally:
        made.close()
        repository.close()


def test_a_job_whose_columns_cannot_be_found_is_told_at_the_begin(job):
    _, writer, _ = job
    writer.base()
    repository = Repository()
    model, made = following(writer, repository, "")
    try:
        with pytest.raises(UsageError, match=r"name a file with some \(--data\)"):
            made.begin(repository)
    finally:
        made.close()
        repository.close()

    assert ["4"] == list(model.told()["failed"])
