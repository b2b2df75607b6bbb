"""The settings of a job that say which data it reads, and what their columns are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .knobs import about, knob


@dataclass(frozen=True)
class DataSettings:
    """The settings of a job that say which data it reads, and what their columns are."""

    training_data: str = knob(
        "", "File, folder, glob or URL of the training data.", "Data", path=True, of=("train",)
    )
    validation_data: str = knob(
        "", "Data for the evaluations while training.", "Data", path=True, of=("train", "evaluate")
    )
    prediction_data: str = knob("", "Data for `edl predict`.", "Data", path=True, of=("predict",))
    prediction_format: str = knob(
        "npy",
        "What `edl predict` writes below --output: arrays, or tables with the records' source and "
        "number (parquet needs pyarrow).",
        "Data",
        choices=("npy", "csv", "parquet"),
        of=("predict",),
    )
    id_columns: str = knob(
        "",
        "Columns of --prediction_data that `edl predict` writes beside the outputs, as they are "
        "there: user,item.",
        "Data",
        many=True,
        of=("predict",),
    )
    data_reader_params: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("Arguments of the reader: k=v,k2=v2 (e.g. format=csv).", "Data"),
    )
    schema: dict[str, Any] = field(
        default_factory=dict,
        metadata=about(
            "Types of columns: a file (YAML or JSON) of COLUMN: TYPE, or as `edl data schema` "
            "prints it; those of others are found.",
            "Data",
            path=True,
        ),
    )
