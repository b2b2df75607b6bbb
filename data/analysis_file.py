"""The file of a part's summary, put in place whole, until all parts are merged.

    about        the JSON of what is small: records, broken ones, counts, frequent values
    hashes-I     int64: the least hashes of column I's values
    values-I-H   float64: its sample of values of weight 2^H

What is read back merges to the very bits that the summary itself would. Nothing in it is a pickle.
"""

from __future__ import annotations

import collections
import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError
from ..common.files import write_file
from .analysis import ColumnSummary, Sizes, Summary
from .statistics import Moments

Arrays = dict[str, NDArray[Any]]


def save(part: Summary, path: Path) -> None:
    """Write a part's summary. Raises OSError."""
    arrays: Arrays = {}
    columns = [_packed(column, n, arrays) for n, column in enumerate(part.columns.values())]
    about = {"records": part.records, "broken": part.broken, "columns": columns}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_file(path, file.getvalue())


def load(path: Path, sizes: Sizes) -> Summary:
    """Return the summary in a file. Raises DataError where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            part = Summary(sizes, records=about["records"], broken=about["broken"])
            for n, packed in enumerate(about["columns"]):
                part.columns[packed["name"]] = _unpacked(packed, n, arrays, sizes)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}, which the workers of this job have written, cannot be read: {error}."
        ) from error
    return part


def _packed(column: ColumnSummary, n: int, arrays: Arrays) -> dict[str, Any]:
    """Return what is small of a column; the rest goes to the arrays."""
    arrays[f"hashes-{n}"] = column.distinct.hashes
    buffers = column.quantiles.buffers
    arrays |= {f"values-{n}-{height}": buffer for height, buffer in enumerate(buffers)}
    return {
        "name": column.name,
        "kind": column.kind,
        "dtypes": sorted(column.dtypes),
        "counts": [column.count, column.missing, column.infinite],
        "bounds": [column.least, column.greatest],
        "moments": asdict(column.moments),
        "frequent": [*column.frequent.counts.items()],
        "frequent_error": column.frequent.error,
        "quantiles": [len(buffers), column.quantiles.count, column.quantiles.variance],
    }


def _unpacked(packed: dict[str, Any], n: int, arrays: Any, sizes: Sizes) -> ColumnSummary:
    column = ColumnSummary(packed["name"], packed["kind"], sizes, seed=0)
    column.dtypes = set(packed["dtypes"])
    column.count, column.missing, column.infinite = packed["counts"]
    column.least, column.greatest = packed["bounds"]
    column.moments = Moments(**packed["moments"])
    column.distinct.hashes = arrays[f"hashes-{n}"]
    column.frequent.counts = collections.Counter(dict(packed["frequent"]))
    column.frequent.error = packed["frequent_error"]
    heights, column.quantiles.count, column.quantiles.variance = packed["quantiles"]
    column.quantiles.buffers = [arrays[f"values-{n}-{height}"] for height in range(heights)]
    return column
