"""What loggers have of a run, read as their own users would: the steps of each series, in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil

from edl.common.settings import JobSettings
from edl.jobs.local import kill
from edl.jobs.loggers import wait_for_end
from edl.jobs.start import go_on, start

Series = dict[str, list[int]]
WAIT_S = 120.0


class LoggedJob:
    """A job as the command line starts it, with its loggers. `with` ends all that is left of it."""

    def __init__(self, **settings: Any) -> None:
        self.job, self._child = start(JobSettings(**settings))
        self._revision = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        supervisors = self._loggers()
        kill(self.job, self._child)
        for process in (*supervisors, *(c for s in supervisors for c in s.children())):
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(supervisors, WAIT_S)

    @property
    def folder(self) -> Path:
        return self.job.folder

    def watch(self, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Follow the status until `until(status)`; return that status."""
        deadline = time.monotonic() + WAIT_S
        while self.job.address() is None:
            assert time.monotonic() < deadline, self.job.last_words()
            assert self._child.poll() is None, self.job.last_words()
            time.sleep(0.02)
        with contextlib.closing(self.job.client(WAIT_S)) as client:
            while True:
                self._revision, status = client.status(self._revision, 1.0)
                if until(status):
                    self._revision = 0
                    return status
                assert time.monotonic() < deadline, status

    def strike(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def strike_writer(self) -> None:
        """Kill the process that writes, which is started again."""
        (supervisor,) = self._loggers()
        before = wait_for(lambda: [c.pid for c in supervisor.children()])
        self.strike(before[0])
        wait_for(lambda: [c for c in supervisor.children() if c.pid != before[0]])

    def cut_off(self) -> None:
        """Kill all processes of the job at once, as a power cut does: with its loggers."""
        for supervisor in self._loggers():
            for process in (supervisor, *supervisor.children()):
                process.kill()
        kill(self.job, self._child)

    def resume(self) -> None:
        """Go on with it, as `edl train --resume`."""
        self.job, self._child = go_on(self.job)

    def wait(self) -> int:
        """Return the exit code, when all has been told."""
        code = self._child.wait(WAIT_S)
        assert [] == [text for text in wait_for_end(self.folder, WAIT_S) if "still write" in text]
        wait_for(lambda: not self._loggers())
        return code

    def events(self) -> list[str]:
        return [each["text"] for each in self.job.status()["events"]]

    def log(self) -> str:
        return (self.folder / "logs" / "loggers.log").read_text()

    def _loggers(self) -> list[psutil.Process]:
        """Return the supervisors of the processes that write."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[-3:] == ["edl.loggers", "--job-dir", str(self.folder)]:
                    found.append(process)
        return found


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def rises(series: Series) -> None:
    """Check that every series rises strictly: nothing twice, nothing back."""
    for name, steps in series.items():
        assert sorted(set(steps)) == steps, (name, steps)


def jsonl(path: Path) -> Series:
    found: Series = {}
    for line in map(json.loads, path.read_text().splitlines()):
        for name in line.keys() - {"step", "t"} if "step" in line else ():
            found.setdefault({"event": "events"}.get(name, name), []).append(line["step"])
    return found


def tensorboard(folder: Path) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), {"scalars": 0, "tensors": 0})
    read.Reload()
    tags = read.Tags()
    texts = {tag: [each.step for each in read.Tensors(tag)] for tag in tags["tensors"]}
    texts = {tag: steps for tag, steps in texts.items() if not tag.startswith("settings/")}
    return texts | {tag: [each.step for each in read.Scalars(tag)] for tag in tags["scalars"]}


def mlflow(uri: str, experiment: str = "edl") -> tuple[Any, Series]:
    """Return the one run, and its series."""
    from mlflow import MlflowClient

    client: Any = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    series = {
        name: [each.step for each in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    events = sorted(tag for tag in run.data.tags if tag.startswith("edl.event."))
    return run, {**series, "events": [int(tag.rpartition(".")[2]) for tag in events]}


def trackio(folder: Path, project: str = "edl") -> tuple[str, Series]:
    """Return the name of the one run, and its series. Its store is read in its own order."""
    import sqlite3

    found: Series = {}
    with contextlib.closing(sqlite3.connect(folder / f"{project}.db")) as connection:
        asked = "select run_name, step, metrics from metrics order by id"
        rows = connection.execute(asked).fetchall()
    (name,) = {row[0] for row in rows}
    for _, step, metrics in rows:
        for series in json.loads(metrics):
            found.setdefault(series, []).append(step)
    return name, found


def wandb(folder: Path) -> tuple[set[str], Series]:
    """Return the ids of all runs in a folder, and the series over all its offline parts.

    `_step` is wandb's own step of each row; the others are over `version`.
    """
    from wandb.proto import wandb_internal_pb2

    read: Any = wandb_internal_pb2
    ids, found = set(), Series()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = read.Record.FromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                items = record.history.item
                row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                found.setdefault("_step", []).append(record.history.step.num)
                for name in row:
                    if not name.startswith("_") and name != "version":
                        found.setdefault(name, []).append(row["version"])
    return ids, found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB's format, after its header of 7 bytes.

    A process that was killed may have left half of one at the end.
    """
    at, block, record = 7, 1 << 15, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if not kind:
            return
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(data):  # whole, or its last part
            yield record
            record = b""
