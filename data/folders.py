"""Folders with one sub-folder per class: of pictures, or of texts.

All files together are one source. Their order is that of a hash of "class/name", fixed but mixed,
since tasks are ranges of it: in the order of the names a task would hold one class. `label` is the
place of the class in `classes`, by default the sorted names of the sub-folders.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from .file_reader import FileReader, names_of
from .files import DataFile
from .reader import Columns


def images_reader(
    files: Sequence[DataFile],
    size: str | Sequence[int] | None = None,
    mode: str = "RGB",
    classes: str | Sequence[str] | None = None,
) -> FileReader:
    """Read columns image [N, H, W, 3] uint8 (`mode=L`: [N, H, W], grey), label and path.

    `size=HxW` resizes; without it the first picture's size is that of all.
    """
    if mode not in ("RGB", "L"):
        raise UsageError(f"The parameter mode must be RGB or L, not {mode!r}.")
    shape = _size(size)
    opener = partial(_Images, tuple(files), tuple(names_of(classes)), shape, mode)
    return FileReader({_common_name(files): opener})


def text_reader(
    files: Sequence[DataFile],
    classes: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
) -> FileReader:
    """Read columns text (object array of str), label and path."""
    opener = partial(_Texts, tuple(files), tuple(names_of(classes)), encoding)
    return FileReader({_common_name(files): opener})


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

    def __init__(self, files: Sequence[DataFile], classes: tuple[str, ...]) -> None:
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

    def _chosen(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return label and path of the records."""
        files = [self._files[number] for number in numbers]
        labels = [self._classes.index(file.folder()) for file in files]
        return np.array(labels, dtype=np.int64), np.array([f.name for f in files], dtype=np.str_)

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
        super().__init__(files, classes)
        self._encoding = encoding

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        labels, paths = self._chosen(numbers)
        texts = np.empty(len(numbers), dtype=object)
        for place, number in enumerate(numbers.tolist()):
            try:
                texts[place] = self._bytes(number).decode(self._encoding)
            except UnicodeDecodeError as error:
                raise self._broken(number, error) from error
        return Columns({"text": texts, "label": labels, "path": paths})


class _Images(_Folder):
    """Pictures in folders, one for each class.

    `size`: resize to it; else the first picture that can be decoded tells the size of all.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        classes: tuple[str, ...],
        size: tuple[int, int] | None,
        mode: str,
    ) -> None:
        super().__init__(files, classes)
        self._mode = mode
        self._resize = size
        self._size = size or self._first_size()

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        labels, paths = self._chosen(numbers)
        channels = (3,) if self._mode == "RGB" else ()
        images = np.empty((len(numbers), *self._size, *channels), dtype=np.uint8)
        for place, number in enumerate(numbers.tolist()):
            images[place] = self._pixels(number)
        return Columns({"image": images, "label": labels, "path": paths})

    def _pixels(self, number: int) -> NDArray[np.uint8]:
        pixels = self._decode(number)
        if pixels.shape[:2] != self._size:
            there, wanted = (f"{h} x {w}" for h, w in (pixels.shape[:2], self._size))
            reason = f"it has {there} pixels, not {wanted}: resize with size=HxW"
            raise self._broken(number, reason)
        return pixels

    def _decode(self, number: int) -> NDArray[np.uint8]:
        image = _pillow()
        data = self._bytes(number)
        try:
            with image.open(io.BytesIO(data)) as picture:
                picture = picture.convert(self._mode)
                if self._resize is not None:
                    picture = picture.resize(self._resize[::-1])
                return np.asarray(picture, dtype=np.uint8)
        # Pillow's decoders raise these, and SyntaxError for a broken PNG chunk.
        except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as error:
            raise self._broken(number, f"it cannot be decoded: {error}") from error

    def _first_size(self) -> tuple[int, int]:
        for number in range(self.records):
            try:
                height, width = self._decode(number).shape[:2]
            except RecordError:
                continue
            return height, width
        raise DataError(f"No picture in {self._source} can be decoded.")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("Pictures are read with Pillow: run `pip install pillow`.") from error
    return Image


def _mixed(file: DataFile) -> tuple[bytes, str]:
    key = f"{file.folder()}/{file.path.rpartition('/')[2]}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest(), file.path
