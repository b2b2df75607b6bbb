"""The cost of a master, against the number of tasks and of workers.

    python -m benchmarks.master [--seconds 5] [--tree FOLDER]    from the repository root

The master is real (its state machines, gRPC, its journal on this disk) and alone in its process;
the workers are another process's threads, which lease tasks and report them done and compute
nothing. The one server only says that it holds all that is done. `--tree` measures another
checkout's master with this load, in the same run, round by round.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TASKS = (1_000, 100_000, 10_000_000)
WORKERS = (1, 64, 1_000)
MINIBATCH, OF_TASK = 64, 8
SNAPSHOT_S = 5.0  # of the server, whose snapshots let tasks retire
THREADS = 16  # of the load, at most: so many calls are under way at once
TOKEN = "benchmark"


class _Servers:
    """A stand-in for master/groups/servers.RemoteServers, of servers that hold nothing."""

    def fence(self, attempts: dict[int, int]) -> dict[int, list[int]]:
        return {task: [0] for task in attempts}

    def version(self) -> int:
        return 0

    replace = close = lambda *_: None


class _Runtime:
    """A runtime that starts nothing: the processes are the load's."""

    def __init__(self, started: list[Any]) -> None:
        self._started = started

    def start(self, role: str, index: int, incarnation: str, *_: Any) -> Any:
        from edl.runtime.base import Replica

        replica = Replica(role, index, incarnation, 1)
        self._started.append(replica)
        return replica

    stop = close = detach = adopt = lambda *_: None


def serve(folder: Path, tasks: int, workers: int) -> None:
    """Be the master, until it is killed."""
    from edl.common import rpc
    from edl.common.clock import MonotonicClock
    from edl.common.identity import Identity
    from edl.common.settings import JobSettings
    from edl.durable.journal import Journal
    from edl.master import state
    from edl.master.books.plan import Kind, Plan
    from edl.master.books.task_queue import TaskQueue
    from edl.master.core import MEMORY
    from edl.master.master import Master
    from edl.master.opening import Books
    from edl.master.serve import seldom_collect_garbage
    from edl.master.servicer import MasterServicer
    from edl.proto import master_pb2_grpc
    from edl.runtime.base import Replica

    seldom_collect_garbage()
    settings = JobSettings(
        job_name="benchmark",
        num_workers=workers,
        num_ps=1,
        use_async=True,
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=OF_TASK,
        num_epochs=1_000_000,
        lease_s=600.0,
        checkpoint_dir=str(folder),
    )
    records = MINIBATCH * OF_TASK * tasks
    plan = Plan(
        Kind.TRAIN,
        (("data", records),),
        MINIBATCH,
        OF_TASK,
        num_epochs=settings.num_epochs,
        shuffle=True,
        overlap_epochs=True,
    )
    started: list[Any] = []
    journal, queue = Journal(folder / "journal.sqlite"), TaskQueue(plan)
    memory = journal.get(MEMORY)
    if memory is not None:  # the master before was killed
        state.restore(queue, journal)
    master = Master(
        settings=settings,
        job_dir=folder,
        books=Books(journal, queue),
        connect=lambda _addresses: _Servers(),  # type: ignore[arg-type,return-value]
        clock=MonotonicClock(),
        identity=Identity(TOKEN),
        watch=lambda _status: None,
    )
    if memory is not None:
        master.resume("was killed", memory)
        started += [Replica(**fields) for fields in memory["processes"]]

    def register(server: Any) -> None:
        master_pb2_grpc.add_MasterServicer_to_server(MasterServicer(master), server)

    server = rpc.AsyncServer(register, token=TOKEN)
    threading.Thread(target=_hold_all, args=(server.address, started), daemon=True).start()
    (folder / "address.partial").write_text(f"{server.address} {os.getpid()}")
    (folder / "address.partial").rename(folder / "address")
    master.run(lambda _report: _Runtime(started))  # type: ignore[arg-type,return-value]


def _hold_all(address: str, started: list[Any]) -> None:
    """Be the server, which has all that is done in its snapshots."""
    from edl.master.client import MasterClient
    from edl.proto import master_pb2 as pb

    while not (found := [r for r in started if r.role == "server"]):
        time.sleep(0.01)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=found[0].incarnation)
    client = MasterClient(address, token=TOKEN, replica=about, patience_s=60.0)
    client.register("127.0.0.1:1", "", 1)
    for snapshot in range(1, 1_000_000):
        coverage = pb.Coverage(snapshot=snapshot, low_water=1 << 40)
        client.heartbeat_with(pb.HeartbeatRequest(coverage=coverage))
        time.sleep(SNAPSHOT_S)


