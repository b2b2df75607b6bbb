"""The cost of a record from each kind of file, beside that of other readers of the same file.

    python -m benchmarks.data [--parts files groups opening remote deepfm] [--rounds 5]

`files`: CSV, Parquet, TFRecord and .npz of 5, 14 and 40 columns (a third whole numbers, a third
floats, a third words of 5,000), read in shuffled tasks as workers do, beside pyarrow, pandas,
polars, protobuf and torch's DataLoader in one thread; who is not installed is left out. `groups`:
Parquet by the size of its row groups, the first epoch and the next. `opening`: a CSV, until its
types are known. `remote`: an object store of 50 ms and 100 MB/s a request. `deepfm`: whole jobs by
`edl train`. The data is made anew, the same each time; all runs alternate, and are in one process
but for the jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before polars is imported

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch
from fsspec.asyn import AsyncFileSystem

from benchmarks import training
from benchmarks.measure import Sample, alternate, cpu_s, ratio, sample, spread, table
from edl.common.order import order
from edl.data import ranges
from edl.data.csv import csv_reader
from edl.data.files import DataFile
from edl.data.kernels import masked_crc32c
from edl.data.open import open_reader
from edl.model_zoo.deepfm import COLUMNS
from edl.worker.batches import spans, split

ROWS = {5: 400_000, 14: 200_000, 40: 100_000}
GROUPS = {"1,048,576": 1 << 20, "65,536": 1 << 16, "5,000": 5000}
GROUP_ROWS = {14: 1_200_000, 40: 1_200_000}
TFRECORDS = 20_000
LOADED = 40_000  # records that torch's DataLoader is given: it is slow
WORDS = 5000
FLIGHTS = 40_000
LATENCY_S, RATE = 0.05, 100e6


def columns(rows: int, width: int) -> dict[str, Any]:
    """Make a label, then whole numbers, floats and words by turns."""
    r = np.random.default_rng(width)
    words = np.array([f"c{n:x}" for n in range(WORDS)])
    made: dict[str, Any] = {"label": r.integers(0, 2, rows)}
    for i in range(width - 1):
        kinds = (
            lambda i=i: r.integers(0, 10 ** (1 + i % 7), rows),
            lambda: np.round(r.normal(0, 10, rows), 4),
            lambda: words[r.integers(0, WORDS, rows)],
        )
        made[f"f{i}"] = kinds[i % 3]()
    return made


def arrow(made: Mapping[str, Any]) -> Any:
    return pyarrow.table({name: pyarrow.array(values) for name, values in made.items()})


def write_csv(made: Mapping[str, Any], path: Path) -> None:
    options = pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
    pyarrow.csv.write_csv(arrow(made), path, options)


def write_tfrecord(made: Mapping[str, Any], path: Path) -> None:
    lists = {name: values.tolist() for name, values in made.items()}
    with path.open("wb") as stream:
        for row in zip(*lists.values(), strict=True):
            pairs = zip(lists, row, strict=True)
            body = _field(10, b"".join(_field(10, _feature(*pair)) for pair in pairs))
            head = struct.pack("<Q", len(body))
            for part in (head, body):
                stream.write(part + struct.pack("<I", masked_crc32c(part)))


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        inner = _field(10, _field(10, value.encode()))
    elif isinstance(value, float):
        inner = _field(18, _field(10, struct.pack("<f", value)))
    else:
        inner = _field(26, _field(10, _varint(value)))
    return _field(10, name.encode()) + _field(18, inner)


def _field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def ours(path: Path, minibatch: int, reader: Any = None) -> Sample:
    """Read an epoch in shuffled tasks of 8 minibatches, the records of each in a random order."""
    reader = reader or open_reader(str(path))
    source = reader.sources()[0]
    size = 8 * minibatch
    starts = np.arange(0, source.records, size)
    starts = np.random.default_rng(0).permutation(starts).tolist()

    def read() -> None:
        for task, start in enumerate(starts, 1):
            end = min(start + size, source.records)
            offsets = order(1, 0, task, end - start, shuffle=True)
            pieces = list(split(0, end - start, minibatch))
            for _ in spans(reader, source.name, start, end, offsets=offsets, pieces=pieces):
                pass

    return sample(source.records, read)


def as_numpy(made: Any) -> dict[str, Any]:
    """Return the columns as a feed would have them: texts in numpy's own type."""
    arrays = {}
    for name in made.column_names:
        values = made.column(name).to_numpy()
        arrays[name] = values.astype(np.str_) if values.dtype == object else values
    return arrays


def _arrow_csv(path: Path) -> Any:
    return pyarrow.csv.read_csv(path, pyarrow.csv.ReadOptions(use_threads=False))


def _arrow_parquet(path: Path) -> Any:
    return pyarrow.parquet.read_table(path, use_threads=False)


