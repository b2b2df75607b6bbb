"""The making of train and validation files from source files: one function per data set.

Each takes {path in the carrier: file} and the folder to write to, and returns {"rows": {part: n},
"columns": [...]}. Splits are numpy's frozen RandomState (NEP 19), so they are the same everywhere.
Strings that serve as ids become int64 by `string_ids`, a pure function of column and value.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import lzma
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from .open import open_reader
from .paths import expand
from .reader import Columns

Sources = Mapping[str, Path]
Arrays = Mapping[str, NDArray[Any]]

_SPLIT_SEED = 13
_VALIDATION_SHARE = 0.2
_FLIGHT_COLUMNS = (
    "month", "day", "sched_dep_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "distance",
)  # fmt: skip
_LATE_MIN = 15  # minutes of delay at arrival; more is "late"


def string_ids(column: str, values: Sequence[str] | NDArray[Any]) -> NDArray[np.int64]:
    """Return int64 ids in [0, 2**63).

    They are the first 8 bytes of blake2b("column=value"), less the sign bit.
    """
    unique, inverse = np.unique(np.asarray(values, dtype=np.str_), return_inverse=True)
    ids = [
        int.from_bytes(hashlib.blake2b(f"{column}={value}".encode(), digest_size=8).digest(), "big")
        & (2**63 - 1)
        for value in unique
    ]
    return np.array(ids, dtype=np.int64)[inverse]


def build_nycflights13(sources: Sources, out: Path) -> dict[str, Any]:
    """Build flights with a known arrival; `label`: more than 15 minutes late.

    carrier, flight, tailnum, origin, dest and route (carrier + flight + origin + dest) are
    `string_ids`; month, day, weekday (0 is Monday), day_of_year, hour, sched_dep_minute and
    sched_arr_minute (of the day) int64; distance (miles) float32. What is known only after the
    departure is left out.
    """
    (source,) = sources.values()
    with _unpacked(source) as packed, (out / "flights.csv").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    flights = _read_all(out / "flights.csv", _FLIGHT_COLUMNS, missing="arr_delay:nan")
    (out / "flights.csv").unlink()
    known = ~np.isnan(flights["arr_delay"])
    raw = {name: flights[name][known] for name in flights.names}
    days = [date(2013, int(m), int(d)) for m, d in zip(raw["month"], raw["day"], strict=True)]
    number = raw["flight"].astype(np.str_)
    route = np.char.add(raw["carrier"], number)
    for end in ("origin", "dest"):
        route = np.char.add(np.char.add(route, "-"), raw[end])
    columns = {
        "label": (raw["arr_delay"] > _LATE_MIN).astype(np.int64),
        "month": raw["month"],
        "day": raw["day"],
        "weekday": np.array([day.weekday() for day in days], dtype=np.int64),
        "day_of_year": np.array([day.timetuple().tm_yday for day in days], dtype=np.int64),
        "hour": raw["sched_dep_time"] // 100,
        "sched_dep_minute": _minute_of_day(raw["sched_dep_time"]),
        "sched_arr_minute": _minute_of_day(raw["sched_arr_time"]),
        "distance": raw["distance"].astype(np.float32),
        "carrier": string_ids("carrier", raw["carrier"]),
        "flight": string_ids("flight", number),
        "tailnum": string_ids("tailnum", raw["tailnum"]),
        "origin": string_ids("origin", raw["origin"]),
        "dest": string_ids("dest", raw["dest"]),
        "route": string_ids("route", route),
    }
    return _save_split(columns, out)


def build_census(sources: Sources, out: Path) -> dict[str, Any]:
    """Build CSV with names in snake case, `label` (1: above 50K) last; "?" stays as it is."""
    (source,) = sources.values()
    with gzip.open(source, "rt", encoding="utf-8", newline="") as stream:
        rows = [[field.strip() for field in row] for row in csv.reader(stream)]
    header = [name.replace("-", "_") for name in rows[0]]
    header[-1] = "label"
    records = [[*row[:-1], str(int(row[-1] == ">50K"))] for row in rows[1:]]
    return _save_csv_split(header, records, out)


def build_iris(sources: Sources, out: Path) -> dict[str, Any]:
    """Build CSV: sepal_length, sepal_width, petal_length, petal_width (cm), label (0, 1, 2)."""
    (source,) = sources.values()
    with source.open(encoding="utf-8", newline="") as stream:
        header, *records = csv.reader(stream)
    return _save_csv_split(header, records, out)


def build_digits(sources: Sources, out: Path) -> dict[str, Any]:
    """Build image [N, 8, 8] uint8 in 0..16, label."""
    (source,) = sources.values()
    with gzip.open(source, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    image = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)
    return _save_split({"image": image, "label": table[:, -1]}, out)


def build_fashion_mnist(sources: Sources, out: Path) -> dict[str, Any]:
    """Build image [N, 28, 28] uint8, label; the authors' 60,000 and 10,000."""
    rows = {}
    for part, stem in (("train", "train"), ("validation", "t10k")):
        (file,) = expand(str(sources[f"{stem}-images-idx3-ubyte.gz"]))
        reader = open_reader(file.path, format="idx")
        (whole,) = reader.sources()
        records = cast(Columns, reader.read(whole.name, 0, whole.records))
        np.savez(out / f"{part}.npz", **cast(Any, dict(records)))
        rows[part] = whole.records
    return {"rows": rows, "columns": ["image", "label"]}


