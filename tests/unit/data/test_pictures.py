"""Pictures: their bits, their way up, and their colours, as docs/data.md says."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tools.turns import examples

from edl.common.errors import DataError, RecordError
from edl.data import pictures
from edl.data.open import open_reader
from edl.data.reader import schema_of

GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6  # the colour types of PNG


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(rows: np.ndarray[Any, Any], step: int, kinds: list[int]) -> bytes:
    """Apply PNG's filters, by its specification, to rows of bytes."""
    out, before = b"", np.zeros(rows.shape[1], np.int64)
    for row, kind in zip(rows.astype(np.int64), kinds, strict=True):
        left = np.concatenate([np.zeros(step, np.int64), row[:-step]])
        corner = np.concatenate([np.zeros(step, np.int64), before[:-step]])
        base = left + before - corner
        far = np.abs(base - left), np.abs(base - before), np.abs(base - corner)
        nearest = np.where((far[0] <= far[1]) & (far[0] <= far[2]), left,
                           np.where(far[1] <= far[2], before, corner))  # fmt: skip
        guess = [0 * left, left, before, (left + before) // 2, nearest][kind]
        out += bytes([kind]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        before = row
    return out


def png(pixels: np.ndarray[Any, Any], kinds: list[int] | None = None, exif: int = 1) -> bytes:
    """Return a PNG of 16 bits of [H, W, channels]."""
    height, width, channels = pixels.shape
    colours = {1: GREY, 2: GREY_ALPHA, 3: COLOUR, 4: COLOUR_ALPHA}[channels]
    head = struct.pack(">IIBBBBB", width, height, 16, colours, 0, 0, 0)
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8).reshape(height, -1)
    packed = zlib.compress(filtered(rows, 2 * channels, kinds or [0] * height))
    turned = struct.pack("<2sHIHHHII", b"II", 42, 8, 1, 0x0112, 3, 1, exif) + bytes(4)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", packed[:9]), chunk(b"IDAT", packed[9:])]
    if exif != 1:
        parts.append(chunk(b"eXIf", turned))  # behind the pixels, as it may be
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def save(folder: Path, **files: bytes) -> Path:
    (folder / "class").mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / "class" / f"{name}.png").write_bytes(data)
    return folder


def flipped(data: bytes) -> bytes:
    """Return a PNG whose pixels have a bit that is another one."""
    at = data.index(b"IDAT") + 6
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def encoded(picture: Any, kind: str = "PNG", **rest: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **rest)
    return stream.getvalue()


def images(folder: Path, **params: Any) -> Any:
    reader = open_reader(str(folder), format="images", **params)
    (source,) = reader.sources()
    return reader.read(source.name, 0, source.records)["image"]  # type: ignore[call-overload]


def type_of(folder: Path, **params: Any) -> str:
    return str(schema_of(open_reader(str(folder), **params))["image"].type)


DEEP = np.array([[0, 256], [1000, 65535]], np.uint16)


def test_pictures_of_16_bits_keep_them(tmp_path: Path) -> None:
    save(tmp_path, a=encoded(Image.fromarray(DEEP)))

    grey, colours = images(tmp_path, mode="L"), images(tmp_path)

    assert "picture L of 16 bits 2 x 2" == type_of(tmp_path, mode="L")
    assert np.uint16 == grey.dtype == colours.dtype
    assert DEEP.tolist() == grey[0].tolist()
    assert np.stack([DEEP] * 3, axis=-1).tolist() == colours[0].tolist()


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 99), size=st.tuples(*[st.integers(1, 5)] * 2),
       channels=st.integers(1, 4),
       kinds=st.lists(st.integers(0, 4), min_size=5, max_size=5))  # fmt: skip
def test_each_filter_and_number_of_channels_of_a_png_of_16_bits(
    seed: int, size: tuple[int, int], channels: int, kinds: list[int]
) -> None:
    drawn = np.random.default_rng(seed).integers(0, 65536, (*size, channels), np.uint16)
    data = png(drawn, kinds[: size[0]])

    colours, grey = pictures.pixels(data, "RGB"), pictures.pixels(data, "L")

    alone = drawn[:, :, :1].repeat(3, axis=2) if channels < 3 else drawn[:, :, :3]
    assert alone.tolist() == colours.tolist()
    luma = drawn[:, :, :3].astype(float) @ [0.299, 0.587, 0.114] if channels > 2 else drawn[:, :, 0]
    assert np.abs(grey - luma).max() <= 1
    if channels > 1:  # Pillow gives the upper 8 bits: they are the same picture
        with Image.open(io.BytesIO(data)) as picture:
            eight = np.asarray(picture.convert("RGB"))
        assert (colours >> 8).tolist() == eight.tolist()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("bits", [8, 16])
def test_pictures_are_turned_as_exif_says_unless_they_are_to_be_left(
    tmp_path: Path, orientation: int, bits: int
) -> None:
    lying = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(lying), exif=exif)
    with Image.open(io.BytesIO(data)) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture))
    save(tmp_path, a=data if bits == 8 else png(lying.astype(np.uint16), exif=orientation))

    assert upright.tolist() == images(tmp_path)[0].tolist()
    assert lying.tolist() == images(tmp_path, exif="false")[0].tolist()
    assert f"of {bits} bits {' x '.join(map(str, upright.shape[:2]))}" in type_of(tmp_path)


