"""One picture: what its header tells, and its pixels as they are to be.

A picture of 8 bits a channel is decoded by Pillow. One of 16 keeps its 16 bits: of colours Pillow
gives the upper 8 only, so that PNGs of 16 bits in several channels are decoded here. Colours become
`mode`: a palette its colours, grey R = G = B, CMYK as Pillow converts it, without profiles, and
RGB becomes grey by ITU-R 601. What is transparent keeps its colour: an alpha channel is left out.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError

MODES = ("RGB", "L")
_ORIENTATION = 0x0112  # the tag of EXIF
_BITS_PER_SAMPLE = 258  # the tag of TIFF
_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by the colour type of PNG
_LUMA = np.array([19595, 38470, 7471])  # ITU-R 601 in 65,536ths, as Pillow has it
_HEAD_NBYTES = 33


class Header(NamedTuple):
    """What the head of a picture's file tells. `orientation`: that of EXIF, 1 for upright."""

    bits: int
    height: int
    width: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the picture when it has been turned."""
        if self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("Pictures are read with Pillow: run `pip install pillow`.") from error
    return Image


def broken() -> tuple[type[Exception], ...]:
    """Return what is raised for a picture that cannot be decoded."""
    # Pillow's decoders raise these, and SyntaxError for a broken PNG chunk.
    bomb: type[Exception] = pillow().DecompressionBombError
    return OSError, ValueError, SyntaxError, EOFError, zlib.error, bomb


def header(stream: BinaryIO, exif: bool) -> Header:
    """Return what the head of a picture's file tells; no pixel is decoded. Raises `broken()`."""
    head = stream.read(_HEAD_NBYTES)
    stream.seek(0)
    with pillow().open(stream) as picture:
        orientation = 1
        if exif and (data := picture.info.get("exif") or _exif_of_png(stream, head)):
            found = pillow().Exif()
            found.load(data)
            orientation = found.get(_ORIENTATION, 1)
        elif exif and picture.format != "PNG":  # which would decode it
            orientation = picture.getexif().get(_ORIENTATION, 1)
        return Header(_bits(picture, head), picture.height, picture.width, _known(orientation))


