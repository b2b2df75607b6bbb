"""What is asked of a checkpoint, and what is read of a job that has ended; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edl
from edl.api.result import Result
from edl.api.use import Predictions
from edl.common import paths
from edl.common.errors import UsageError
from edl.worker.id_columns import Ids
from edl.worker.predictions import write

pytestmark = pytest.mark.fast

OUTPUTS = {
    "output": np.arange(12, dtype=np.float32).reshape(6, 2),
    "a b": np.arange(6, dtype=np.float32),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


def result(folder: Path | None, **status: Any) -> Result:
    return Result.of({"job_name": "j", "state": "done", **status}, folder)


def predicted(folder: Path, form: str, names: list[str]) -> Predictions:
    """Write two tasks, the second one first, and return them."""
    for task, low, high in ((1, 4, 6), (0, 0, 4)):
        outputs = {name: OUTPUTS[name][low:high] for name in names}
        write(folder, task, f"file-{task}.npz", np.arange(low, high), outputs, form)
    return Predictions(str(folder / "predictions"), 6, result(folder))


@pytest.mark.parametrize("names", [["output"], ["output", "a b"]])
def test_predictions_come_in_the_order_of_the_data_by_the_names_of_outputs(
    tmp_path: Path, names: list[str]
) -> None:
    found = predicted(tmp_path, "npy", names)

    assert [4, 2] == [len(part["record"]) for part in found]
    table = found.table()
    assert {"source", "record", *names} == set(table)
    assert ["file-0.npz"] * 4 + ["file-1.npz"] * 2 == table["source"].tolist()
    assert list(range(6)) == table["record"].tolist()
    for name in names:
        np.testing.assert_array_equal(OUTPUTS[name], table[name])


def test_predictions_that_were_written_as_tables_are_read_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    of_csv = predicted(tmp_path / "csv", "csv", ["output"]).table()
    of_parquet = predicted(tmp_path / "parquet", "parquet", ["output"]).table()

    assert ["source", "record", "output[0]", "output[1]"] == list(of_csv)
    np.testing.assert_array_equal(OUTPUTS["output"][:, 1], of_csv["output[1]"])
    np.testing.assert_array_equal(OUTPUTS["output"], of_parquet["output"])
    assert of_csv["source"].tolist() == of_parquet["source"].tolist()


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_columns_of_the_data_are_read_with_the_predictions(tmp_path: Path, form: str) -> None:
    for task, users in enumerate((["007", "7"], ["longer than those"])):
        ids = Ids({"user": np.array(users)})
        outputs = {"output": np.ones(len(users), np.float32)}
        write(tmp_path, task, "a", np.arange(len(users)), outputs, form, ids)

    table = Predictions(str(tmp_path / "predictions"), 3, result(tmp_path)).table()

    assert ["source", "record", "user", "output"] == list(table)
    assert ["007", "7", "longer than those"] == table["user"].tolist()


def test_predictions_of_pods_are_to_be_copied_first() -> None:
    with pytest.raises(UsageError, match="are not here .* copy them from its pods"):
        next(iter(Predictions("/of/a/pod/predictions", 6, result(None))))


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: edl.evaluate(), UsageError, "`edl evaluate` needs --validation_data"),
        (lambda: edl.evaluate("/no/such", "/d.csv"), UsageError, "no complete checkpoint in /no"),
        (lambda: edl.evaluate(3, "/d.csv"), UsageError, "checkpoint is a int: give a Result"),
        (lambda: edl.predict(result(None), "/d.csv"), UsageError, "has left no checkpoint"),
        (
            lambda: edl.evaluate("a", "/d.csv", checkpoint_dir_for_init="b"),
            UsageError,
            "leave out one of them",
        ),
        (lambda: edl.evaluate(init_rows="a=b"), TypeError, "evaluate.. got .* 'init_rows'"),
        (lambda: edl.predict(num_worker=2), TypeError, "did you mean 'num_workers'"),
        (lambda: edl.predict(num_epochs=2), UsageError, "--num_epochs is of `edl train`"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_leaves_no_job(
    call: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        call()

    assert not list(paths.jobs_folder().glob("*"))


def test_curves_are_those_of_the_history_each_version_once(tmp_path: Path) -> None:
    lines = [
        {"t": 1.0, "version": 10, "scalars": {"loss": 0.9}},
        {"t": 2.0, "version": 20, "scalars": {"auc": 0.7}},
        {"t": 2.0, "version": 20, "scalars": {"loss": 0.5, "records_per_s": 9.0}},
        {"t": 2.5, "id": 1, "text": "worker 0 was killed"},
        {"t": 3.0, "version": 20, "scalars": {"auc": 0.7}},  # by the next master
        {"t": 3.0, "version": 15, "scalars": {"loss": 0.6}},  # servers went back
    ]
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    evaluations = [{"version": 30, "epoch": 1, "metrics": {"auc": 0.8}}]

    assert {
        "loss": [(10, 0.9), (15, 0.6), (20, 0.5)],
        "auc": [(20, 0.7), (30, 0.8)],
        "records_per_s": [(20, 9.0)],
    } == result(tmp_path, evaluations=evaluations).curves
    assert {"auc": [(30, 0.8)]} == result(None, evaluations=evaluations).curves


def test_goodput_is_the_sum_of_all_machines() -> None:
    machine = {"useful_s": 8.0, "recompute_s": 1.0, "start_s": 0.5, "idle_s": 0.5}

    told = result(None, usage={"machines": [machine, machine]}).goodput

    assert {"useful": 16.0, "recomputed": 2.0, "starting": 1.0, "idle": 1.0} == told


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ((), "No fault is named: say chaos"),
        (("worker:evry=1s",), "there is no 'evry'"),
        (("workers",), "none of worker, ps, master"),
        (("worker",), "no job"),
    ],
)
def test_a_fault_that_cannot_be_is_told(rules: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        edl.Job("nobody").chaos(*rules)
