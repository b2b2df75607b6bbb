"""The same faults on ours and on rivals, one after the other in one run.

    python -m benchmarks.faults --peers FOLDER [--only NAME ...] [--rounds N]

FOLDER is what `python -m benchmarks.peers.setup --into FOLDER elasticdl mxnet tensorflow torchft
dlrover` was given. About 9 minutes a round. Every scenario has its deadlines: a hang is an outcome.
All that a scenario starts is killed when it ends.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.faults.books import Row, table
from benchmarks.faults.programs import Unavailable

Scenario = Callable[[Path], Row]

SCENARIOS: dict[str, tuple[str, ...]] = {
    "ours": ("worker", "same_task", "zombie", "server", "master"),
    "elasticdl": ("worker", "same_task", "server"),
    "mxnet": ("worker", "worker_again", "server", "server_again"),
    "torchft": ("outside", "inside"),
    "dlrover": ("worker", "same_task", "zombie", "lost_reply"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--peers", type=Path, required=True, help="the folder of setup --into")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=1, help="of each scenario")
    given = parser.parse_args()
    if unknown := set(given.only) - {*SCENARIOS, *(name for name, _ in scenarios())}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    started, before = time.monotonic(), measure.load()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        for name, scenario in scenarios():
            if given.only and not {name, name.partition(".")[0]} & set(given.only):
                continue
            for _ in range(given.rounds):
                rows.append(once(name, scenario, given.peers))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    took = f"{time.monotonic() - started:.0f} s in all."
    print(f"{table(rows)}\n\n{took} Load average before: {before}; after: {measure.load()}.")
    print(measure.machine())


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """Yield the scenarios by name, as SYSTEM.FAULT."""
    for system, faults in SCENARIOS.items():
        module = importlib.import_module(f"benchmarks.faults.{system}")
        for fault in faults:
            yield f"{system}.{fault}", getattr(module, fault)


def once(name: str, scenario: Scenario, peers: Path) -> Row:
    try:
        return scenario(peers)
    except Unavailable as reason:
        system, _, fault = name.partition(".")
        return Row(system, fault.replace("_", " "), "-", f"could not be run: {reason}")


if __name__ == "__main__":
    main()
