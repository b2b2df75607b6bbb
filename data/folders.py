"""Folders with one sub-folder per class: of pictures, or of texts.

All files together are one source. Their order is that of a hash of "class/name", fixed but mixed,
since tasks are ranges of it: in the order of the names a task would hold one class. `label` is the
place of the class in `classes`, by default the sorted names of the sub-folders.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from .exact import Unfit, bring
from .file_reader import FileReader, flag_of, names_of
from .files import DataFile
from .merge import merged
from .pictures import MODES, Header, broken, header, pillow, pixels
from .reader import Columns
from .schema import NO_SCHEMA, STORED, Field, Schema, Type

_AT_ONCE = 16  # heads of pictures that are asked for at once, from afar
_BESIDE = Field("label", Type("int64"), found=STORED), Field("path", Type("text"), found=STORED)
_MARKS = {  # that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def images_reader(
    files: Sequence[DataFile],
    size: str | Sequence[int] | None = None,
    mode: str | None = None,
    classes: str | Sequence[str] | None = None,
    exif: bool | str = True,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read columns image [N, H, W, 3] uint8 (`mode=L`: [N, H, W], grey), label and path.

    Pictures of 16 bits are uint16. `size=HxW` resizes; without it the first picture's size is that
    of all. `exif=false` leaves pictures as they lie in the file.
    """
    known = schema.get("image")
    mode = mode or (known.type.mode if known is not None else "") or MODES[0]
    if mode not in MODES:
        raise UsageError(f"The parameter mode must be RGB or L, not {mode!r}.")
    look = _Look(mode, _size(size), flag_of(exif, "exif"))
    opener = partial(_Images, tuple(files), tuple(names_of(classes)), look)
    return FileReader({_common_name(files): opener}, schema)


