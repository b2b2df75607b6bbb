"""DLRover's task manager in process, with workers that are played; runs in DLRover's environment.

    python -m benchmarks.faults.dlrover_tasks worker|same_task|lost_reply|zombie HANG_S

Its parameter servers need TensorFlow's estimators and a cluster, so what is counted is which
records a worker put into an update. A worker that dies is what its master makes of that event
(`recover_tasks`), at once. Tasks time out after 1 s, as far as they do.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.faults import events

_NAME = "records"
_HALF = events.BATCHES // 2


class Master:
    """The calls that its servicer makes of the task manager."""

    def __init__(self) -> None:
        from dlrover.proto import elastic_training_pb2
        from dlrover.python.common import comm
        from dlrover.python.master.monitor.perf_monitor import PerfMonitor
        from dlrover.python.master.shard.dataset_splitter import new_dataset_splitter
        from dlrover.python.master.shard.task_manager import TaskManager

        splitter = new_dataset_splitter(False, events.TASK, events.RECORDS, 1, _NAME)
        self._result = comm.TaskResult
        self._manager = TaskManager(1, PerfMonitor())
        training = elastic_training_pb2.TRAINING
        self._manager.new_dataset(events.BATCH, events.RECORDS, _NAME, splitter, training)
        self._manager.start()
        self.counts = [0] * events.RECORDS

    def get(self, worker: int) -> Any:
        """Return a task, None where there is none now."""
        task = self._manager.get_dataset_task("worker", worker, _NAME)
        return task if task is not None and task.task_id >= 0 else None

    def apply(self, task: Any, first: int = 0, end: int = events.BATCHES) -> None:
        for start, stop in events.batches(task.shard.start, task.shard.end)[first:end]:
            for record in range(start, stop):
                self.counts[record] += 1

    def done(self, task: Any) -> bool:
        """Report a task as done; return whether that is accepted."""
        accepted, _ = self._manager.report_dataset_task(self._result(_NAME, task.task_id), True)
        return accepted is not None

    def lose(self, worker: int) -> None:
        self._manager.recover_tasks("worker", worker)

    def finish(self, worker: int) -> None:
        """Do all that there is."""
        while (task := self.get(worker)) is not None:
            self.apply(task)
            self.done(task)

    def finished(self) -> bool:
        return bool(self._manager.finished())


def worker(master: Master, _hang_s: float) -> str:
    master.apply(master.get(0), 0, _HALF)
    master.lose(0)
    master.finish(1)
    return "the task is done again from its beginning"


def same_task(master: Master, _hang_s: float) -> str:
    victim = master.get(0)
    for kill in range(4):
        master.apply(victim, 0, _HALF)
        master.lose(kill)
        while (task := master.get(kill + 1)) is not None and task.task_id != victim.task_id:
            master.apply(task)
            master.done(task)
        if task is None:
            return f"the task is dropped after {kill + 1} kills, with a line in the log"
    master.apply(victim)
    master.done(victim)
    return "the task is done again from its beginning"


def lost_reply(master: Master, hang_s: float) -> str:
    master.get(0)  # the answer is lost; its client asks again
    master.finish(0)
    give_up = time.monotonic() + hang_s
    while not master.finished() and time.monotonic() < give_up:
        time.sleep(0.5)
        master.finish(0)  # a worker that is told to wait asks again
    return "the task waits for whoever never heard of it"


def zombie(master: Master, _hang_s: float) -> str:
    stopped = master.get(0)
    master.apply(stopped, 0, _HALF)
    master.lose(0)
    while (task := master.get(1)).task_id != stopped.task_id:
        master.apply(task)
        master.done(task)
    master.apply(task, 0, _HALF)
    master.apply(stopped, _HALF)
    zombies = master.done(stopped)
    master.apply(task, _HALF)
    owners = master.done(task)
    words = {True: "accepted", False: "refused"}
    return f"the stopped worker's report is {words[zombies]}, its successor's {words[owners]}"


def main(fault: str, hang_s: float) -> None:
    master = Master()
    outcome = {f.__name__: f for f in (worker, same_task, lost_reply, zombie)}[fault](
        master, hang_s
    )
    events.say("end", counts=master.counts, outcome=outcome, finished=master.finished())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
