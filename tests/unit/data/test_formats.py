"""The peculiarities of each format, beyond the suite of test_readers.py."""

from __future__ import annotations

import builtins
import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edl.common.errors import DataError, RecordError, UsageError
from edl.data import kernels
from edl.data.example import parse_example
from edl.data.open import open_reader
from edl.data.reader import Columns, Records

pytestmark = pytest.mark.fast


def read(path: Path, **params: Any) -> Records:
    reader = open_reader(str(path), **params)
    (source,) = reader.sources()
    return reader.read(source.name, 0, source.records)


def without(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import module` fail."""
    real = builtins.__import__

    def fake(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fake)


# -- TFRecord


def frame(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    sums = [struct.pack("<I", kernels.masked_crc32c(part)) for part in (head, data)]
    return head + sums[0] + data + sums[1]


def test_crc32c_is_that_of_rfc_3720() -> None:
    # RFC 3720, B.4: 32 bytes of zeroes, and of ones; "123456789" is the usual check value.
    vectors = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, b"123456789": 0xE3069283}

    for data, crc in vectors.items():
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert masked == kernels.masked_crc32c(data)


def test_corrupt_length_is_the_last_record_that_can_be_found(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    good = frame(b"one")
    path.write_bytes(good + b"\7" + frame(b"two")[1:] + frame(b"three"))
    reader = open_reader(str(path), raw=True)

    (source,) = reader.sources()

    assert 2 == source.records
    with pytest.raises(RecordError, match="record 1: its length is corrupt"):
        reader.read(source.name, 0, 2)
    assert [b"one"] == reader.read(source.name, 0, 2, skip=[1])


@pytest.mark.parametrize("cut", [1, 5, 8, 17])
def test_cut_off_record_is_counted_and_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes((frame(b"one") + frame(b"two"))[:-cut])
    reader = open_reader(str(path), raw=True)

    (source,) = reader.sources()

    assert 2 == source.records
    with pytest.raises(RecordError, match="record 1: the file is cut off"):
        reader.read(source.name, 0, 2)


def test_record_that_is_no_example_says_that_raw_gives_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(frame(b"plain text"))

    with pytest.raises(RecordError, match="raw=true"):
        read(path)


def example_class(packed: bool) -> Any:
    """tf.train.Example as its .proto declares it, made by protobuf itself."""
    file = descriptor_pb2.FileDescriptorProto(name=f"example_{packed}.proto", package="tf")
    field_type = descriptor_pb2.FieldDescriptorProto
    lists = (
        ("BytesList", field_type.TYPE_BYTES),
        ("FloatList", field_type.TYPE_FLOAT),
        ("Int64List", field_type.TYPE_INT64),
    )
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(lists, 1):
        value = file.message_type.add(name=name).field.add(name="value", number=1, label=3)
        value.type = kind
        value.options.packed = packed and kind != field_type.TYPE_BYTES
        feature.field.add(
            name=name, number=number, label=1, type=11, type_name=f".tf.{name}", oneof_index=0
        )
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".tf.Feature")
    features.field.add(
        name="feature", number=1, label=3, type=11, type_name=".tf.Features.FeatureEntry"
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".tf.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


@pytest.mark.parametrize("packed", [True, False])
def test_example_that_protobuf_writes_is_parsed(packed: bool) -> None:
    example = example_class(packed)()
    integers = [0, 1, -1, 300, 2**63 - 1, -(2**63)]
    example.features.feature["ganz"].Int64List.value.extend(integers)
    example.features.feature["f"].FloatList.value.extend([1.5, -2.0])
    example.features.feature["b"].BytesList.value.extend([b"", b"x" * 300])
    example.features.feature["none"].Int64List.SetInParent()

    parsed = parse_example(example.SerializeToString())

    expected = {"ganz": integers, "f": [1.5, -2.0], "b": [b"", b"x" * 300], "none": []}
    assert expected == {name: list(values) for name, values in parsed.items()}


@given(st.binary(max_size=60))
def test_any_other_bytes_are_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_example(data), dict)


# -- Parquet


def test_lists_of_one_length_are_a_matrix(tmp_path: Path) -> None:
    kind = pyarrow.list_(pyarrow.float32(), 2)
    table = pyarrow.table({"v": pyarrow.array([[1, 2], [3, 4], [5, 6]], kind)})
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet", row_group_size=2)

    records = read(tmp_path / "data.parquet")

    assert isinstance(records, Columns)
    assert [[1, 2], [3, 4], [5, 6]] == records["v"].tolist()


def test_only_the_row_groups_of_the_range_are_decoded(tmp_path: Path) -> None:
    table = pyarrow.table({"a": list(range(1000))})
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet", row_group_size=100)
    reader = open_reader(str(tmp_path / "data.parquet"))
    name = reader.sources()[0].name

    reader.read(name, 250, 350)

    groups = reader._opened[name]._decoded._groups  # type: ignore[attr-defined]
    assert ["2", "3"] == [kind.partition("-")[0] for _, kind in groups]


def test_file_that_is_no_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_text("a,b\n1,2\n")

    with pytest.raises(DataError, match="no Parquet file"):
        read(tmp_path / "data.parquet")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    without("pyarrow", monkeypatch)

    with pytest.raises(DataError, match=r"pip install '.\[parquet\]'"):
        open_reader(str(tmp_path / "data.parquet"))


# -- numpy


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a file was unpickled",)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickled_objects_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    array = np.array([Trap(), None], dtype=object)
    if suffix == "npy":
        np.save(path, array)
    else:
        np.savez(path, a=array)

    with pytest.raises(DataError, match="pickled Python objects, which are never loaded"):
        read(path)


@pytest.mark.parametrize("array", [np.float64(3), np.asfortranarray(np.ones((3, 2)))])
def test_array_without_rows_of_records_is_refused(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "data.npy", array)

    with pytest.raises(DataError, match="first dimension is the records"):
        read(tmp_path / "data.npy")


def test_members_of_unequal_length_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.ones(3), b=np.ones(4))

    with pytest.raises(DataError, match=r"\{'a': 3, 'b': 4\}"):
        read(tmp_path / "data.npz")
    assert 4 == len(read(tmp_path / "data.npz", columns="b"))


def test_torn_archive_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.arange(9))
    data = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(data[:-30])

    with pytest.raises(DataError, match=r"no \.npz archive, or a torn one"):
        read(tmp_path / "data.npz")


def test_corrupt_compressed_member_is_an_error(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", a=np.random.RandomState(0).rand(500))
    data = bytearray((tmp_path / "data.npz").read_bytes())
    data[2000:2040] = bytes(40)
    (tmp_path / "data.npz").write_bytes(data)

    with pytest.raises(DataError, match="member 'a' .* is corrupt"):
        read(tmp_path / "data.npz")


# -- IDX


def test_images_without_labels_have_no_label_column(tmp_path: Path) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 2) + b"abcd")

    records = read(path)

    assert isinstance(records, Columns)
    assert ("image",) == records.names


def test_labels_of_another_number_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 2) + b"abcd")
    (tmp_path / "x-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 3) + b"abc")

    with pytest.raises(DataError, match="has 2 images, .* 3 labels"):
        read(tmp_path)


# -- Folders


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for i in range(40):
        path = tmp_path / ("cat" if i < 20 else "dog") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 6, 3), i, dtype=np.uint8)).save(path)
    return tmp_path


def test_classes_are_mixed_and_labels_fit_their_pictures(pictures: Path) -> None:
    records = read(pictures)

    assert isinstance(records, Columns)
    assert (40, 4, 6, 3) == records["image"].shape
    assert (records["image"][:, 0, 0, 0] // 20).tolist() == records["label"].tolist()
    assert {0, 1} == set(records["label"][:10].tolist())


def test_pictures_are_resized_and_grey_on_demand(pictures: Path) -> None:
    records = read(pictures, size="8x5", mode="L")

    assert isinstance(records, Columns)
    assert (40, 8, 5) == records["image"].shape


def test_picture_of_another_size_is_a_broken_record(pictures: Path) -> None:
    Image.fromarray(np.zeros((5, 6, 3), dtype=np.uint8)).save(pictures / "cat" / "3.png")

    with pytest.raises(RecordError, match=r"5 x 6 pixels, not 4 x 6: resize with size=HxW"):
        read(pictures)


def test_given_classes_number_the_labels_and_refuse_others(pictures: Path) -> None:
    records = read(pictures, classes="dog|bird|cat")

    assert isinstance(records, Columns)
    assert {0, 2} == set(records["label"].tolist())
    with pytest.raises(DataError, match="'dog' is none of the classes cat"):
        read(pictures, classes="cat")


@pytest.mark.parametrize("params", [{"size": "big"}, {"size": "0x3"}, {"mode": "CMYK"}])
def test_impossible_picture_parameter_is_a_usage_error(pictures: Path, params: Any) -> None:
    with pytest.raises(UsageError):
        read(pictures, **params)


def test_without_pillow_the_error_says_what_to_install(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("PIL", monkeypatch)

    with pytest.raises(DataError, match="pip install pillow"):
        read(pictures)
