"""Serving: requests a second and latency of `edl serve`, beside FastAPI and torch by hand.

    python -m benchmarks.serving [--peers FOLDER] [--rounds 5]    from the repository root

A DeepFM (the flights' columns, 300,000 records of which most have a row of their own) is trained by
`edl train`, then served: by `edl serve` over HTTP with JSON and with bytes, over gRPC, by
onnxruntime behind the same server (the checkpoint exported), and by a plain FastAPI application
that calls the same `edl.load` in a function and in a coroutine (benchmarks/serving_peers.py; `pip
install --target FOLDER fastapi`). The load comes from a process of its own
(benchmarks/serving_load.py), over connections that stay open, each with one request at a time.
Variants run in alternation; a ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure, page
from edl.model_zoo.deepfm import COLUMNS

RECORDS, TAILNUMS = 300_000, 250_000
LOADS = "1x1,1x8,32x1,32x8"  # rows of a request, connections
ASKED_S = 1.5
OURS = "edl serve, JSON"


@dataclass(frozen=True)
class Target:
    """A server, and how it is asked: `form` is of serving_load.py."""

    name: str
    form: str
    port: int
    pid: int


@dataclass(frozen=True)
class Answered:
    """The answers that a load has seen."""

    rate: float
    p50_ms: float
    p99_ms: float


def make_data(file: Path) -> None:
    """Write random flights."""
    random = np.random.default_rng(0)
    sizes = dict(zip(COLUMNS, (16, 3800, TAILNUMS, 3, 105, 224, 12, 31, 7, 24, 365), strict=True))
    columns = {name: random.integers(0, size, RECORDS) for name, size in sizes.items()}
    np.savez(file, label=(random.random(RECORDS) < 0.25).astype(np.int64), **columns)


def make_checkpoint(folder: Path) -> Path:
    """Train for an epoch; return the checkpoint."""
    make_data(folder / "train.npz")
    command = [sys.executable, "-m", "edl", "train", "--model_def", "deepfm", "--num_ps", "1"]
    command += ["--training_data", str(folder / "train.npz"), "--minibatch_size", "4096"]
    command += ["--job_name", "flights", "--num_workers", "1"]
    environment = {**os.environ, "EDL_HOME": str(folder / "home")}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (found,) = (folder / "home" / "jobs" / "flights" / "checkpoints").glob("version-*")
    return found


@contextlib.contextmanager
def started(command: Sequence[str], ready: str) -> Iterator[tuple[int, list[str]]]:
    """Start a server; yield its process id and what the line that says it is ready has."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if found := re.search(ready, line):
                    yield child.pid, list(found.groups())
                    break
            else:
                raise RuntimeError(f"{command} has ended before it was ready")
        finally:
            child.terminate()


@contextlib.contextmanager
def targets(checkpoint: Path, data: Path, peers: str) -> Iterator[list[Target]]:
    """Start all servers, which wait while another one is asked."""
    with contextlib.ExitStack() as undo:
        serve = [sys.executable, "-m", "edl", "serve", f"flights={checkpoint}"]
        serve += ["--data", str(data), "--http_port", "0", "--grpc_port", "0"]
        said = r"gRPC at \S+:(\d+), metrics at http://\S+:(\d+)/"
        pid, (rpc, http) = undo.enter_context(started(serve, said))
        found = [
            Target(OURS, "json", int(http), pid),
            Target("edl serve, bytes", "bytes", int(http), pid),
            Target("edl serve, gRPC", "grpc", int(rpc), pid),
        ]
        exported = data.with_name("exported")
        command = [sys.executable, "-m", "edl", "export", str(checkpoint), str(exported)]
        command += ["--to", "onnx", "--data", str(data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        serve[4] = f"flights={exported}"
        pid, (_, http) = undo.enter_context(started(serve, said))
        found.append(Target("onnxruntime behind it, JSON", "json", int(http), pid))
        for name in ("function", "coroutine") if peers else ():
            module = [sys.executable, "-m", "benchmarks.serving_peers", str(checkpoint)]
            command = [*module, "--peers", peers, "--kind", name]
            pid, (port,) = undo.enter_context(started(command, r"ready at (\d+)"))
            found.append(Target(f"FastAPI, a {name}", "plain", int(port), pid))
        yield found


class Load:
    """The process that asks."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def asked(self, target: Target, rows: int, connections: int) -> Any:
        """Return what it has seen of a server in a while; with 0 connections an answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        line = f"{target.form} {target.port} {rows} {connections} {ASKED_S}\n"
        self._child.stdin.write(line)
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())

    def close(self) -> None:
        self._child.communicate()


def check(load: Load, found: Sequence[Target]) -> None:
    """Check that all answer the same."""
    answers = [load.asked(target, 4, 0) for target in found]
    for target, each in zip(found, answers, strict=True):
        np.testing.assert_allclose(each, answers[0], atol=1e-6, err_msg=target.name)


def serving(peers: str, rounds: int, loads: str) -> str:
    """Make the tables in Markdown."""
    sections = [f"- load of the machine before: {measure.load()}"]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as undo:
        folder = Path(name)
        checkpoint = make_checkpoint(folder)
        with targets(checkpoint, folder / "train.npz", peers) as found:
            load = Load()
            undo.callback(load.close)
            check(load, found)
            for rows, connections in (map(int, each.split("x")) for each in loads.split(",")):
                sections.append(_table(load, found, rows, connections, rounds))
            batches = _mean_batch(found[0])
    sections.append(f"Rows of a batch of `edl serve` in the mean, over all: {batches:.1f}.")
    return "\n\n".join(sections)


def _table(load: Load, found: Sequence[Target], rows: int, connections: int, rounds: int) -> str:
    seen: dict[str, list[Answered]] = {target.name: [] for target in found}
    for turn in range(-1, rounds):  # the first is to warm up
        order = [found[(place + turn) % len(found)] for place in range(len(found))]
        for target in order:
            answered = Answered(**load.asked(target, rows, connections))
            if turn >= 0:
                seen[target.name].append(answered)
            print(f"  {rows}x{connections} {turn} {target.name}: {answered}", file=sys.stderr)
    ours = seen[OURS]
    lines = [
        [
            name,
            measure.spread([each.rate for each in them]),
            measure.spread([each.p50_ms for each in them]),
            measure.spread([each.p99_ms for each in them]),
            "1"
            if name == OURS
            else measure.spread([a.p99_ms / b.p99_ms for a, b in zip(them, ours, strict=True)]),
        ]
        for name, them in seen.items()
    ]
    heads = [f"{rows} rows, {connections} connections", "requests/s", "p50 ms", "p99 ms"]
    return page.table([*heads, "p99 of ours"], lines)


def _mean_batch(target: Target) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    values = [
        float(re.findall(rf"edl_serve_batch_rows_{name}{{.*}} (\S+)", text)[0])
        for name in ("sum", "count")
    ]
    return values[0] / values[1]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="", metavar="FOLDER", help="Where fastapi lies.")
    parser.add_argument("--rounds", type=int, default=measure.ROUNDS)
    parser.add_argument("--loads", default=LOADS, metavar="ROWSxCONNECTIONS,...")
    arguments = parser.parse_args()
    print(measure.machine())
    print(serving(arguments.peers, arguments.rounds, arguments.loads))


if __name__ == "__main__":
    main()
