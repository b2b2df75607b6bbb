"""`open_reader`: the reader for a path, by `format=` or by suffix.

    csv, tsv      .csv .tsv .csv.gz .tsv.gz      one source per file       Columns
    parquet       .parquet .pq                   one source per file       Columns
    npy, npz      .npy .npz                      one source per file       Columns
    tfrecord      .tfrecord .tfrecords           one source per file       list of dicts, or of bytes
    idx           *-images-idx3-ubyte[.gz]       one source per file       Columns
    images        .png .jpg .jpeg .bmp .gif .webp  one source per folder   Columns
    text          .txt                           one source per folder     Columns

The keyword arguments of a format are those of its `reader` function. On the command line all of
them are strings (`--data_reader_params columns=age|job,dtypes=age:float64`); in YAML, lists and
numbers do as well.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..common.errors import DataError, UsageError
from .files import DataFile, expand
from .reader import RecordReader

_MODULES = {
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
    "npy": "npy",
    "npz": "npy",
    "tfrecord": "tfrecord",
    "idx": "idx",
    "images": "folders",
    "text": "folders",
}
_SUFFIXES = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    "-images-idx3-ubyte": "idx",
    "-images-idx3-ubyte.gz": "idx",
    ".png": "images",
    ".jpg": "images",
    ".jpeg": "images",
    ".bmp": "images",
    ".gif": "images",
    ".webp": "images",
    ".txt": "text",
}


def open_reader(path: str, **params: Any) -> RecordReader:
    """A reader of the file, folder, glob, comma list or fsspec URL `path`.

    Raises UsageError for a path that is not there, a format that is unknown or cannot be told, and
    a parameter that the format does not have; DataError for a folder without data. Nothing is read
    yet: `sources()` opens the files.
    """
    wanted = params.pop("format", None)
    if wanted is not None and wanted not in _MODULES:
        raise UsageError(f"There is no format {wanted!r}; there are {', '.join(_MODULES)}.")
    files = expand(str(path))
    name, files = (wanted, files) if wanted else _by_suffix(path, files)
    module = importlib.import_module(f".{_MODULES[name]}", __package__)
    reader: Callable[..., RecordReader] = getattr(module, f"{name}_reader")
    _check_params(name, reader, params)
    return reader(files, **params)


def _by_suffix(path: str, files: Sequence[DataFile]) -> tuple[str, list[DataFile]]:
    """The one format of the files, and those files that have it (a README beside them has not)."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        if (name := _format_of(file.path)) is not None:
            found.setdefault(name, []).append(file)
    if len(found) > 1:
        found.pop("text", None)  # notes beside the data
    if len(found) == 1:
        return next(iter(found.items()))
    if not found and len(files) > 1:
        raise DataError(
            f"{path} holds no file with a known suffix ({' '.join(_SUFFIXES)}): "
            f"say format=, one of {', '.join(_MODULES)}."
        )
    what = "files of several formats" if found else "a file whose suffix tells no format"
    raise UsageError(
        f"{path} stands for {what}{': ' + ', '.join(found) if found else ''}. Say which with "
        f"--data_reader_params format=..., one of {', '.join(_MODULES)}."
    )


def _format_of(path: str) -> str | None:
    lower = path.lower()
    fitting = [name for suffix, name in _SUFFIXES.items() if lower.endswith(suffix)]
    return fitting[0] if fitting else None


def _check_params(name: str, reader: Callable[..., Any], params: dict[str, Any]) -> None:
    known = list(inspect.signature(reader).parameters)[1:]
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise UsageError(
            f"The reader of {name} has no parameter {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(['format', *known])}."
        )
