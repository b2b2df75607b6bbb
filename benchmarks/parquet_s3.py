"""Parquet in S3: how fast its records come, beside pyarrow's own S3 file system and a local file.

    python -m benchmarks.parquet_s3 [--rows 1600000] [--rounds 9] [--profile]

Tables of 40 columns, of numbers and words and of floats alone, in row groups of two sizes, at a
real S3 server (tests/tools/s3.py) over loopback. `edl` reads all records in order, in tasks of
65,536, as arrays of numpy, and keeps the decoded row groups on disk for the other workers of a job,
all of it within the time: the first epoch. pyarrow's `read_table` makes Arrow's tables in memory,
and no arrays. `edl, pyarrow's S3`: our reader over a file of pyarrow's file system, so that only
the transfer is another. `--profile` prints where the time of one of our reads goes, instead. All
runs alternate in one process; before each Arrow gives back the memory that the one before has left,
so that each finds what a new process would.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.fs
import pyarrow.parquet

from benchmarks.data import arrow, columns
from benchmarks.measure import Sample, alternate, load, machine, ratio, sample, spread
from edl.data import decoded, parquet, ranges
from edl.data.files import DataFile
from edl.data.open import open_reader
from edl.data.paths import expand

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from tools import s3

TASK = 1 << 16
GROUPS = (1 << 17, 1 << 20)
KEY = "bucket/data.parquet"


def floats(rows: int) -> Any:
    r = np.random.default_rng(0)
    return pyarrow.table({f"f{i}": r.normal(size=rows) for i in range(40)})


def read(reader: Any, rows: int) -> None:
    name = reader.sources()[0].name
    for start in range(0, rows, TASK):
        reader.read(name, start, min(rows, start + TASK))


class Theirs(DataFile):
    """The file as pyarrow's file system opens it."""

    def __init__(self, file: DataFile, fs: Any) -> None:
        super().__init__(file.fs, file.path, file.name)
        self._theirs = fs

    def open(self, buffering: int = -1, ahead: Any = ()) -> Any:  # noqa: ARG002
        return self._theirs.open_input_file(KEY)


def cold(rows: int, work: Callable[[], Any]) -> Sample:
    pyarrow.default_memory_pool().release_unused()
    return sample(rows, work)


def variants(path: Path, rows: int, fs: Any) -> dict[str, Callable[[], Sample]]:
    def ours(where: str) -> Sample:
        return cold(rows, lambda: read(open_reader(where), rows))

    def over_theirs() -> Sample:
        file = Theirs(expand(f"s3://{KEY}")[0], fs)
        return cold(rows, lambda: read(parquet.parquet_reader([file]), rows))

    return {
        "pyarrow, S3FileSystem": lambda: cold(
            rows, lambda: pyarrow.parquet.read_table(KEY, filesystem=fs)
        ),
        "edl, S3": lambda: ours(f"s3://{KEY}"),
        "edl, pyarrow's S3": over_theirs,
        "edl, local file": lambda: ours(str(path)),
    }


def row(table: str, group: int, name: str, found: dict[str, list[Sample]]) -> str:
    samples, theirs = found[name], found["pyarrow, S3FileSystem"]
    cells = (
        table, f"{group:,}", name, spread([each.wall_s for each in samples]),
        ratio(samples, theirs, lambda each: each.rate),
        spread([each.cpu_s for each in samples]),
        ratio(samples, theirs, lambda each: each.cpu_s),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def profile(path: Path, rows: int) -> str:
    """Tell where the wall and the CPU seconds of the third read go, by part; they overlap."""
    parts: dict[str, list[float]] = {}

    def timed(owner: Any, name: str, label: str) -> None:
        inner = getattr(owner, name)

        def outer(*arguments: Any, **rest: Any) -> Any:
            began, used = time.perf_counter(), time.thread_time()
            try:
                return inner(*arguments, **rest)
            finally:
                spent = parts.setdefault(label, [0.0, 0.0])
                spent[0] += time.perf_counter() - began
                spent[1] += time.thread_time() - used

        setattr(owner, name, outer)

    timed(decoded.Decoded, "get", "row groups: fetched, decoded, written")
    timed(ranges.Ahead, "read", "of it: until a column has come")
    timed(pyarrow.RecordBatchFileWriter, "write_batch", "of it: written to disk")
    timed(parquet.ParquetFile, "_rows", "to numpy")
    lines = ["| read | | wall s | its thread's CPU s |", "|---|---|---|---|"]
    for where in (f"s3://{KEY}", str(path)):
        for _ in range(3):
            parts.clear()
            whole = sample(rows, lambda: read(open_reader(where), rows))  # noqa: B023
        lines.append(f"| {where[:2]} | all | {whole.wall_s:.2f} | {whole.cpu_s:.2f}, of all |")
        lines += [f"| | {name} | {wall:.2f} | {cpu:.2f} |" for name, (wall, cpu) in parts.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Parquet in S3.")
    parser.add_argument("--rows", type=int, default=1_600_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print(f"{machine()}\n- server: {s3.REAL if s3.archive() else s3.MOCK}\n- load: {load()}\n")
    lines = [
        "| table | rows a group | | wall s | speed, of pyarrow's S3FileSystem | CPU s | times |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder, s3.server("bucket") as variables:
        os.environ.update(variables)
        fs = pyarrow.fs.S3FileSystem(
            endpoint_override=variables["AWS_ENDPOINT_URL"], scheme="http", region="us-east-1"
        )
        path = Path(folder) / "data.parquet"
        mixed = arrow(columns(asked.rows, 40))
        for name, made in {"numbers, words": mixed, "floats": floats(asked.rows)}.items():
            for group in GROUPS:
                pyarrow.parquet.write_table(made, path, row_group_size=group)
                with s3.client(variables) as client:
                    client.upload_file(str(path), *KEY.split("/"))
                if asked.profile:
                    print(f"{name}, groups of {group:,}\n\n{profile(path, asked.rows)}\n")
                    continue
                found = alternate(variants(path, asked.rows, fs), asked.rounds)
                lines += [row(name, group, each, found) for each in found]
    if not asked.profile:
        print("\n".join(lines))
    print(f"\n- load: {load()}")


if __name__ == "__main__":
    main()
