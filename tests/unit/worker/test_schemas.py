"""A job's schema: found on what it trains on, held where it goes on, and told at its start."""

import dataclasses
import json

import pytest
from tools.typed import reader, write

from edl.common import storage
from edl.common.errors import DataError, UsageError
from edl.common.settings import JobSettings
from edl.data.schema import SEEN, Schema
from edl.worker import describe as describing
from edl.worker.describe import describe, load, model_maker
from edl.worker.model import model_spec
from edl.worker.schemas import with_described

DEFINITION = """
import torch
from torch import nn
from edl.nn import SGD
from tools.typed import reader

def model():
    return nn.Linear(2, 1)
def loss(outputs, labels):
    return outputs.mean()
def optimizer():
    return SGD(lr=0.1)
def feed(records, mode):
    return records, None
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that makes settings of a job on typed files."""
    path = tmp_path / f"typed_{tmp_path.parent.name.replace('-', '_')}_{tmp_path.name}.py"
    path.write_text(DEFINITION)

    def make(user=("A0", "7"), **more):
        data = write(tmp_path / "train.json", user=list(user), y=[1.0, 2.0])
        given = {"model_def": str(path), "training_data": data, "output": str(tmp_path)}
        return JobSettings(**{**given, **more})

    return make


def checkpoint(settings, folder, schema):
    """Write a checkpoint of the job, whose settings have this schema; None: of a version before."""
    definition = load(settings)
    spec = model_spec(model_maker(definition, settings)(), definition.optimizer(), 0)
    folder = folder / "c" / "version-000000000001"
    folder.mkdir(parents=True)
    record = storage.write_file(folder / "shard-00000-of-00001.json", b"{}")
    told = dataclasses.asdict(settings) | {"schema": schema}
    if schema is None:
        del told["schema"]
    storage.write_manifest(
        folder,
        version=1,
        num_shards=1,
        num_slots=1024,
        model=json.loads(spec.to_json()),
        files=[record],
        books={"settings": told},
    )
    return str(folder)


def described(settings, folder):
    describe(settings, folder)
    told = json.loads((folder / "describe.json").read_text())
    schema = Schema.from_json(told["schema"])
    return {each.name: str(each.type) for each in schema}, told["notes"]


def columns(**types):
    told = {name: {"type": type_, "found": SEEN} for name, type_ in types.items()}
    return {"format": 1, "columns": told}


TYPES = columns(user="text", y="float64")


def test_the_schema_is_that_of_the_training_data_and_of_what_others_have_besides(job, tmp_path):
    """Fault S1. Whole numbers of the validation data are the floats of the training."""
    other = write(tmp_path / "test.json", user=["0", "1"], y=[1, 2], day=[3, 4])

    types, notes = described(job(validation_data=other), tmp_path)

    assert {"user": "text", "y": "float64", "day": "int64"} == types
    assert [] == notes


def test_validation_data_that_cannot_have_the_training_datas_types_are_refused(job, tmp_path):
    other = write(tmp_path / "test.json", user=[0, 1], y=[1.0, 2.0])

    with pytest.raises(DataError, match="'user' is int64 in .*test.json, and text in the training"):
        describe(job(validation_data=other), tmp_path)


def test_what_was_decided_against_appearances_is_told(job, tmp_path):
    settings = job()
    more = write(tmp_path / "more.json", user=["B"], y=[1])

    types, notes = described(
        dataclasses.replace(settings, training_data=f"{settings.training_data},{more}"), tmp_path
    )

    assert "float64" == types["y"]
    assert 1 == len(notes)
    assert notes[0].startswith("y: float64, since ")
    assert "int64" in notes[0]


def test_declared_types_go_before_those_that_are_found(job, tmp_path):
    settings = job(user=(1, 2), schema={"user": "float64", "who": "text"})

    types, notes = described(settings, tmp_path)

    assert {"user": "float64", "y": "float64", "who": "text"} == types
    assert ["--schema names 'who': the training data have no such column"] == notes


def test_a_job_that_goes_on_keeps_its_types_and_tells_nothing_twice(job, tmp_path):
    before = columns(user="text", y="float64")
    before["columns"]["y"]["why"] = "a has int64"
    path = checkpoint(job(), tmp_path, before)

    types, notes = described(job(resume=path, schema=before), tmp_path)

    assert {"user": "text", "y": "float64"} == types
    assert [] == notes


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"schema": {"user": "bytes"}}, "--schema: 'user' is bytes, and was text in .*version-"),
        (
            {"schema": TYPES, "data_reader_params": {"dtypes": {"y": "int64"}}},
            "dtypes: 'y' is int64, and was float64 in .*--checkpoint_dir_for_init",
        ),
        (
            {"schema": columns(user="text", y="float32")},
            "'y' is float32, and was float64 in .*keeps the types",
        ),
    ],
    ids=["schema", "dtypes", "width"],
)
def test_a_job_that_would_go_on_with_other_types_is_refused(job, tmp_path, more, sentence):
    path = checkpoint(job(), tmp_path, TYPES)

    with pytest.raises(UsageError, match=sentence):
        describe(job(resume=path, **more), tmp_path)


