"""Paths and formats: what open_reader makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.common.errors import DataError, UsageError
from edl.data.open import open_reader

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.csv", "below/c.csv"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\n1\n")
    return tmp_path / "data"


def opened(path: str | Path) -> list[str]:
    return [Path(source.name).name for source in open_reader(str(path)).sources()]


def test_folder_is_all_files_below_it_in_order_of_their_names(folder: Path) -> None:
    assert ["a.csv", "b.csv", "c.csv"] == opened(folder)


def test_glob_is_the_files_that_match(folder: Path) -> None:
    assert ["a.csv", "b.csv"] == opened(folder / "*.csv")


def test_comma_list_is_its_parts_in_their_order(folder: Path) -> None:
    assert ["b.csv", "a.csv"] == opened(f"{folder}/b.csv, {folder}/a.csv")


def test_file_url_is_the_file(folder: Path) -> None:
    assert ["a.csv"] == opened(f"file://{folder}/a.csv")


def test_hidden_files_and_notes_are_no_data(folder: Path) -> None:
    for name in (".hidden.csv", "_SUCCESS", "README.txt", "LICENSE"):
        (folder / name).write_text("x\n1\n")

    assert ["a.csv", "b.csv", "c.csv"] == opened(folder)


def test_file_named_twice_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        opened(f"{folder},{folder}/a.csv")


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data file"):
        opened(tmp_path)


def test_glob_without_match_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No file matches"):
        opened(tmp_path / "*.csv")


def test_empty_path_is_an_error() -> None:
    with pytest.raises(UsageError, match="path of the data is empty"):
        open_reader("")


def test_several_formats_in_a_folder_are_an_error_that_names_them(folder: Path) -> None:
    (folder / "d.tfrecord").write_bytes(b"")

    with pytest.raises(UsageError, match=r"csv, tfrecord.*format="):
        opened(folder)


def test_unknown_suffix_asks_for_a_format(tmp_path: Path) -> None:
    (tmp_path / "data.dat").write_text("a\n1\n")

    with pytest.raises(UsageError, match=r"suffix tells no format.*format="):
        opened(tmp_path / "data.dat")


def test_given_format_wins_over_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "data.dat").write_text("a\n1\n")

    (source,) = open_reader(str(tmp_path / "data.dat"), format="csv").sources()

    assert 1 == source.records


def test_unknown_format_is_an_error_that_names_those_there_are(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no format 'xml'; there are csv, tsv"):
        open_reader(str(folder), format="xml")


def test_unknown_parameter_is_an_error_that_names_those_there_are(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no parameter 'seperator'; it has format, sep"):
        open_reader(str(folder), seperator=";")


def test_unknown_protocol_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(UsageError, match="Install the fsspec package"):
        open_reader("nosuchprotocol://bucket/data.csv")


def test_source_of_another_data_set_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="no source 'x'"):
        open_reader(str(folder)).read("x", 0, 1)
