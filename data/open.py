"""`open_reader`: the reader for a path, by `format=` or by suffix.

    csv, tsv      .csv .tsv                      one source per file       Columns
    parquet       .parquet .pq                   one source per file       Columns
    npy, npz      .npy .npz                      one source per file       Columns
    tfrecord      .tfrecord .tfrecords           one source per file       dicts, bytes or Columns
    recordio      .recordio                      one source per file       dicts, bytes or Columns
    idx           *-images-idx3-ubyte            one source per file       Columns
    images        .png .jpg .jpeg .bmp .gif .webp  one source per folder   Columns
    text          .txt                           one source per folder     Columns

CSV, TSV, TFRecord, RecordIO and IDX may also be .gz, .bz2, .xz or .zst. A table (what comes as
Columns by file) has a column more for each `key=value` folder above its files (`partitions.py`).
The keyword arguments of a format are those of its `reader` function. On the command line all of
them are strings (`--data_reader_params columns=age|job,dtypes=age:float64`); in YAML, lists and
numbers do as well.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..common.errors import DataError, UsageError
from .files import UNPACKED_SUFFIXES, DataFile
from .partitions import partitioned
from .paths import expand
from .reader import RecordReader
from .schema import NO_SCHEMA, Schema

log = logging.getLogger(__name__)

_MODULES = {
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
    "npy": "npy",
    "npz": "npy",
    "tfrecord": "tfrecord",
    "recordio": "recordio",
    "idx": "idx",
    "images": "folders",
    "text": "folders",
}
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".recordio": "recordio",
    "-images-idx3-ubyte": "idx",
    ".png": "images",
    ".jpg": "images",
    ".jpeg": "images",
    ".bmp": "images",
    ".gif": "images",
    ".webp": "images",
    ".txt": "text",
}
TABLES = ("csv", "tsv", "parquet", "npy", "npz")
_UNPACKED = ("csv", "tsv", "tfrecord", "recordio", "idx")  # formats that may be compressed
_PACKED = re.compile(r"\.(gz|bz2|xz|zst|zip|lz4|lzo|snappy|br|z|7z|tar|tgz)$")
# What a parameter of a reader means; docs/data.md has them by format.
PARAMETERS = {
    "format": "the format, where the suffix does not tell it",
    "columns": "the columns wanted, `a|b`; all where none is named",
    "dtypes": "the type of a column, `COLUMN:int64|COLUMN:text`, several with `|` between",
    "missing": "what stands for a missing value, `COLUMN:VALUE|COLUMN:VALUE`, `*` for all columns",
    "na_values": "more signs of a missing value, `-|unknown|-999`, in all columns",
    "partitions": "`false`: `key=value` folders are no columns; `KEY:int64|KEY:text`: their types",
    "split": "lists: the sign between the elements of a column, `COLUMN:;`; `pipe` for a `|`",
    "cache_gib": "how much of decoded row groups is kept on disk, in GiB, and at most half of what "
    "is free",
    "sep": "the character between fields; `tab` for a tab",
    "header": "`false`: the first line is a record",
    "names": "the names of the columns, `a|b`, in their order",
    "quote": "the sign around fields, or `none`",
    "escape": "what follows this sign is text",
    "comment": "a line that begins with this sign is no record",
    "skip_blanks": "`true`: blanks after a separator are no text",
    "encoding": "of the texts, a name that Python knows",
    "raw": "`true`: records as bytes, not parsed as tf.train.Example",
    "size": "`HxW`: pictures are resized to it",
    "mode": "`RGB` or `L` (grey); `RGB` where no schema says it",
    "exif": "`false`: pictures stay as they lie in the file, not turned as EXIF says",
    "classes": "the sub-folders in the order of their labels, `a|b`",
}


def open_reader(path: str, *, schema: Schema = NO_SCHEMA, **params: Any) -> RecordReader:
    """Return a reader of the file, folder, glob, comma list or fsspec URL `path`.

    `schema`: the types of columns, as far as they are known; of a table others are found over all
    of its files (`schema_of`).

    Raises UsageError for a path that is not there, a format that is unknown or cannot be told, and
    a parameter that the format does not have; DataError for a folder without data. Nothing is read
    yet: `sources()` opens the files.
    """
    name, files = _found(path, params.pop("format", None))
    reader = maker(name)
    _check_params(name, reader, params)
    if "schema" in inspect.signature(reader).parameters:
        params["schema"] = schema
    if name in TABLES:
        return partitioned(reader, files, params, schema)
    return reader(files, **params)


def files_of(path: str, format: str | None = None) -> list[DataFile]:
    """Return the files that `open_reader` would read, labels too. Raises as it does."""
    name, files = _found(path, format)
    if name != "idx":
        return files
    from .idx import labels_of

    named = {file.name for file in files}
    return [*files, *(b for f in files if (b := labels_of(f)) and b.name not in named)]


def _found(path: str, wanted: str | None) -> tuple[str, list[DataFile]]:
    if wanted is not None and wanted not in _MODULES:
        raise UsageError(f"There is no format {wanted!r}; there are {', '.join(_MODULES)}.")
    files = expand(str(path))
    return (wanted, files) if wanted else _by_suffix(path, files)


def maker(name: str) -> Callable[..., RecordReader]:
    """Return the function that makes a format's reader, of files and the format's parameters."""
    module = importlib.import_module(f".{_MODULES[name]}", __package__)
    made: Callable[..., RecordReader] = getattr(module, f"{name}_reader")
    return made


def parameters(name: str, reader: Callable[..., Any] | None = None) -> list[str]:
    """Return the parameters that a format takes."""
    own = [n for n in inspect.signature(reader or maker(name)).parameters if n != "schema"][1:]
    return ["format", *own, *(["partitions"] if name in TABLES else [])]


def _by_suffix(path: str, files: Sequence[DataFile]) -> tuple[str, list[DataFile]]:
    """Return the one format of the files, and those that have it (a README beside them has not)."""
    found: dict[str, list[DataFile]] = {}
    others = []
    for file in files:
        name = format_of(file.path)
        if name is not None:
            found.setdefault(name, []).append(file)
        else:
            others.append(file)
    if len(found) > 1:
        found.pop("text", None)  # notes beside the data
    if len(found) == 1:
        if others:
            log.warning(
                "%d files beside the data have no suffix of a format and are left out: %s.",
                len(others), ", ".join(Path(file.name).name for file in others[:3]),
            )  # fmt: skip
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


def format_of(path: str) -> str | None:
    """Return the format that a name tells.

    Raises DataError where it is packed in a way that is not read.
    """
    lower = path.lower()
    plain = _PACKED.sub("", lower)
    fitting = [name for suffix, name in _SUFFIXES.items() if plain.endswith(suffix)]
    if not fitting or (plain != lower and fitting[0] in ("images", "text")):
        return None
    if plain != lower and not (fitting[0] in _UNPACKED and lower.endswith(UNPACKED_SUFFIXES)):
        raise DataError(
            f"{path} is packed as {lower[len(plain) :]}, which is not read for {fitting[0]}: "
            f"unpack it ({', '.join(_UNPACKED)} may be {', '.join(UNPACKED_SUFFIXES)})."
        )
    return fitting[0]


def _check_params(name: str, reader: Callable[..., Any], params: dict[str, Any]) -> None:
    known = parameters(name, reader)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise UsageError(
            f"The reader of {name} has no parameter {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(known)}."
        )
