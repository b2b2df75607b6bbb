"""Deltas and exports of versions before are read as they were meant: tests/kept/README.md."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kept import served
from kept.folders import JOB, all_kept


@pytest.mark.parametrize("kept", all_kept("deltas"))
def test_whoever_reads_deltas_of_before_has_the_count_of_each_record(kept, tmp_path):
    kept.place(tmp_path / "home")

    told = served.of_deltas(tmp_path / "home" / JOB)

    assert kept.expected["told"] == told
    records, epochs = kept.expected["records"], kept.expected["epochs"]
    assert {str(r): [float(epochs)] for r in range(records)} == told["rows"]["counts"]
    assert {"total": [float(records * epochs)]} == told["dense"]
    assert records * epochs == told["way"][-1][1]


@pytest.mark.parametrize("kept", all_kept("export"))
def test_a_model_that_was_exported_before_answers_as_it_did(kept, tmp_path):
    kept.place(tmp_path / "home")
    out = tmp_path / "home" / JOB / "exported"

    told = served.of_export(tmp_path / "home" / JOB)

    expected = kept.expected["told"]
    assert expected["asked"] == told["asked"]
    for part in ("outputs", "tables"):
        assert expected[part].keys() == told[part].keys()
        for name, values in expected[part].items():
            np.testing.assert_allclose(told[part][name], values, atol=1e-4)
    answered = json.loads((out / "response.json").read_text())["outputs"]
    for each in answered:  # by what wrote the export, of the job's own model
        flat = np.asarray(told["outputs"][each["name"]]).reshape(-1)
        np.testing.assert_allclose(flat, np.asarray(each["data"]).reshape(-1), atol=1e-4)
