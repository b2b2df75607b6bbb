"""Data in memory, written once as Parquet: a DataFrame, arrays by name, an Arrow table, a Dataset.

A column of numbers or texts is a column; an array of more dimensions is a column of lists of one
length, which come back as the array that they were (docs/data.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ..common.errors import DataError, UsageError
from ..common.extras import install

LIMIT_NBYTES = 2 << 30
_ROW_GROUP = 1 << 16  # records: each is decoded as a whole, and kept
_CHUNK = 4096  # items of a Dataset at once


def is_place(data: object) -> bool:
    """Tell whether data is named by paths or URLs, and not there itself."""
    several = data if isinstance(data, list | tuple) else [data]
    return all(isinstance(each, str | os.PathLike) for each in several)


def place_of(data: object) -> str:
    """Return paths and URLs as the command line takes them."""
    several: Any = data if isinstance(data, list | tuple) else [data]
    return ",".join(os.fspath(each) for each in several)


def write(data: object, path: Path, name: str) -> tuple[int, int]:
    """Write data as Parquet; return its records and the file's bytes.

    `name`: the argument that it is. Raises UsageError for what is no data, or too much.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{name}: data in memory is written as Parquet, by pyarrow, which is not installed: "
            f"{install('parquet')}, or give a path."
        ) from error
    try:
        table = _table(data, name, pyarrow)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be written as Parquet: {error}.") from error
    if not table.num_rows or not table.num_columns:
        raise UsageError(f"{name} has no records.")
    _check_size(table.nbytes, name)
    parquet.write_table(table, path, row_group_size=_ROW_GROUP)
    return table.num_rows, path.stat().st_size


def _check_size(nbytes: int, name: str) -> None:
    if nbytes > LIMIT_NBYTES:
        raise UsageError(
            f"{name} has {nbytes / (1 << 30):.1f} GiB in memory, and what is above 2 GiB is not "
            "copied: write it to files, Parquet for example, and give their path."
        )


def _table(data: Any, name: str, arrow: Any) -> Any:
    """Return data as an Arrow table."""
    if isinstance(data, arrow.Table):
        return data
    if type(data).__module__.partition(".")[0] == "pandas":
        return arrow.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "to_arrow"):  # polars, and whoever else
        return data.to_arrow()
    if isinstance(data, Mapping):
        return _of_arrays(data, name, arrow)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "dtype"):
        return _of_items((data[index] for index in range(len(data))), name, arrow)
    if isinstance(data, Iterable) and not hasattr(data, "dtype"):
        return _of_items(iter(data), name, arrow)
    raise UsageError(
        f"{name} is a {type(data).__name__}: give a path or URL, a DataFrame, a dict of arrays by "
        "name, an Arrow table, or a Dataset of torch."
    )


def _of_arrays(columns: Mapping[Any, Any], name: str, arrow: Any) -> Any:
    """Return a table of arrays by name."""
    made = {str(key): _column(value, arrow) for key, value in columns.items()}
    lengths = {key: len(column) for key, column in made.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise UsageError(f"{name}: its columns are not of one length: {told}.")
    return arrow.table(made)


def _column(value: Any, arrow: Any) -> Any:
    """Return an array of any shape as a column."""
    import numpy as np

    detached = value.detach().cpu() if hasattr(value, "detach") else value
    array = np.ascontiguousarray(detached)
    column = arrow.array(array.reshape(-1) if array.ndim > 1 else array)
    for length in reversed(array.shape[1:]):
        column = arrow.FixedSizeListArray.from_arrays(column, length)
    return column


def _of_items(items: Iterator[Any], name: str, arrow: Any) -> Any:
    """Return a table of a Dataset's items: dicts, pairs (x, y), tuples (0, 1, 2), values (x)."""
    import numpy as np

    chunks, nbytes = [], 0
    while chunk := [_fields(item) for item in islice(items, _CHUNK)]:
        keys = list(chunk[0])
        if any(list(each) != keys for each in chunk):
            raise UsageError(f"{name}: its items have not the same parts: {', '.join(keys)}.")
        columns = {key: np.stack([_array(each[key]) for each in chunk]) for key in keys}
        chunks.append(_of_arrays(columns, name, arrow))
        nbytes += chunks[-1].nbytes
        _check_size(nbytes, name)
    if not chunks:
        raise UsageError(f"{name} has no records.")
    return arrow.concat_tables(chunks)


def _fields(item: Any) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(key): value for key, value in item.items()}
    if isinstance(item, tuple | list):
        names = ("x", "y") if len(item) == 2 else map(str, range(len(item)))
        return dict(zip(names, item, strict=True))
    return {"x": item}


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