class Load:
    """The workers, in a few threads."""

    def __init__(self, folder: Path, workers: int) -> None:
        while not (folder / "address").exists():
            time.sleep(0.02)
        self.address, pid = (folder / "address").read_text().split()
        self._clock = (~int(pid) << 3) | 2  # the CPU time of the master's process
        self._workers = workers
        self._taken: list[float] = []
        self._until = 0.0

    def run(
        self, seconds: float, each: Any, over: Callable[[], bool] | None = None
    ) -> dict[str, float]:
        """Let the workers call for so many seconds, or until `over()`.

        `each(client)` makes a call and says when the next one is due.
        """
        self._over = over
        threads = min(self._workers, THREADS)
        ready, done = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
        running = [
            threading.Thread(
                target=self._work, args=(range(n, self._workers, threads), each, ready, done)
            )
            for n in range(threads)
        ]
        for thread in running:
            thread.start()
        self._until = time.perf_counter() + 3600
        ready.wait()
        began, cpu_s = time.perf_counter(), time.clock_gettime(self._clock)
        self._until = began + seconds
        done.wait()
        wall_s = time.perf_counter() - began
        cpu_s = time.clock_gettime(self._clock) - cpu_s
        for thread in running:
            thread.join()
        return {
            "calls_per_s": len(self._taken) / wall_s,
            "p50_ms": float(np.quantile(self._taken, 0.5) * 1e3),
            "p99_ms": float(np.quantile(self._taken, 0.99) * 1e3),
            "wall_s": wall_s,
            "cpu_s": cpu_s,
        }

    def _work(self, indexes: range, each: Any, ready: Any, done: Any) -> None:
        from edl.master.client import MasterClient
        from edl.proto import master_pb2 as pb

        clients = []
        for index in indexes:
            about = pb.Replica(role=pb.WORKER, index=index, incarnation=f"worker-{index}")
            client = MasterClient(self.address, token=TOKEN, replica=about, patience_s=60.0)
            client.register("", "", 1)
            clients.append(client)
        ready.wait()
        now = time.perf_counter()
        due = [(now + place / len(clients), place) for place in range(len(clients))]
        while True:
            when, place = heapq.heappop(due)
            if self._over() if self._over else max(when, time.perf_counter()) >= self._until:
                break
            time.sleep(max(0.0, when - time.perf_counter()))
            began = time.perf_counter()
            pause_s = each(clients[place])
            self._taken.append(time.perf_counter() - began)
            heapq.heappush(due, (when + pause_s if pause_s else time.perf_counter(), place))
        done.wait()


def lease(folder: Path, workers: int, seconds: float, at_once: int) -> dict[str, float]:
    """Lease and report in a closed loop."""
    from edl.master.client import MasterClient
    from edl.proto import master_pb2 as pb

    done: list[int] = []

    def each(client: MasterClient) -> float:
        reply = client.get_task(20.0, at_once)
        tasks = [reply.task, *reply.more]
        for task in tasks:
            report = pb.ReportTaskRequest(
                task=task.id,
                attempt=task.attempt,
                done=True,
                records=task.end,
                slot_map_version=1,
            )
            if at_once > 1:
                client.report_later(report)
            else:
                client.report_task(report)
        done.append(len(tasks))
        return 0.0

    found = Load(folder, workers).run(seconds, each)
    return {**found, "tasks": sum(done), "tasks_per_s": sum(done) / found["wall_s"]}


def leave_open(folder: Path, workers: int, done: int, left_open: int) -> dict[str, float]:
    """Do so many tasks, and hold so many; then the master is killed."""
    from edl.master.client import MasterClient
    from edl.proto import master_pb2 as pb

    counts = {"done": 0, "held": 0}

    def each(client: MasterClient) -> float:
        reply = client.get_task(20.0, 32)
        tasks = [reply.task, *reply.more]
        finished = counts["done"] < done
        for task in tasks if finished else ():
            client.report_later(
                pb.ReportTaskRequest(
                    task=task.id, attempt=task.attempt, done=True, slot_map_version=1
                )
            )
        counts["done" if finished else "held"] += len(tasks)
        return 3600.0 if counts["held"] >= left_open else 0.0

    load = Load(folder, workers)
    load.run(0.0, each, over=lambda: counts["held"] >= left_open)
    return {"tasks": counts["done"], "held": counts["held"]}


def beat(folder: Path, workers: int, seconds: float) -> dict[str, float]:
    """Send each worker's heartbeats, as often as the master wants them, and nothing else."""

    def each(client: Any) -> float:
        reply = client.heartbeat(state="training", scalars={"loss": 0.5}, version=7)
        return reply.interval_s or 1.0

    return Load(folder, workers).run(seconds, each)