def build_ml_100k(sources: Sources, out: Path) -> dict[str, Any]:
    """Build ratings joined with users and films; `label`: rated 4 or 5.

    user_id, item_id, age, release_year (0: unknown), timestamp and rating int64; gender,
    occupation, zip_code and genre (the first one) `string_ids`.
    """
    tables = {path.suffix[1:]: read_table(path) for path in sources.values()}
    users = {row["user_id"]: row for row in tables["user"]}
    items = {row["item_id"]: row for row in tables["item"]}
    ratings = tables["inter"]
    user = [users[row["user_id"]] for row in ratings]
    item = [items[row["item_id"]] for row in ratings]
    rating = whole([row["rating"] for row in ratings])
    columns = {
        "label": (rating >= 4).astype(np.int64),
        "rating": rating,
        "timestamp": whole([row["timestamp"] for row in ratings]),
        "user_id": whole([row["user_id"] for row in ratings]),
        "item_id": whole([row["item_id"] for row in ratings]),
        "age": whole([row["age"] for row in user]),
        "release_year": whole([row["release_year"] for row in item]),
        "gender": string_ids("gender", [row["gender"] for row in user]),
        "occupation": string_ids("occupation", [row["occupation"] for row in user]),
        "zip_code": string_ids("zip_code", [row["zip_code"] for row in user]),
        "genre": string_ids("genre", [row["class"].partition(" ")[0] for row in item]),
    }
    return _save_split(columns, out)


def build_bbc_news(sources: Sources, out: Path) -> dict[str, Any]:
    """Build train/ and validation/ with a folder of .txt (UTF-8) per subject."""
    (source,) = sources.values()
    texts = sorted(source.glob("*/*.txt"))
    rows = {}
    for part, numbers in split(len(texts)).items():
        for number in numbers:
            to = out / part / texts[number].parent.name / texts[number].name
            to.parent.mkdir(parents=True, exist_ok=True)
            # A few files are Latin-1 (pound signs).
            to.write_text(_decode(texts[number].read_bytes()), encoding="utf-8")
        rows[part] = len(numbers)
    return {"rows": rows, "columns": ["text", "label", "path"]}


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _unpacked(source: Path) -> IO[bytes]:
    """Open the one file inside a .zip or .xz."""
    if source.suffix == ".xz":
        return lzma.open(source)
    archive = zipfile.ZipFile(source)
    return archive.open(archive.namelist()[0])


def _read_all(path: Path, columns: Sequence[str], missing: str) -> Columns:
    reader = open_reader(str(path), columns=columns, missing=missing)
    (whole,) = reader.sources()
    return cast(Columns, reader.read(whole.name, 0, whole.records))


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a tab-separated file whose header reads name:type."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    header = [name.partition(":")[0] for name in rows[0]]
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def whole(values: Sequence[str]) -> NDArray[np.int64]:
    return np.array([int(float(v)) if v.replace(".", "").isdigit() else 0 for v in values])


def _minute_of_day(clock: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return minutes of the day: 1836 -> 18 * 60 + 36."""
    minutes: NDArray[np.int64] = clock // 100 * 60 + clock % 100
    return minutes


def split(rows: int) -> dict[str, NDArray[np.int64]]:
    """Split rows into those for training and for validation.

    They are in random order (sorted files: no batch of one class).
    """
    order = np.random.RandomState(_SPLIT_SEED).permutation(rows)
    split_at = rows - round(rows * _VALIDATION_SHARE)
    return {"train": order[:split_at], "validation": order[split_at:]}


def _save_split(columns: Arrays, out: Path) -> dict[str, Any]:
    parts = split(len(columns["label"]))
    for part, numbers in parts.items():
        chosen = {name: array[numbers] for name, array in columns.items()}
        np.savez(out / f"{part}.npz", **cast(Any, chosen))
    return {"rows": {p: len(n) for p, n in parts.items()}, "columns": list(columns)}


def _save_csv_split(
    header: Sequence[str], records: Sequence[Sequence[str]], out: Path
) -> dict[str, Any]:
    parts = split(len(records))
    for part, numbers in parts.items():
        with (out / f"{part}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(records[number] for number in numbers)
    return {"rows": {p: len(n) for p, n in parts.items()}, "columns": list(header)}