def pixels(
    data: bytes, mode: str, size: tuple[int, int] | None = None, exif: bool = True
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Return [H, W, 3] (`L`: [H, W]), uint8 or of 16 bits uint16; `size`: resized to (H, W).

    Raises `broken()`.
    """
    with pillow().open(io.BytesIO(data)) as picture:
        found: NDArray[Any]
        if _bits(picture, data[:_HEAD_NBYTES]) == 16:
            found = _converted(_deep(picture, data), mode)
        else:
            picture.load()
            picture.info.pop("transparency", None)  # else Pillow warns of what is left out
            found = np.asarray(picture.convert(mode))
        if exif:
            found = _turned(found, _known(picture.getexif().get(_ORIENTATION, 1)))
    return found if size is None or size == found.shape[:2] else _resized(found, size)


def _known(orientation: Any) -> int:
    return orientation if orientation in range(1, 9) else 1


def _bits(picture: Any, head: bytes) -> int:
    """Return 8 or 16. Raises ValueError for what has other pixels."""
    if picture.mode.startswith("I;16") or (picture.format == "PNG" and _png(head).depth == 16):
        return 16
    samples = getattr(picture, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
    if picture.mode in ("I", "F") or max(samples) > 8:
        raise ValueError(
            f"its pixels are of the mode {picture.mode} and {max(samples)} bits: write it with 8 "
            "bits a channel, or as a PNG of 16"
        )
    return 8


class _Png(NamedTuple):
    width: int
    height: int
    depth: int
    colours: int
    interlaced: int


def _png(head: bytes) -> _Png:
    width, height, depth, colours, _, _, interlaced = struct.unpack_from(">IIBBBBB", head, 16)
    return _Png(width, height, depth, colours, interlaced)


def _chunks(stream: BinaryIO) -> Any:
    """Yield (kind, its length) of the chunks of a PNG; whoever wants one reads it at once."""
    at = len(_PNG)
    while True:
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8:
            return
        nbytes, kind = struct.unpack(">I4s", head)
        yield kind, nbytes
        at += nbytes + 12


def _exif_of_png(stream: BinaryIO, head: bytes) -> bytes:
    """Return the EXIF of a PNG, which may stand behind its pixels; nothing of other files."""
    if head.startswith(_PNG):
        for kind, nbytes in _chunks(stream):
            if kind == b"eXIf":
                return b"Exif\0\0" + stream.read(nbytes)
    return b""


def _deep(picture: Any, data: bytes) -> NDArray[np.uint16]:
    """Return the channels of a picture of 16 bits: [H, W, channels]."""
    if picture.format != "PNG" or _png(data).colours == 0:
        return np.asarray(picture).astype(np.uint16)[:, :, None]
    width, height, _, colours, interlaced = _png(data)
    if interlaced:
        raise ValueError("it is an interlaced PNG of 16 bits in several channels: write it without")
    packed = []
    stream = io.BytesIO(data)
    for kind, nbytes in _chunks(stream):
        if kind == b"IDAT":
            packed.append(body := stream.read(nbytes))
            if zlib.crc32(kind + body) != int.from_bytes(stream.read(4), "big"):
                raise ValueError("the checksum of its pixels is wrong")
    step = 2 * _CHANNELS[colours]
    row = 1 + step * width
    rows = np.frombuffer(bytearray(zlib.decompress(b"".join(packed))), np.uint8)
    if len(rows) != height * row:
        raise ValueError(f"it has {len(rows)} bytes of pixels, not {height * row}")
    if not _unfilter()(rows, row, step):
        raise ValueError("it has a filter that PNG has not")
    found = np.ascontiguousarray(rows.reshape(height, row)[:, 1:])
    return found.view(">u2").astype(np.uint16).reshape(height, width, -1)


@functools.cache
def _unfilter() -> Callable[[NDArray[np.uint8], int, int], bool]:
    from ..kernels.compile import BYTES_1D, INTEGER, compiled

    return compiled(_unfilter_rows, BYTES_1D, INTEGER, INTEGER)


def _unfilter_rows(data, row, step):  # type: ignore[no-untyped-def]
    """Undo the filters of PNG: each row begins with its own; a pixel has `step` bytes."""
    for start in range(0, len(data), row):
        kind = data[start]
        if kind > 4:
            return False
        for at in range(start + 1, start + row):
            left = int(data[at - step]) if at - step > start else 0
            above = int(data[at - row]) if start else 0
            corner = int(data[at - row - step]) if start and at - step > start else 0
            if kind == 1:
                guess = left
            elif kind == 2:
                guess = above
            elif kind == 3:
                guess = (left + above) // 2
            elif kind == 4:
                base = left + above - corner
                far = abs(base - left), abs(base - above), abs(base - corner)
                if far[0] <= far[1] and far[0] <= far[2]:
                    guess = left
                elif far[1] <= far[2]:
                    guess = above
                else:
                    guess = corner
            else:
                guess = 0
            data[at] = (int(data[at]) + guess) & 255
    return True


def _converted(channels: NDArray[np.uint16], mode: str) -> NDArray[np.uint16]:
    colours = channels if channels.shape[2] < 3 else channels[:, :, :3]
    if colours.shape[2] < 3:
        grey = colours[:, :, 0]
        return grey if mode == "L" else np.repeat(grey[:, :, None], 3, axis=2)
    if mode == "RGB":
        return colours
    grey = (colours.astype(np.int64) @ _LUMA + 0x8000) >> 16
    return np.asarray(grey, np.uint16)


def _turned(found: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return pixels as EXIF says that they are to be seen."""
    if orientation in (5, 6, 7, 8):
        found = found.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        found = found[::-1]
    if orientation in (2, 3, 6, 7):
        found = found[:, ::-1]
    return found


def _resized(found: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return pixels of another size, by Pillow's bicubic filter."""
    image, (height, width) = pillow(), size
    if found.dtype == np.uint8:
        return np.asarray(image.fromarray(np.ascontiguousarray(found)).resize((width, height)))
    channels = found.reshape(*found.shape[:2], -1).astype(np.float32)
    wide = [
        np.asarray(
            image.fromarray(np.ascontiguousarray(channels[:, :, n])).resize(
                (width, height), image.Resampling.BICUBIC
            )
        )
        for n in range(channels.shape[2])
    ]
    whole: NDArray[np.uint16] = np.clip(np.rint(np.stack(wide, axis=-1)), 0, 65535).astype("u2")
    return whole.reshape(height, width, *found.shape[2:])