def measure(
    tree: Path, tasks: int, workers: int, seconds: float, how: Sequence[str]
) -> dict[str, float]:
    """Measure one master of this checkout under one load."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("EDL_BENCHMARK_DISK")) as name:
        env = {**os.environ, "PYTHONPATH": str(tree / ".pythonpath")}
        about = ["--folder", name, "--tasks", str(tasks), "--workers", str(workers)]
        command = [sys.executable, __file__, *about]
        master = subprocess.Popen([*command, "--serve"], env=env, stderr=subprocess.DEVNULL)
        try:
            told = subprocess.run(
                [*command, "--load", "--seconds", str(seconds), *how],
                env=env,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=seconds + 600,
            )
            status = (Path("/proc") / str(master.pid) / "status").read_text()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            return {**json.loads(told.stdout), "peak_mb": int(peak.split()[1]) / 1024}
        finally:
            master.kill()
            master.wait()


def restart(tasks: int, workers: int, done: int, left_open: int) -> None:
    """Measure how long a killed master is away, with so many tasks done and so many open."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("EDL_BENCHMARK_DISK")) as name:
        about = ["--folder", name, "--tasks", str(tasks), "--workers", str(workers)]
        command = [sys.executable, __file__, *about]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / ".pythonpath")}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([*command, "--serve"], env=env, stderr=subprocess.DEVNULL)

        master = start()
        try:
            how = ["--load", "--done", str(done), "--left_open", str(left_open)]
            told = subprocess.run([*command, *how], env=env, check=True, stdout=subprocess.PIPE)
            master.kill()
            master.wait()
            address = Path(name) / "address"
            address.unlink()
            began = time.perf_counter()
            master = start()
            while not address.exists():
                time.sleep(0.005)
            from edl.master.client import MasterClient

            client = MasterClient(address.read_text().split()[0], token=TOKEN, patience_s=60.0)
            status = client.status()[1]
            away_s = time.perf_counter() - began
            client.close()
        finally:
            master.kill()
            master.wait()
    counts = {name: status["tasks"][name] for name in ("done", "leased")}
    print(f"did and held {json.loads(told.stdout)}; the next master found {counts}")
    print(f"from its start to its first answer: {away_s:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tree", type=Path, action="append", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--at_once", type=int, default=32, help="tasks leased by one call")
    parser.add_argument("--beats", action="store_true", help="heartbeats alone")
    parser.add_argument("--restart", action="store_true", help="how long a killed master is away")
    parser.add_argument("--done", type=int, default=1_000_000, help="tasks, at a restart")
    parser.add_argument("--left_open", type=int, default=0, help="tasks, at a restart")
    parser.add_argument("--plot", type=Path, help="an SVG of what a task costs")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--load", action="store_true")
    given = parser.parse_args()
    if given.serve:
        serve(given.folder, given.tasks, given.workers)
        return
    if given.load:
        about = (given.folder, given.workers, given.seconds)
        if given.left_open:
            found = leave_open(given.folder, given.workers, given.done, given.left_open)
        else:
            found = beat(*about) if given.beats else lease(*about, given.at_once)
        print(json.dumps(found))
        return
    if given.restart:
        restart(given.tasks or TASKS[2], given.workers or 1000, given.done, 10_000)
        return
    trees = [Path(__file__).resolve().parents[1], *given.tree]
    print(
        "| tree | load | tasks an epoch | workers | calls a second | tasks a second | p50, p99 | ",
        end="",
    )
    print("CPU us a task | of a core | MB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    loads = [
        (tasks, workers, ("--at_once", str(given.at_once)))
        for tasks in ([given.tasks] if given.tasks else TASKS)
        for workers in ([given.workers] if given.workers else WORKERS)
    ]
    if given.beats:
        loads = []
    loads += [
        (TASKS[1], workers, ("--beats",))
        for workers in ([given.workers] if given.workers else WORKERS)
    ]
    cost: dict[tuple[str, int, int], float] = {}
    for tasks, workers, how in loads:
        for tree in trees:
            try:
                found = measure(tree, tasks, workers, given.seconds, how)
            except subprocess.CalledProcessError:
                print(
                    f"| {tree.name} | {' '.join(how).strip('-')} | {tasks:,} | {workers:,} ", end=""
                )
                print("| no answer in a minute | | | | | |", flush=True)
                continue
            done = found.get("tasks", 0)
            cpu_us = f"{1e6 * found['cpu_s'] / done:.0f}" if done else "-"
            print(
                f"| {tree.name} | {' '.join(how).strip('-')} | {tasks:,} | {workers:,} "
                f"| {found['calls_per_s']:,.0f} | {found.get('tasks_per_s', 0):,.0f} "
                f"| {found['p50_ms']:.1f}, {found['p99_ms']:.1f} ms | {cpu_us} "
                f"| {100 * found['cpu_s'] / found['wall_s']:.0f} % | {found['peak_mb']:.0f} |",
                flush=True,
            )
            if done:
                cost[tree.name, tasks, workers] = 1e6 * found["cpu_s"] / done
    if given.plot:
        given.plot.write_text(picture(cost))


def picture(cost: dict[tuple[str, int, int], float]) -> str:
    """Draw CPU microseconds of the master for a task, by tasks (64 workers) and by workers."""
    from benchmarks import page

    panels = []
    for title, across, place, fixed in (
        ("master: CPU us a task, 64 workers", "tasks of an epoch", 1, (2, 64)),
        ("master: CPU us a task, 100,000 tasks", "workers", 2, (1, TASKS[1])),
    ):
        lines: dict[str, list[tuple[float, float]]] = {}
        for key, value in cost.items():
            if key[fixed[0]] == fixed[1]:
                lines.setdefault(str(key[0]), []).append((float(key[place]), value))  # type: ignore[arg-type]
        panels.append(page.Panel(title, across, lines))
    return page.picture(panels)


if __name__ == "__main__":
    main()
