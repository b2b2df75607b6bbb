"""`--schema`, `edl data schema`, and the schema of a job that a version before has begun."""

import json
from typing import Any

import pytest
import yaml
from tools.typed import reader, write

from edl.api.given import flags_of
from edl.cli import main as cli
from edl.cli.begin import _find_schema
from edl.cli.options import given_values
from edl.common.resolve import resolve
from edl.common.settings import JobSettings
from edl.data.schema_given import schema_given


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have data read whose files have types (tools/typed.py)."""
    monkeypatch.setattr("edl.data.open.open_reader", reader)


def values_of(flags: dict[str, Any], config: str | None = None) -> dict[str, Any]:
    return given_values(config, flags)[0]


def test_a_file_a_mapping_and_a_line_of_a_job_file_are_one_schema(tmp_path: Any) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text("user: text\nn: list of int64\n")
    (tmp_path / "job.yaml").write_text("schema: {user: text, n: list of int64}\n")

    given = values_of({"schema": str(path)})["schema"]

    assert given == values_of(flags_of({"schema": path}))["schema"]
    assert (
        given == values_of(flags_of({"schema": {"user": "text", "n": "list of int64"}}))["schema"]
    )
    assert given == values_of({}, str(tmp_path / "job.yaml"))["schema"]
    data = write(tmp_path / "d.json", user=["a"])
    values = {"model_def": "iris", "training_data": data, "schema": given}
    settings = resolve("train", values)
    assert given == settings.schema == JobSettings.from_json(settings.to_json()).schema


def test_a_schema_in_a_cluster_is_read_by_whoever_submits(tmp_path: Any) -> None:
    """An EdlJob with the name of a file says nothing: a controller reads no file for it."""
    from edl.common.errors import UsageError

    values = {"model_def": "iris", "training_data": "/d.csv", "image_name": "i", "job_name": "j"}
    values |= {"runtime": "kubernetes"}

    assert {"a": "text"} == resolve("train", {**values, "schema": {"a": "text"}}).schema
    with pytest.raises(UsageError, match="--schema takes k=v,k2=v2, but '/etc/passwd' has no key"):
        resolve("train", {**values, "schema": "/etc/passwd"})


def test_id_columns_are_names_with_commas_between(tmp_path: Any) -> None:
    data = write(tmp_path / "d.json", user=["a"])
    values = {"model_def": "iris", "prediction_data": data, "checkpoint_dir_for_init": ""}
    values |= {"runtime": "kubernetes", "image_name": "i", "checkpoint_dir_for_init": "/c"}

    for given in ("user, item", ["user", "item"], ("user,item", "user")):
        assert "user,item" == resolve("predict", {**values, "id_columns": given}).id_columns


def test_the_schema_of_data_is_printed_as_it_can_be_given(
    typed: None, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "a.json", **{"1e3": ["x"], "007": [1], "y": [1]})
    two = write(tmp_path / "b.json", **{"1e3": ["z"], "007": [2], "y": [0.5]})

    assert 0 == cli.run(["data", "schema", one, two])

    out = capsys.readouterr().out
    told = yaml.safe_load(out)["columns"]
    assert ["stored in the file"] * 3 == [each["found"] for each in told.values()]
    assert "int64" in told["y"]["why"]
    (tmp_path / "schema.yaml").write_text(out)
    types = {each.name: str(each.type) for each in schema_given(tmp_path / "schema.yaml")}
    assert {"1e3": "text", "007": "int64", "y": "float64"} == types
    (tmp_path / "some.yaml").write_text("y: float32\n")
    assert 0 == cli.run(["data", "schema", one, "--schema", str(tmp_path / "some.yaml")])
    assert {"type": "float32", "found": "declared"} == yaml.safe_load(capsys.readouterr().out)[
        "columns"
    ]["y"]


def test_data_without_columns_have_no_schema(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("some text")

    assert 1 == cli.run(["data", "schema", str(tmp_path / "nothing.csv")]) - 1
    assert "nothing.csv" in capsys.readouterr().err


def test_a_standing_job_of_a_version_before_gets_its_schema_once(
    typed: None, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "train.json", user=["A0"], y=[1.0])
    other = write(tmp_path / "test.json", user=["0"], y=[1], day=[3])
    settings = JobSettings(training_data=data, validation_data=other)
    described = {"training": [[data, 1]], "has": [], "notes": ["kept"]}
    (tmp_path / "describe.json").write_text(json.dumps(described))

    _find_schema(tmp_path, settings)

    now = json.loads((tmp_path / "describe.json").read_text())
    types = {name: told["type"] for name, told in now.pop("schema")["columns"].items()}
    assert {"user": "text", "y": "float64", "day": "int64"} == types
    assert described == now
    assert "kept no types of columns" in capsys.readouterr().err
    _find_schema(tmp_path, settings)
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize("described", [None, {"has": ["reader"]}, {"training": []}])
def test_a_job_whose_columns_cannot_be_known_is_left_alone(
    typed: None, tmp_path: Any, described: dict[str, Any] | None
) -> None:
    if described is not None:
        (tmp_path / "describe.json").write_text(json.dumps(described))

    _find_schema(tmp_path, JobSettings(training_data="/nowhere"))

    left = tmp_path / "describe.json"
    assert described == (json.loads(left.read_text()) if left.exists() else None)
