"""Teachers that fail beside a student: how long it stands, and how much slower it goes.

    python -m benchmarks.teachers_faults [--rounds N] [--only kill slow]

*kill*: a job of the counting model (chaos/counting.py; 2 workers, 3 servers, 2 teachers), one of
whose teachers is killed with SIGKILL in the midst of it, and the same job without that, in
alternation. The longest gap between two steps of a worker from that moment on; each record is
counted, and what was taught of it.

*slow*: three teachers that sleep TEACHER_S for a batch (devices: their work is not this machine's),
of which one becomes ten times slower; and the two others alone. Students read by DistillReader as
fast as they are taught; what counts is the time from the change on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import measure, page
from edl.chaos import cell
from edl.chaos.controller import Hit
from edl.chaos.scene import Scene
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.alone import serve
from edl.distill.frames import Part
from edl.registry.identity import VARIABLE

EPOCHS, HEARTBEAT_S, END_S = 6, 1.0, 300.0
KILL_AT = (120, 240)  # steps of both workers, of 384
BATCH, TEACHER_S, SLOWER = 64, 0.025, 10.0
BEFORE, AFTER = 60, 400  # minibatches of each student before the change, and from then on


# -- kill


@dataclasses.dataclass(frozen=True)
class Stood:
    """A job: the longest gap between two steps, and what its last checkpoint has in excess."""

    gap_s: float
    restarts: int  # of teachers
    off: int  # records and updates lost or doubled, records not taught, or taught something else


def kill(rounds: int) -> None:
    """Kill one of two teachers."""
    names = {"one of two killed": True, "none killed": False}
    found: dict[str, list[Stood]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(-1, rounds):  # the first one may compile kernels
            for name, kills in sorted(names.items(), key=lambda item: item[1] == (turn % 2 == 0)):
                stood = _job(Path(folder, f"{kills}-{turn + 1}"), turn, kills)
                print(f"  {turn} {name}: {stood}", file=sys.stderr, flush=True)
                if turn >= 0:
                    found[name].append(stood)
    rows = [
        [
            name,
            measure.spread([each.gap_s for each in jobs]),
            str(sum(each.restarts for each in jobs)),
            str(sum(each.off for each in jobs)),
        ]
        for name, jobs in found.items()
    ]
    print(page.table(["", "longest gap, s", "teachers started again", "records wrong"], rows))
    more = [a.gap_s - b.gap_s for a, b in zip(*found.values(), strict=True)]
    print(
        f"\nLonger by the kill: {statistics.median(more):+.3f} s ({min(more):+.3f} to "
        f"{max(more):+.3f}); a heartbeat is {HEARTBEAT_S:g} s."
    )


def _job(folder: Path, seed: int, kills: bool) -> Stood:
    """Run a job; from a drawn step on, of which a teacher may be killed, look at its gaps."""
    rng = random.Random(seed)
    settings = dataclasses.replace(
        cell.settings(folder, "async", 0, END_S, "wait"),
        num_epochs=EPOCHS,
        validation_data="",
        snapshot_s=10.0,
        lease_s=10.0,
        teacher_timeout_s=30.0,
    )
    with Scene(folder, settings, rng) as scene:

        def strike(_hit: Hit) -> None:
            scene.struck = time.time()
            if kills:
                scene.send("teacher", rng.randrange(cell.TEACHERS))

        scene.at(["worker.compute"], strike, rng.randint(*KILL_AT))
        assert scene.wait(END_S) == 0, f"see {folder}"
        restarts = scene.status()["restarts"]
    off = cell.counted(Path(settings.checkpoint_dir), epochs=EPOCHS, taught=True)
    wrong = sum(value for what, value in off.items() if what != "taught")
    gap_s = cell.times(scene)["stall_s"]
    again = restarts.pop("teacher") + restarts.pop("teacher_preemptions")
    assert not any(restarts.values()), restarts
    return Stood(gap_s, again, wrong)


# -- slow


class Device:
    """A teacher that sleeps for so long as the file says."""

    fingerprint = "device"

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, _parts: Sequence[Part], rows: int) -> list[Part]:
        time.sleep(float(self._path.read_text()))
        return [Part("/logits", np.zeros((rows, 10), np.float32))]


@contextlib.contextmanager
def devices(folder: Path, number: int) -> Iterator[list[tuple[str, Path]]]:
    """Run so many teachers in processes; yield their addresses and files."""
    os.environ[VARIABLE] = Identity("benchmark").to_variable()
    paths = [folder / str(n) for n in range(number)]
    _say(paths, 1.0)
    command = [sys.executable, "-m", "benchmarks.teachers_faults", "--serve"]
    started = [
        subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True) for path in paths
    ]
    try:
        lines = [process.stdout.readline() for process in started if process.stdout]
        yield [(line.split()[-1], path) for line, path in zip(lines, paths, strict=True)]
    finally:
        for process in started:
            process.terminate()
            process.wait()


def _say(paths: Sequence[Path], slower: float) -> None:
    """Set what a batch takes, at once for whoever reads it."""
    for path in paths:
        new = path.with_suffix(".new")
        new.write_text(str(TEACHER_S * slower))
        new.rename(path)


def _read(address: str, change: threading.Barrier, seconds: list[float]) -> None:
    """Read as one student; note how long what came after the change took."""
    made = DistillReader(["image"], ["logits"], rules=Rules(window=8))
    made.set_fixed_teacher(address)
    batches = ((torch.zeros(BATCH, 784),) for _ in range(BEFORE + AFTER))
    began = 0.0
    for number, _ in enumerate(made.wrap(batches), 1):
        if number == BEFORE:
            change.wait()
            began = time.perf_counter()
    seconds.append(time.perf_counter() - began)


def _students(number: int, there: Sequence[tuple[str, Path]], slow: Sequence[Path]) -> list[float]:
    """Have students read from these teachers, of which some become slow; return their seconds."""
    change = threading.Barrier(number, action=lambda: _say(slow, SLOWER))
    seconds: list[float] = []
    address = ",".join(each for each, _ in there)
    reading = [
        threading.Thread(target=_read, args=(address, change, seconds)) for _ in range(number)
    ]
    for thread in reading:
        thread.start()
    for thread in reading:
        thread.join()
    _say(slow, 1.0)
    return seconds


def slow(rounds: int) -> None:
    """Make one of three teachers ten times slower."""
    with tempfile.TemporaryDirectory() as folder, devices(Path(folder), 3) as three:

        def taught(students: int, there: int, is_slow: bool) -> measure.Sample:
            last = [three[-1][1]] if is_slow else []
            used = measure.cpu_s([os.getpid()])
            seconds = _students(students, three[:there], last)
            used = measure.cpu_s([os.getpid()]) - used
            return measure.Sample(students * AFTER * BATCH, max(seconds), used)

        for students in (1, 2):
            print(f"\nStudents: {students}\n")
            found = measure.alternate(
                {
                    "two": lambda s=students: taught(s, 2, False),
                    "three": lambda s=students: taught(s, 3, False),
                    "three, one slow": lambda s=students: taught(s, 3, True),
                },
                rounds,
                warm_up=False,
            )
            print(measure.table(found, ["two"], ("records/s", 1.0), ("CPU us a record", 1e6)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teachers_faults")
    parser.add_argument("--rounds", type=int, default=measure.ROUNDS)
    parser.add_argument("--only", nargs="+", choices=("kill", "slow"))
    parser.add_argument("--serve", type=Path)
    given = parser.parse_args()
    if given.serve:
        serve(
            Device(given.serve),
            {},
            port=0,
            max_batch_size=BATCH,
            max_queue_delay_s=0.0,
            say=lambda text: print(text, flush=True),
        )
        return
    torch.set_num_threads(1)  # others would spin
    for part in (kill, slow):
        if not given.only or part.__name__ in given.only:
            print(f"\n### {part.__doc__}\n")
            part(given.rounds)
    print(f"\n{measure.machine()}\n- load: {measure.load()}")


if __name__ == "__main__":
    main()
