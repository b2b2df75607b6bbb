"""The place where a master lives: this machine, or a pod."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ..common import storage
from ..common.errors import JobError
from ..durable.schema import Json
from ..proto import master_pb2 as pb
from ..runtime.base import OnReport, Runtime
from ..runtime.local import LocalRuntime
from ..runtime.nursery import Nursery
from .core import EXIT_INTERRUPTED
from .master import Master

if TYPE_CHECKING:
    from ..k8s.home import Home as Pod


class Home(Protocol):
    """The place where a master lives: it tells what its user wants, and runs its processes."""

    def serve(self, master: Master) -> None:
        """Hand on, from now on, what the user wants of the job."""
        ...

    def start_runtime(self, report: OnReport, address: str) -> Runtime:
        """Return what runs the processes, which find the master at `address`."""
        ...

    def show(self, status: dict[str, Json]) -> None:
        """Show the status to those who do not ask the master for it."""
        ...


class LocalHome:
    """A home on this machine: signals stop the job, whose processes are forked from a nursery."""

    def __init__(self, job_dir: Path, nursery: Nursery | None) -> None:
        self._job_dir = job_dir
        self._nursery = nursery

    def serve(self, master: Master) -> None:
        catch_signals(master, self._job_dir)

    def start_runtime(self, report: OnReport, address: str) -> Runtime:
        if self._nursery is None:
            raise JobError(
                "a master on this machine needs a nursery: start the job with `edl train`"
            )
        return LocalRuntime(
            self._job_dir, master_address=address, report=report, nursery=self._nursery
        )

    def show(self, status: dict[str, Json]) -> None:
        """Do nothing: whoever wants to know asks the master."""


class PodHome:
    """A pod: the cluster says what the user wants, and runs the processes as pods of their own."""

    def __init__(self, pod: Pod, nursery: Nursery | None) -> None:
        self._pod = pod
        self._nursery = nursery

    def serve(self, master: Master) -> None:
        if self._nursery is not None:
            self._nursery.close()  # it was for the check of the definition alone
        front = master.front
        has_teachers = master.core.settings.most_teachers > 0

        def scale(workers: int, servers: int, teachers: int, most: int) -> None:
            request = pb.ScaleRequest(num_workers=workers, num_servers=servers)
            if has_teachers:
                request.num_teachers, request.max_teachers = teachers, most
            front.scale(request)

        self._pod.serve(scale, front.stop, master.fence, lambda each: front.checkpoint(each, 0.0))
        end_with_pod(master)

    def start_runtime(self, report: OnReport, _address: str) -> Runtime:
        return self._pod.start_runtime(report)

    def show(self, status: dict[str, Json]) -> None:
        self._pod.show(status)


def end_with_pod(master: Master) -> None:
    """Have a pod that is told to go take nothing with it.

    Its successor goes on with all that runs.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=master.fence, args=("this pod is told to go",), daemon=True).start()

    signal.signal(signal.SIGTERM, leave)


def catch_signals(master: Master, job_dir: Path) -> None:
    """Stop the job in order at SIGTERM or SIGINT; the second one ends it at once."""
    asked = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        # Not from the handler itself: it may have interrupted the holder of a lock.
        act = end_now if asked.is_set() else lambda: master.front.stop(signal.Signals(number).name)
        asked.set()
        threading.Thread(target=act, daemon=True).start()

    def end_now() -> None:
        master.abort()
        ended = {"state": "stopped", "exit_code": EXIT_INTERRUPTED, "message": "killed"}
        result = json.dumps({"job_name": master.core.settings.job_name, **ended})
        storage.write_file(job_dir / "result.json", result.encode())
        os._exit(EXIT_INTERRUPTED)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
