"""A profile of a worker and a server by py-spy: functions by the time that they need.

    python -m benchmarks.sampling [--py_spy PATH]     from the repository root

The DeepFM of the peers, as in benchmarks/peers/ours.py, everything overlapped as in a job; then the
cycle of pull and push of 100,000 rows, by one worker with one server and by two with two (the ends
of a kind together, so up to two cores). Sampled when it has run for a while. A function's time is
its own and that of the compiled code that it calls (kernels, torch, system calls), only while it
has the processor. py-spy comes from PyPI, into an environment of its own. Writes its tables into
docs/performance.md too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks import measure, page, parameters, scaling_points
from benchmarks.peers import work as deepfm
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.nn.optimizers import Adagrad

RATE = 250  # samples a second
SAMPLED_S = 10
TOP = 12
STEPS = 700  # of the DeepFM: enough for the time until it is sampled, and while it is
STARTED_S = 15  # of CPU time: by then all has started and compiled, and met the common ids
INSIDE = {  # a thread's stack has one of these while it works on a step
    "server": ("_Session.run (", "Work._do_all ("),
    "worker": ("train (", "_WorkItem.run (", "cycles (", "_cycle ("),
}
IMPORT = "<frozen importlib"  # as a step may, the first time


def sampling(py_spy: str, transport: str = "shm") -> str:
    """Make tables in Markdown: what functions take of a core, and of the time of their process."""
    module = [sys.executable, "-u", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        file = deepfm.make(Path(folder) / "work.npz", STEPS)
        commands = {
            "The DeepFM": [*module, "benchmarks.peers.ours", str(file)],
            "Pull + push of 100,000 rows": [*module, "benchmarks.sampling", "--cycles", "1"],
            "Two workers, two servers": [*module, "benchmarks.sampling", "--cycles", "2"],
        }
        sections = []
        for title, command in commands.items():
            own = owners(_record(py_spy, [*command, "--transport", transport], Path(folder)))
            sections.append(f"**{title}**, {transport}.")
            sections += [_table(end, own[end]) for end in ("worker", "server")]
    return "\n\n".join(sections)


def _record(py_spy: str, command: list[str], folder: Path) -> str:
    """Start a worker and its server, sample both."""
    stacks = folder / "stacks"
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            if "--cycles" in command:
                assert running.stdout is not None
                running.stdout.readline()
            while "--cycles" not in command and _used_s(running.pid) < STARTED_S:
                time.sleep(0.2)
            recording = [py_spy, "record", "--pid", str(running.pid), "--subprocesses"]
            recording += ["--nonblocking", "--rate", str(RATE), "--duration", str(SAMPLED_S)]
            recording += ["--format", "raw", "--output", str(stacks)]
            subprocess.run(recording, check=True, stdout=subprocess.DEVNULL)
        finally:
            if "--cycles" in command:
                running.send_signal(signal.SIGINT)
            running.communicate()
    return stacks.read_text()


def _used_s(pid: int) -> float:
    """Return the CPU seconds so far of a process and its descendants."""
    process = psutil.Process(pid)
    return measure.cpu_s([pid, *(child.pid for child in process.children(recursive=True))])


def cycles(transport: str, count: int) -> None:
    """Pull and push, over and over, to be sampled, until SIGINT. Say when it has begun."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where a shell has us behind
    spec = ModelSpec((), (TableSpec("t", parameters.DIM),), Adagrad())
    if count > 1:
        with parameters.crowded(count, count, spec, transport) as crowd:
            for number in itertools.count():
                crowd.sample(parameters.CYCLES)
                if not number:
                    print("begun", flush=True)
    batches = parameters.row_batches(6)
    with scaling_points.ends(1, spec, {transport: transport}) as (clients, _):
        end = clients[transport]
        scaling_points.fill(end, "t", parameters.DIM, 0, parameters.ROWS)
        for number in itertools.count():
            if number == len(batches):
                print("begun", flush=True)
            end.pull(*batches[number % len(batches)])
            end.push(*batches[number % len(batches)])


def owners(stacks: str) -> dict[str, collections.Counter[str]]:
    """Count samples by end and by the innermost Python function.

    `stacks`: lines of "a;b;c count".
    """
    found = {end: collections.Counter[str]() for end in INSIDE}
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        for end, marks in INSIDE.items():
            if any(mark in stack for mark in marks) and IMPORT not in stack:
                found[end][_function(stack.rpartition(";")[2])] += int(count)
                break
    return found


def _function(frame: str) -> str:
    """Return the function of a frame with the last two parts of its path."""
    name, _, place = frame.partition(" (")
    return f"{name} ({'/'.join(place.rpartition(':')[0].split('/')[-2:])})"


def _table(end: str, samples: Mapping[str, int]) -> str:
    counter = collections.Counter(samples)
    total = counter.total()
    lines = [f"| {end} | of its time | of a core |", "|---|---|---|"]
    common = [(f"`{name}`", count) for name, count in counter.most_common(TOP)]
    for name, count in [*common, ("all others", total - sum(count for _, count in common))]:
        lines.append(f"| {name} | {count / total:.1%} | {count / RATE / SAMPLED_S:.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--py_spy", default="py-spy")
    parser.add_argument(
        "--cycles", type=int, default=0, help="be what is sampled: so many workers and servers"
    )
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--print", action="store_true", help="leave docs/performance.md alone")
    given = parser.parse_args()
    if given.cycles:
        with contextlib.suppress(KeyboardInterrupt):
            cycles(given.transport, given.cycles)
        return
    text = f"{measure.machine()}\n\n{sampling(given.py_spy, given.transport)}"
    print(text)
    if not given.print:
        page.refresh("sampling", text)


if __name__ == "__main__":
    main()