def test_a_job_that_would_go_on_with_data_of_other_types_is_refused(job, tmp_path):
    path = checkpoint(job(), tmp_path, TYPES)

    with pytest.raises(DataError, match="'user' is int64 in .*train.json, and text in the train"):
        describe(job(user=(1, 2), resume=path, schema=TYPES), tmp_path)


def test_a_job_of_a_version_before_gets_its_schema_and_is_told_so(job, tmp_path):
    path = checkpoint(job(), tmp_path, None)

    types, notes = described(job(resume=path), tmp_path)

    assert {"user": "text", "y": "float64"} == types
    assert 1 == len(notes)
    assert "kept no types of columns: they are those that the data have now" in notes[0]


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_checkpoints_types_hold_for_what_it_is_used_on(job, tmp_path, command):
    """Its label is not there, a column is that the training did not know, and y would be int64."""
    path = checkpoint(job(), tmp_path, columns(user="text", y="float64", label="bool"))
    data = write(tmp_path / "other.json", user=["3"], y=[4], day=[5])
    paths = {"validation_data": data, "prediction_data": data}

    types, notes = described(job(command=command, checkpoint_dir_for_init=path, **paths), tmp_path)

    assert {"user": "text", "y": "float64", "label": "bool", "day": "int64"} == types
    assert [] == notes
    given = job(command=command, checkpoint_dir_for_init=path, schema={"y": "int64"}, **paths)
    with pytest.raises(UsageError, match="--schema: 'y' is int64, and was float64 in .*Leave"):
        describe(given, tmp_path)


def test_dtypes_that_are_as_they_were_say_nothing_new(job, tmp_path):
    """Whole numbers that miss some are floats by `missing=age:nan`, whatever dtypes says."""
    params = {"dtypes": "user:int64", "missing": "user:nan"}
    path = checkpoint(job(data_reader_params=params), tmp_path, TYPES)

    types, _ = described(job(resume=path, schema=TYPES, data_reader_params=params), tmp_path)

    assert "text" == types["user"]


def test_a_new_job_may_declare_other_types_than_its_first_parameters_had(job, tmp_path):
    path = checkpoint(job(), tmp_path, columns(user="text", y="float64"))
    settings = job(user=(1, 2), checkpoint_dir_for_init=path, schema={"user": "int64"})

    types, notes = described(settings, tmp_path)

    assert {"user": "int64", "y": "float64"} == types
    assert 1 == len(notes)
    assert "'user' is int64, and was text in" in notes[0]


def test_workers_and_replays_open_their_data_with_what_was_found(job, tmp_path, monkeypatch):
    settings = job(command="train", validation_data=write(tmp_path / "v.json", user=["0"], y=[1]))
    describe(settings, tmp_path)

    found = with_described(settings, tmp_path)
    readers = describing.open_readers(load(settings), found)

    assert ["user", "y"] == [*found.schema["columns"]]
    monkeypatch.setattr("edl.data.file_reader.FileReader._find", None)  # nobody looks for types
    (values,) = [
        reader.read(tmp_path.joinpath("v.json").as_posix(), 0, 1)
        for kind, reader in readers.items()
        if kind == 2
    ]
    assert ["0"] == values["user"].tolist()
    assert "float64" == values["y"].dtype.name


def test_columns_that_predictions_would_carry_are_looked_for_before_the_start(job, tmp_path):
    path = checkpoint(job(), tmp_path, columns(user="text", y="float64"))
    data = write(tmp_path / "other.json", user=["3", "4"], tags=[["a"], ["b", "c"]])

    def run(names, form="csv"):
        given = {"prediction_data": data, "checkpoint_dir_for_init": path, "command": "predict"}
        out = str(tmp_path / "out")
        describe(
            job(id_columns=names, prediction_format=form, **{**given, "output": out}), tmp_path
        )

    run("user")
    run("user,tags", "parquet")
    with pytest.raises(UsageError, match="--id_columns item: .*no such column; .*'user', 'tags'"):
        run("user,item")
    with pytest.raises(UsageError, match="tags: it is list of text.*--prediction_format parquet"):
        run("tags")
    with pytest.raises(UsageError, match="--id_columns source: predictions have a column"):
        run("source")


def test_a_reader_of_ones_own_reads_typed_files_in_tests(tmp_path):
    """What the others stand on."""
    path = write(tmp_path / "a.json", n=[1, 2], t=["a", "b"])

    read = reader(path).read(path, 0, 2)

    assert [1, 2] == read["n"].tolist()
    assert ["a", "b"] == read["t"].tolist()
