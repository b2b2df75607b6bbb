"""IDX, the format of MNIST and Fashion-MNIST: NAME-images-idx3-ubyte beside NAME-labels-idx1-ubyte.

A .gz is decompressed once (see `files.Seekable`). The labels file may be absent: then there is no
column `label` (prediction).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from .exact import Unfit, bring
from .file_reader import FileReader
from .files import DataFile, Seekable
from .merge import merged
from .reader import Columns
from .schema import NO_SCHEMA, STORED, Field, Schema, Type

_UNSIGNED_BYTE = 8


def idx_reader(files: Sequence[DataFile], schema: Schema = NO_SCHEMA) -> FileReader:
    """Read columns image [N, H, W] uint8 and label int64."""
    images = [file for file in files if "-labels-idx1-" not in file.path]
    return FileReader({file.name: partial(_Images, file) for file in images}, schema)


def labels_of(file: DataFile) -> DataFile | None:
    """Return the file of an images file's labels; None where there is none."""
    path = file.path.replace("-images-idx3-", "-labels-idx1-")
    if path == file.path or not file.fs.exists(path):
        return None
    return replace(file, path=path, name=file.name.replace("-images-idx3-", "-labels-idx1-"))


class _Bytes:
    """An IDX file of unsigned bytes."""

    def __init__(self, file: DataFile) -> None:
        file.nbytes()
        self._seekable = Seekable(file)
        self.file = self._seekable.file
        with self.file.open() as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTE or not head[3]:
                raise DataError(f"{file.name} is no IDX file of unsigned bytes.")
            sizes = stream.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise DataError(f"{file.name} is cut off within its header.")
        self.records, *shape = struct.unpack(f">{head[3]}I", sizes)
        self.shape = tuple(shape)
        self._offset = 4 + len(sizes)

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        nbytes = int(np.prod(self.shape, dtype=np.int64))
        first, last = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
        with self.file.open() as stream:
            stream.seek(self._offset + first * nbytes)
            data = stream.read((last - first) * nbytes)
        there = first + len(data) // max(nbytes, 1)
        if missing := numbers[numbers >= there].tolist():
            raise RecordError(self.file.name, missing[0], "the file is cut off before its end")
        rows = np.frombuffer(data[: (there - first) * nbytes], np.uint8)
        return rows.reshape(there - first, *self.shape)[numbers - first]


class _Images:
    """An images file with its labels."""

    def __init__(self, file: DataFile) -> None:
        self._images = _Bytes(file)
        self.records: int = self._images.records
        self._labels = None
        self._name = file.name
        image = Field("image", Type("uint8", shape=self._images.shape), found=STORED)
        self.stored = self._schema = Schema((image,))
        if beside := labels_of(file):
            self._labels = _Bytes(beside)
            self.stored = Schema((image, Field("label", Type("int64"), found=STORED)))
            if self._labels.records != self.records:
                raise DataError(
                    f"{file.name} has {self.records} images, {beside.name} {self._labels.records} "
                    "labels."
                )
        self.names = self.stored.names

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns. Raises DataError."""
        merged([(self._name, self.stored)], schema)
        self._schema = schema

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        columns = {"image": self._images.read(numbers)}
        if self._labels is not None:
            columns["label"] = self._labels.read(numbers).astype(np.int64)
        try:
            return Columns({name: bring(self._schema[name], columns[name]) for name in columns})
        except Unfit as error:
            raise RecordError(self._name, int(numbers[error.row]), error.why) from error
