"""A checkpoint that is served: the columns of its feed, and the outputs of `edl.load`."""

import numpy as np
import pytest
import torch
from tools.trained import KNOWN, records_of, train

import edl
from edl.common.errors import UsageError
from edl.serve.from_checkpoint import CheckpointOpener, Options, version_of
from edl.serve.repository import warm


@pytest.fixture(scope="module")
def deepfm(tmp_path_factory):
    return train(tmp_path_factory.mktemp("deepfm"), 2, model_def="deepfm", dim=4, hidden=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory, deepfm):
    file = tmp_path_factory.mktemp("data") / "few.npz"
    np.savez(file, **records_of(deepfm.definition, np.arange(4)))
    return str(file)


def test_columns_in_are_the_loaded_models_outputs_to_the_bit(deepfm, data):
    served = CheckpointOpener(Options(data=data)).open("flights", str(deepfm.checkpoint))
    records = records_of(deepfm.definition, np.arange(2 * KNOWN))

    warm(served)
    outputs = served.infer({column.name: records[column.name] for column in served.inputs})

    with torch.inference_mode():
        expected = edl.load(deepfm.checkpoint)(deepfm.definition.feed(records, "predict")[0])
    assert ["output"] == list(outputs)
    assert expected.numpy().tobytes() == outputs["output"].tobytes()


def test_what_is_asked_for_is_what_feed_reads_and_no_label(deepfm, data):
    served = CheckpointOpener(Options(data=data)).open("flights", str(deepfm.checkpoint))

    assert set(deepfm.definition.module.COLUMNS) == {column.name for column in served.inputs}
    assert {("INT64", ())} == {column[1:] for column in served.inputs}
    assert (("output", "FP32", ()),) == served.outputs
    assert ("4", 4, "deepfm") == (served.version, served.about["cut"], served.about["definition"])


def test_a_value_that_feed_does_not_take_is_refused_with_its_words(deepfm, data):
    served = CheckpointOpener(Options(data=data)).open("flights", str(deepfm.checkpoint))
    served._definition.module.feed, feed = broken, served._definition.module.feed
    try:
        with pytest.raises(UsageError, match="does not take these records: ValueError: no such"):
            served.infer(served.example)
    finally:
        served._definition.module.feed = feed


def broken(records, mode):
    raise ValueError("no such carrier")


def test_without_records_to_find_columns_on_the_flag_is_named(deepfm):
    with pytest.raises(UsageError, match=r"name a file with some \(--data\)"):
        CheckpointOpener(Options()).open("flights", str(deepfm.checkpoint))


def test_the_definition_and_the_records_are_read_once_for_all_versions(deepfm, data, tmp_path):
    opener = CheckpointOpener(Options(data=data))
    first = opener.open("flights", str(deepfm.checkpoint))
    opener.open("flights", str(deepfm.checkpoint))

    assert len(opener._read) == 1
    assert first._definition is opener.open("flights", str(deepfm.checkpoint))._definition


@pytest.mark.parametrize(
    ("folder", "version"), [("version-000000001234", "1234"), ("version-000000001234.1", "1234.1")]
)
def test_a_version_is_asked_for_by_its_number(tmp_path, folder, version):
    assert version == version_of(tmp_path / folder)