def test_palette_transparency_and_cmyk_become_colours_as_documented(tmp_path: Path) -> None:
    colour = Image.new("RGBA", (2, 1), (10, 200, 30, 0))
    palette = Image.new("P", (2, 1), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    save(
        tmp_path, alpha=encoded(colour), grey=encoded(Image.new("LA", (2, 1), (77, 0))),
        palette=encoded(palette, transparency=b"\xff\x00"),
        cmyk=encoded(Image.new("CMYK", (2, 1), (255, 0, 0, 0)), "TIFF"),
    )  # fmt: skip

    reader = open_reader(str(tmp_path))
    found: Any = reader.read(reader.sources()[0].name, 0, 4)

    by_name = {
        Path(path).stem: image[0, 0].tolist()
        for path, image in zip(found["path"], found["image"], strict=True)
    }
    assert by_name == {
        "alpha": [10, 200, 30], "grey": [77, 77, 77], "palette": [9, 8, 7], "cmyk": [0, 255, 255],
    }  # fmt: skip


def test_a_picture_of_16_bits_is_resized_with_its_bits(tmp_path: Path) -> None:
    smooth = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    save(tmp_path, a=encoded(Image.fromarray(smooth)))

    found = images(tmp_path, size="16x4", mode="L")[0]

    exact = np.asarray(
        Image.fromarray(smooth.astype(np.float32)).resize((4, 16), Image.Resampling.BICUBIC)
    )
    assert ((16, 4), np.uint16) == (found.shape, found.dtype)
    assert np.abs(found - np.clip(exact, 0, 65535)).max() <= 0.5
    assert {int(each) % 256 for each in found.ravel()} != {0}


def test_mixed_depths_are_refused_and_what_is_not_as_in_training(tmp_path: Path) -> None:
    eight, deep = encoded(Image.new("L", (2, 2))), encoded(Image.fromarray(DEEP))
    for name, files in (
        ("8", {"a": eight}),
        ("16", {"a": deep}),
        ("both", {"a": eight, "b": deep}),
    ):
        (tmp_path / name).mkdir()
        save(tmp_path / name, **files)
    schema = schema_of(open_reader(str(tmp_path / "8"), mode="L"))

    with pytest.raises(DataError, match="has 8 bits a channel and .* 16: write all with one depth"):
        images(tmp_path / "both")
    with pytest.raises(RecordError, match="it has 16 bits a channel, not 8"):
        images(tmp_path / "16", schema=schema)
    with pytest.raises(
        DataError, match="picture L of 8 bits 2 x 2, .* read with mode=RGB and size"
    ):
        images(tmp_path / "8", mode="RGB", size="3x3", schema=schema)
    assert (1, 2, 2) == images(tmp_path / "8", schema=schema).shape


def test_heads_alone_are_read_to_find_the_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, a=png(np.zeros((2, 3, 3), np.uint16), exif=6), b=b"no picture")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    monkeypatch.setattr(pictures, "pixels", None)

    assert "picture RGB of 16 bits 3 x 2" == type_of(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encoded(Image.fromarray(np.zeros((1, 1), np.float32)), "TIFF"), "mode F and 32 bits"),
        (flipped(png(np.ones((2, 2, 3), np.uint16))), "checksum of its pixels is wrong"),
    ],
    ids=["floats", "flipped"],
)
def test_a_picture_that_cannot_be_kept_as_it_is_is_a_broken_record(
    tmp_path: Path, data: bytes, why: str
) -> None:
    save(tmp_path, good=encoded(Image.new("RGB", (2, 2))))
    schema = schema_of(open_reader(str(tmp_path)))
    save(tmp_path, good=data)

    with pytest.raises(RecordError, match=f"cannot be decoded: .*({why})"):
        images(tmp_path, schema=schema)


# -- Texts


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.txt").write_bytes(mark + b"word")
    reader = open_reader(str(tmp_path))

    records: Any = reader.read(reader.sources()[0].name, 0, 1)

    assert ["word"] == records["text"].tolist()
    assert ["text", "int64", "text"] == [str(each.type) for each in schema_of(reader)]


def test_texts_in_utf_16_are_told_and_read_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.txt").write_bytes("wörd".encode("utf-16"))
    plain, said = open_reader(str(tmp_path)), open_reader(str(tmp_path), encoding="utf-16")
    (source,) = plain.sources()

    with pytest.raises(RecordError, match="byte order mark of utf-16: say encoding=utf-16"):
        plain.read(source.name, 0, 1)
    assert ["wörd"] == said.read(source.name, 0, 1)["text"].tolist()  # type: ignore[call-overload]


# -- IDX


def test_idx_has_the_type_of_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 1, 2, 3) + bytes(6))
    (tmp_path / "x-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 1) + b"\1")
    reader = open_reader(str(path))

    assert ["list of 2 x 3 uint8", "int64"] == [str(each.type) for each in schema_of(reader)]