def loader(made: Mapping[str, Any]) -> None:
    """Read all numbers of a table by torch's DataLoader, in shuffled minibatches of 64."""
    tensors = [torch.from_numpy(v[:LOADED].copy()) for v in made.values() if v.dtype.kind in "if"]
    dataset = torch.utils.data.TensorDataset(*tensors)
    for _ in torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True):
        pass


def peers(path: Path) -> dict[str, Callable[[], Any]]:
    """Return what else reads this file, as far as it is here: {name: read it all}."""
    found: dict[str, Callable[[], Any]] = {}
    if path.suffix in (".csv", ".parquet"):
        read = _arrow_csv if path.suffix == ".csv" else _arrow_parquet
        found["pyarrow"] = lambda: read(path)
        found["pyarrow, to numpy"] = lambda: as_numpy(read(path))
        for name in ("pandas", "polars"):
            if importlib.util.find_spec(name) is None:
                print(f"{name} is not installed: left out.", flush=True)
                continue
            module = importlib.import_module(name)
            call = getattr(module, f"read_{path.suffix[1:]}")
            found[name] = lambda call=call: call(path)
    elif path.suffix == ".npz":
        found["numpy.load"] = lambda: dict(np.load(path).items())
    else:
        found["protobuf (upb)"] = lambda: _protobuf(path)
    return found


def _protobuf(path: Path) -> None:
    data, at = path.read_bytes(), 0
    example = _example()
    while at < len(data):
        nbytes = struct.unpack_from("<Q", data, at)[0]
        one = example.FromString(data[at + 12 : at + 12 + nbytes])
        for feature in one.features.feature.values():
            list(getattr(feature, feature.WhichOneof("kind")).value)
        at += nbytes + 16


