"""The files that `edl predict` writes: the outputs of a task's records, and which records they are.

Outputs are arrays by name (nn/outputs.py). A task's files are its own and are put in place whole,
so writing them again changes nothing.

    npy        part-TASK.npy of a tensor, else part-TASK.NAME.npy; records-TASK.npy: source, record
    csv        part-TASK.csv: source, record, and a column for each number of a row
    parquet    part-TASK.parquet: source, record, and a column (of lists) for each array

Columns of the data that are asked for stand between both (id_columns.py).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

import numpy as np

from ..common.errors import DefinitionError, JobError, UsageError
from ..common.extras import install
from ..nn.arrays import Array
from .id_columns import Ids

FOLDER = "predictions"


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the arrays of all minibatches of a task, in their order.

    Raises DefinitionError.
    """
    if not parts:
        return {"output": np.zeros((0,), np.float32)}
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DefinitionError(
                f"model: it returns the outputs {', '.join(parts[0])} of one minibatch and "
                f"{', '.join(part)} of another"
            )
        for name, array in part.items():
            if array.shape[1:] != parts[0][name].shape[1:]:
                raise DefinitionError(
                    f"model: rows of the output {name!r} have the shape {list(array.shape[1:])} in "
                    f"one minibatch and {list(parts[0][name].shape[1:])} in another: pad them "
                    "to one"
                )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check_output(folder: Path, form: str) -> None:
    """Check the output folder before the job begins.

    Raises UsageError where it could not write, or would write among another job's predictions.
    """
    there = folder / FOLDER
    if there.is_dir() and any(there.glob("part-*")):
        raise UsageError(
            f"{there} holds the predictions of another job: name another --output, or remove them"
        )
    if form == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"--prediction_format parquet needs pyarrow: {install('parquet')}"
            ) from error


_NO_IDS = Ids()


def write(
    output: Path,
    task: int,
    source: str,
    records: Array,
    arrays: Mapping[str, Array],
    form: str,
    ids: Ids = _NO_IDS,
) -> None:
    """Write a task's files.

    `records` int64[n]: their numbers in `source`; `ids`: columns of the records. Raises JobError,
    DefinitionError.
    """
    ids.check(arrays)
    folder = output / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, save in _files(f"{task:08d}", source, records, arrays, form, ids).items():
            partial = folder / f".{name}.{os.getpid()}"
            with open(partial, "wb") as file:
                save(file)
            os.replace(partial, folder / name)
    except OSError as error:
        raise JobError(f"cannot write predictions into {folder}: {error}") from error


Save = Callable[[IO[bytes]], None]


def _files(
    task: str, source: str, records: Array, arrays: Mapping[str, Array], form: str, ids: Ids
) -> dict[str, Save]:
    if form != "npy":
        save = _save_csv if form == "csv" else _save_parquet
        return {f"part-{task}.{form}": lambda file: save(file, source, records, arrays, ids)}
    who = np.zeros(len(records), [("source", f"U{max(1, len(source))}"), ("record", np.int64)])
    who["source"], who["record"] = source, records
    files = {f"records-{task}.npy": _saver(who)}  # first: whoever has outputs knows of whom
    for name, array in ids.arrays().items():
        files[f"ids-{task}.{quote(name, safe='')}.npy"] = _saver(array)
    for name, array in arrays.items():
        what = "" if list(arrays) == ["output"] else f".{quote(name, safe='')}"
        files[f"part-{task}{what}.npy"] = _saver(array)
    return files


def _saver(array: Array) -> Save:
    return lambda file: np.save(file, array, allow_pickle=False)


def _save_csv(
    file: IO[bytes], source: str, records: Array, arrays: Mapping[str, Array], ids: Ids
) -> None:
    columns: dict[str, Sequence[object] | Array] = {
        "source": np.full(len(records), source),
        "record": records,
        **ids.texts(),
    }
    for name, array in arrays.items():
        for place in np.ndindex(array.shape[1:]):
            label = f"{name}[{','.join(map(str, place))}]" if place else name
            columns[label] = array[(slice(None), *place)].astype(str)
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        lines = csv.writer(text)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))


def _save_parquet(
    file: IO[bytes], source: str, records: Array, arrays: Mapping[str, Array], ids: Ids
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "source": pa.array([source] * len(records), pa.string()),
        "record": pa.array(records),
        **ids.arrow(),
    }
    for name, array in arrays.items():
        if array.dtype.kind == "c":
            raise DefinitionError(
                f"model: the output {name!r} is complex, which Parquet has not: return its real "
                "and imaginary parts (torch.view_as_real), or say --prediction_format npy"
            )
        values = pa.array(np.ascontiguousarray(array).reshape(-1))
        for size in reversed(array.shape[1:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        columns[name] = values
    pq.write_table(pa.table(columns), file)
