"""ElasticDL's task dispatcher out of its wheel, as its master has it, behind a unix socket.

    python -m benchmarks.faults.elasticdl_tasks WHEEL SOCKET

Runs in TensorFlow's environment (a later one than it asks for). What its servicer and its instance
manager call is offered to the workers and to whoever kills them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any

from benchmarks.faults import events

_KEY = b"faults"


class Offered(BaseManager):
    """A way to the dispatcher of another process: `tasks()`."""


def main(wheel: str, socket: str) -> None:
    # Its generated messages are older than today's protobuf wants them to be.
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    sys.path.insert(0, wheel)
    tasks = _Tasks()
    Offered.register("tasks", callable=lambda: tasks)
    server = Offered(socket, _KEY).get_server()
    events.say("ready")
    server.serve_forever()


@dataclass
class _Result:
    task_id: int = 0
    exec_counters: dict[str, int] = field(default_factory=dict)


class _Tasks:
    def __init__(self) -> None:
        from elasticdl.proto import elasticdl_pb2
        from elasticdl.python.master.task_dispatcher import _TaskDispatcher

        # Its map of counters is not one to today's protobuf, which the rest of the message is for.
        elasticdl_pb2.ReportTaskResultRequest = _Result
        shards = {"records": (0, events.RECORDS)}
        self._tasks = _TaskDispatcher(shards, {}, {}, events.TASK, 1)

    def get(self, worker: int) -> tuple[int, int, int] | None:
        """Return number, first record and end of a task; None where there is none now."""
        number, task = self._tasks.get(worker)
        return (number, task.start, task.end) if task is not None else None

    def done(self, number: int) -> None:
        self._tasks.report(_Result(number), True)

    def lose(self, worker: int) -> None:
        self._tasks.recover_tasks(worker)

    def finished(self) -> bool:
        return bool(self._tasks.finished())


def connect(socket: str) -> Any:
    """Return the dispatcher, which is in a process of its own."""
    Offered.register("tasks")
    offered = Offered(socket, _KEY)
    offered.connect()
    return offered.tasks()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:3])