def _example() -> Any:
    """Make tf.train.Example as a class of protobuf's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="bench_example.proto", package="bench")
    for name, kind in (("BytesList", 12), ("FloatList", 2), ("Int64List", 3)):
        file.message_type.add(name=name).field.add(name="value", number=1, label=3, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for i, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        of = f".bench.{name}"
        feature.field.add(name=name, number=i, label=1, type=11, type_name=of, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".bench.Feature")
    of = ".bench.Features.FeatureEntry"
    features.field.add(name="feature", number=1, label=3, type=11, type_name=of)
    example = file.message_type.add(name="Example")
    of = ".bench.Features"
    example.field.add(name="features", number=1, label=1, type=11, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Example"))


def files(folder: Path, rounds: int) -> str:
    """Make the table of all readers."""
    lines = [
        "| file | columns | read by | CPU us a record | wall us a record | CPU, times the first |",
        "|---|---|---|---|---|---|",
    ]
    for width, rows in ROWS.items():
        made = columns(rows, width)
        fewer = {name: values[:TFRECORDS] for name, values in made.items()}
        paths = {suffix: folder / f"{width}.{suffix}" for suffix in ("csv", "parquet", "npz")}
        write_csv(made, paths["csv"])
        pyarrow.parquet.write_table(arrow(made), paths["parquet"], row_group_size=1 << 16)
        np.savez(paths["npz"], **made)
        if width > 5:
            write_tfrecord(fewer, paths.setdefault("tfrecord", folder / f"{width}.tfrecord"))
        for suffix, path in paths.items():
            count = TFRECORDS if suffix == "tfrecord" else rows
            others = {
                name: lambda read=read: sample(count, read)  # noqa: B023 (called in this turn)
                for name, read in peers(path).items()
            }
            if suffix == "npz":
                others["torch's DataLoader, in memory"] = lambda: sample(
                    LOADED,
                    lambda: loader(made),  # noqa: B023
                )
            reader = open_reader(str(path))
            variants = others | {
                "edl, 64 x 8": lambda: ours(path, 64, reader),  # noqa: B023
                "edl, 512 x 8": lambda: ours(path, 512, reader),  # noqa: B023
            }
            if suffix == "parquet":
                variants["edl, 64 x 8, first epoch"] = lambda: ours(path, 64)  # noqa: B023
            found = alternate(variants, rounds)
            first = next(iter(found.values()))
            for name, samples in found.items():
                cells = (
                    suffix, str(width), name, spread([1e6 * each.cost for each in samples]),
                    spread([1e6 / each.rate for each in samples]),
                    ratio(samples, first, lambda each: each.cost),
                )  # fmt: skip
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def groups(folder: Path, rounds: int) -> str:
    """Read Parquet in tasks of 512 records, by its row groups."""
    lines = [
        "| columns | rows a group | pyarrow | first epoch | times pyarrow | next epochs | times |",
        "|---|---|---|---|---|---|---|",
    ]
    for width, rows in GROUP_ROWS.items():
        made = arrow(columns(rows, width))
        for name, size in GROUPS.items():
            path = folder / f"groups-{width}.parquet"
            pyarrow.parquet.write_table(made, path, row_group_size=size)
            kept = open_reader(str(path))
            variants = {
                "pyarrow": lambda: sample(rows, lambda: _by_group(path)),  # noqa: B023
                "first": lambda: ours(path, 64),  # noqa: B023
                "next": lambda: ours(path, 64, kept),  # noqa: B023
            }
            found = alternate(variants, rounds)
            cells = [str(width), name]
            for variant, samples in found.items():
                cells.append(spread([1e6 * each.cost for each in samples]))
                if variant != "pyarrow":
                    cells.append(ratio(samples, found["pyarrow"], lambda each: each.cost))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_group(path: Path) -> None:
    file = pyarrow.parquet.ParquetFile(path)
    for group in range(file.num_row_groups):
        file.read_row_group(group, use_threads=False)


def opening(folder: Path, rounds: int) -> str:
    """Open a CSV until its records are counted and its types known: new each time."""
    lines = ["| columns | MB | CPU s | wall s | MB/s |", "|---|---|---|---|---|"]
    for width, rows in ROWS.items():
        path = folder / f"open-{width}.csv"
        write_csv(columns(3 * rows, width), path)
        nbytes = path.stat().st_size / 1e6
        found = alternate(
            {"open": lambda: sample(nbytes, lambda: open_reader(str(path)).sources())},  # noqa: B023
            rounds,
        )["open"]
        cells = (
            str(width), f"{nbytes:.0f}", spread([each.cpu_s for each in found]),
            spread([each.wall_s for each in found]), spread([each.rate for each in found]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Far(AsyncFileSystem):
    """Files of this machine as an object store gives them: late, each request at its own rate."""

    cachable = False

    async def _info(self, path: str, **_rest: Any) -> dict[str, Any]:
        await asyncio.sleep(LATENCY_S)
        return {"name": path, "size": os.path.getsize(path), "type": "file"}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_rest: Any) -> bytes:
        await asyncio.sleep(LATENCY_S + (end - start) / RATE)
        with open(path, "rb") as stream:  # noqa: ASYNC230
            stream.seek(start)
            return stream.read(end - start)


def remote(folder: Path, rounds: int) -> str:
    """Open a CSV, by one request at a time and by several."""
    path = folder / "far.csv"
    write_csv(columns(8 * ROWS[14], 14), path)
    several = ranges.AT_ONCE

    def index(at_once: int) -> Sample:
        ranges.AT_ONCE = at_once
        nbytes = path.stat().st_size / 1e6
        reader = csv_reader([DataFile(Far(), str(path), f"far://{path}")])
        return sample(nbytes, lambda: reader.sources())

    variants = {
        "1 request at a time": lambda: index(1),
        f"{several} at once": lambda: index(several),
    }
    try:
        found = alternate(variants, rounds)
    finally:
        ranges.AT_ONCE = several
    return table(found, ["1 request at a time"], ("MB/s", 1.0), ("CPU ms per MB", 1e3))


def flights(folder: Path) -> dict[str, Path]:
    """Make as many flights as nycflights13-small has, their ids drawn: {format: file}."""
    r = np.random.default_rng(0)
    sizes = dict(zip(COLUMNS, (16, 4000, 4000, 3, 105, 224, 12, 31, 7, 24, 365), strict=True))
    made = {name: r.integers(0, size, FLIGHTS) for name, size in sizes.items()}
    made["label"] = r.integers(0, 2, FLIGHTS)
    paths = {suffix: folder / f"train.{suffix}" for suffix in ("npz", "csv", "parquet")}
    np.savez(paths["npz"], **made)
    write_csv(made, paths["csv"])
    pyarrow.parquet.write_table(arrow(made), paths["parquet"])
    return paths


def deepfm(folder: Path, rounds: int) -> str:
    """Run the same job from each kind of file."""
    found = alternate(
        {
            suffix: lambda path=path: training.job(path, workers=1, servers=1)
            for suffix, path in flights(folder).items()
        },
        rounds,
        warm_up=False,  # each run warms up by itself
    )
    return table(found, ["npz"], ("records/s", 1.0), ("CPU ms per 1,000 records", 1e6))


PARTS = {each.__name__: each for each in (files, groups, opening, remote, deepfm)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the readers of data.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for part in asked.parts:
        with tempfile.TemporaryDirectory() as folder:
            began, used = time.perf_counter(), cpu_s([os.getpid()])
            text = PARTS[part](Path(folder), asked.rounds)
            spent = time.perf_counter() - began, cpu_s([os.getpid()]) - used
            print(f"\n{part} ({spent[0]:.0f} s, {spent[1]:.0f} s of CPU)\n\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