def text_reader(
    files: Sequence[DataFile],
    classes: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read columns text (object array of str), label and path."""
    opener = partial(_Texts, tuple(files), tuple(names_of(classes)), encoding)
    return FileReader({_common_name(files): opener}, schema)


def _common_name(files: Sequence[DataFile]) -> str:
    """Return the folder above the class folders (for one file: its own name)."""
    names = [file.name for file in files]
    return names[0] if len(names) == 1 else os.path.commonpath(names).replace(":/", "://", 1)


def _size(size: str | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        parts = size.lower().split("x") if isinstance(size, str) else size
        height, width = (int(part) for part in parts)
        if height < 1 or width < 1:
            raise ValueError("not positive")
    except ValueError as error:
        raise UsageError(f"The parameter size must read HxW, as 32x32, not {size!r}.") from error
    return height, width


class _Folder:
    """The files in their fixed order, and their labels."""

    def __init__(self, files: Sequence[DataFile], classes: tuple[str, ...], content: str) -> None:
        self._files = sorted(files, key=_mixed)
        self._classes = list(classes) or sorted({file.folder() for file in files})
        strange = sorted({file.folder() for file in files} - set(self._classes))
        if strange:
            raise DataError(
                f"The folder {strange[0]!r} is none of the classes {', '.join(self._classes)}: "
                "the data is one sub-folder per class."
            )
        self.records = len(self._files)
        self._source = _common_name(files)
        self.names = content, *(each.name for each in _BESIDE)
        self._schema = NO_SCHEMA

    @property
    def stored(self) -> Schema:
        """The types of the columns."""
        raise NotImplementedError

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns. Raises DataError."""
        merged([(self._source, self.stored)], schema)
        self._schema = schema

    def _columns(self, content: str, values: NDArray[Any], numbers: NDArray[np.int64]) -> Columns:
        """Return what the files hold, and label and path of the records."""
        files = [self._files[number] for number in numbers]
        labels = np.array([self._classes.index(file.folder()) for file in files], np.int64)
        paths = np.array([f.name for f in files], dtype=np.str_)
        try:
            beside = {
                name: bring(self._schema[name], each)
                for name, each in (("label", labels), ("path", paths))
            }
        except Unfit as error:
            raise self._broken(int(numbers[error.row]), error.why) from error
        return Columns({content: values, **beside})

    def _broken(self, number: int, reason: object) -> RecordError:
        return RecordError(self._source, number, f"{self._files[number].name}: {reason}")

    def _bytes(self, number: int) -> bytes:
        try:
            with self._files[number].open() as stream:
                data = stream.read()
        except DataError as error:
            raise self._broken(number, error) from error
        if not data:
            raise self._broken(number, "the file is empty")
        return data


class _Texts(_Folder):
    def __init__(self, files: Sequence[DataFile], classes: tuple[str, ...], encoding: str) -> None:
        super().__init__(files, classes, "text")
        self._encoding = encoding

    @property
    def stored(self) -> Schema:
        return Schema((Field("text", Type("text"), found=STORED), *_BESIDE))

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        texts = np.empty(len(numbers), dtype=object)
        for place, number in enumerate(numbers.tolist()):
            data = self._bytes(number)
            try:
                text = data.decode(self._encoding)
            except UnicodeDecodeError as error:
                raise self._broken(number, _other_encoding(data) or error) from error
            texts[place] = text.removeprefix("\ufeff")  # a byte order mark
        return self._columns("text", texts, numbers)


def _other_encoding(data: bytes) -> str:
    """Return what to say of a text that begins with the byte order mark of another encoding."""
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            return f"it begins with the byte order mark of {name}: say encoding={name}"
    return ""


class _Look(NamedTuple):
    """How pictures are to be: resized to `size`, turned as EXIF says."""

    mode: str
    size: tuple[int, int] | None
    exif: bool


class _Images(_Folder):
    """Pictures in folders, one for each class."""

    def __init__(self, files: Sequence[DataFile], classes: tuple[str, ...], look: _Look) -> None:
        super().__init__(files, classes, "image")
        self._look = look
        pillow()

    @cached_property
    def stored(self) -> Schema:
        """The type of the pictures, by the heads of all, and those of the other columns.

        The first one that can be read tells the size where none is wanted. Raises DataError where
        pictures of 8 and of 16 bits lie side by side.
        """
        size, depths = self._look.size, dict[int, str]()
        for file, found in zip(self._files, self._headers(), strict=True):
            if found is not None:
                depths.setdefault(found.bits, file.name)
                size = size or found.size
        if size is None or not depths:
            raise DataError(f"No picture in {self._source} can be decoded.")
        if len(depths) > 1:
            raise DataError(
                f"{depths[8]} has 8 bits a channel and {depths[16]} 16: write all with one "
                "depth, for 255 is white in one and nearly black in the other."
            )
        (bits,) = depths
        picture = Type("picture", shape=size, mode=self._look.mode, bits=bits)
        return Schema((Field("image", picture, found=STORED), *_BESIDE))

    def _headers(self) -> Iterator[Header | None]:
        """Yield what the head of each picture's file tells; None where it cannot be read."""
        if self._files[0].is_local:
            yield from map(self._header, self._files)
            return
        with ThreadPoolExecutor(_AT_ONCE, "headers") as pool:
            yield from pool.map(self._header, self._files)

    def _header(self, file: DataFile) -> Header | None:
        unreadable: tuple[type[Exception], ...] = (DataError, *broken())
        try:
            with file.open() as stream:
                return header(stream, self._look.exif)
        except unreadable:
            return None  # a broken record, when it is read

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns. Raises DataError where the pictures are to be others."""
        column = schema["image"]
        type_, look = column.type, self._look
        if (
            type_.kind != "picture"
            or type_.mode != look.mode
            or look.size not in (None, type_.shape)
        ):
            here = f"mode={look.mode}" + (f" and size={_told(look.size)}" if look.size else "")
            raise DataError(
                f"column 'image' is {type_}, and {self._source} is read with {here}: leave these "
                "parameters out, or give those of the training data."
            )
        merged([(self._source, Schema(_BESIDE))], schema)
        self._schema = schema

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        type_ = self._schema["image"].type
        channels = (3,) if type_.mode == "RGB" else ()
        images = np.empty((len(numbers), *type_.shape, *channels), dtype=type_.dtype)
        for place, number in enumerate(numbers.tolist()):
            images[place] = self._pixels(number, type_)
        return self._columns("image", images, numbers)

    def _pixels(self, number: int, type_: Type) -> NDArray[Any]:
        data, look = self._bytes(number), self._look
        try:
            found = pixels(data, type_.mode, look.size, look.exif)
        except broken() as error:
            raise self._broken(number, f"it cannot be decoded: {error}") from error
        if found.dtype != type_.dtype:
            bits = 8 * found.dtype.itemsize
            reason = f"it has {bits} bits a channel, not {type_.bits}: write all with one depth"
            raise self._broken(number, reason)
        if found.shape[:2] != type_.shape:
            there, wanted = (" x ".join(map(str, each)) for each in (found.shape[:2], type_.shape))
            reason = f"it has {there} pixels, not {wanted}: resize with size=HxW"
            raise self._broken(number, reason)
        return found


def _told(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))


def _mixed(file: DataFile) -> tuple[bytes, str]:
    key = f"{file.folder()}/{file.path.rpartition('/')[2]}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest(), file.path
