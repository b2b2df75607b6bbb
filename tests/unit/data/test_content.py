"""The digests by which other data is known, against the bytes themselves."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.stores import clear_memory

from edl.data import content
from edl.data.content import WHOLE_NBYTES, contents
from edl.data.open import open_reader

pytestmark = pytest.mark.fast


def of(path, format=None, **params):
    more = {"format": format} if format else {}
    names = [source.name for source in open_reader(str(path), **more, **params).sources()]
    return contents(str(path), format, names)


def digests(path, format=None):
    return [digest for _, digest, _ in of(path, format)]


@given(
    text=st.binary(min_size=1, max_size=3000),
    other=st.binary(min_size=1, max_size=3000),
    at=st.integers(0, 2999),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_small_files_are_told_apart_by_any_byte(tmp_path, text, other, at):
    path = tmp_path / "a.tfrecord"

    def digest(data):
        path.write_bytes(data)
        return contents(str(path), None, [str(path)])[0][1]

    at %= len(text)
    changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]

    assert digest(text) != digest(changed)
    assert (digest(text) == digest(other)) == (text == other)


def test_the_same_rows_in_another_order_are_other_data(tmp_path):
    rows = [f"{n},{n % 3}\n" for n in range(200_000)]
    path = tmp_path / "a.csv"
    path.write_text("".join(["x,y\n", *rows]))
    before = of(path)
    path.write_text("".join(["x,y\n", *rows[::-1]]))
    after = of(path)

    assert path.stat().st_size > WHOLE_NBYTES
    assert before[0][1] != after[0][1]
    assert before[0][2] != after[0][2]  # told of where what was looked at is the same


def test_a_copy_holds_the_same(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    table = pyarrow.table({"x": np.arange(300_000), "y": np.random.default_rng(0).random(300_000)})
    for number in range(3):
        pyarrow.parquet.write_table(table, tmp_path / f"one/{number}.parquet")
    shutil.copytree(tmp_path / "one", tmp_path / "two", dirs_exist_ok=True)

    found = digests(tmp_path / "one")

    assert found == digests(tmp_path / "two")
    assert len(found) == 3


def test_what_lies_at_a_store_is_read_there():
    import fsspec

    clear_memory()
    store = fsspec.filesystem("memory")
    for number in range(3):
        store.pipe_file(f"/d/{number}.csv", b"x\n" + b"%d\n" % number * (number * 400_000 + 5))
    before = of("memory://d")
    store.pipe_file("/d/2.csv", store.cat_file("/d/2.csv")[:-2] + b"3\n")

    assert [a == b for a, b in zip(before, of("memory://d"), strict=True)] == [True, True, False]
    clear_memory()


def test_a_folder_of_texts_is_told_by_names_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "_OF_A_FOLDER", 4)
    for label in ("good", "bad"):
        (tmp_path / label).mkdir()
        for number in range(5):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}")
    found = [digests(tmp_path)]
    (tmp_path / "bad/0.txt").write_text("other")  # the first one of all is looked into
    found.append(digests(tmp_path))
    (tmp_path / "good/4.txt").rename(tmp_path / "good/9.txt")
    found.append(digests(tmp_path))

    assert all(len(each) == 1 for each in found)
    assert len({each[0] for each in found}) == 3


def test_labels_beside_pictures_belong_to_them(tmp_path):
    def idx(path, data):
        header = bytes([0, 0, 8, data.ndim]) + np.array(data.shape, ">i4").tobytes()
        path.write_bytes(header + data.tobytes())

    idx(tmp_path / "t-images-idx3-ubyte", np.zeros((3, 2, 2), np.uint8))
    idx(tmp_path / "t-labels-idx1-ubyte", np.array([0, 1, 2], np.uint8))
    before = digests(tmp_path)
    idx(tmp_path / "t-labels-idx1-ubyte", np.array([2, 1, 0], np.uint8))

    assert before != digests(tmp_path)
