"""A small real job, held at its failpoints while somebody strikes it.

`Scene` is what a fault acts on: who runs, and the means to kill, stop, terminate, cut off and
damage. Triggers wait for points; the one of the phase strikes, and a fault may set more of them
(`then`): kill the replacement while it recovers, say.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from ..common import faults, unreliable
from ..common.errors import EdlError
from ..common.places import Place
from ..common.settings import JobSettings
from ..jobs.local import LocalJob
from . import followed
from .controller import CONTINUE, OFF, Answer, Controller, Hit
from .kept import Kept

REGISTERS = ("worker.register", "ps.register", "teacher.register", "consumer.register")
POINTS = (
    *REGISTERS,
    "worker.pull",
    "worker.compute",
    "worker.evaluate",
    "ps.recover",
    "ps.push",
    "ps.applied",
    "ps.snapshot.begin",
    "ps.snapshot.mid",
    "ps.snapshot.commit",
    "master.requeue",
    "master.epoch_end",
    "master.shutdown",
    "master.recover",
    "master.cut",
    "ps.delta.begin",
    "ps.delta.mid",
    "master.delta",
    "master.delta_written",
    "serve.generation",
)
_START_S = 120.0  # of a consumer, on a busy machine
_KEEP_S = 0.05
_END_S = 10.0  # for processes to be gone after SIGKILL


class NotMeaningful(Exception):
    """A strike has nothing to strike at this moment; the message says why."""


@dataclass
class Trigger:
    """A thing to do at the `left`-th hit of one of the points for which `when` holds."""

    points: tuple[str, ...]
    do: Callable[[Hit], Answer | None]
    left: int = 1
    when: Callable[[Hit], bool] = lambda _hit: True


@dataclass
class Scene:
    """A job under faults. `with Scene(...) as scene: scene.wait(60)`.

    Where it leaves deltas, a consumer is there before it begins (consumer.py), and is started again
    whenever it was killed.
    """

    folder: Path
    settings: JobSettings
    random: random.Random
    pids: dict[str, dict[int, int]] = field(
        default_factory=lambda: {"worker": {}, "ps": {}, "teacher": {}, "consumer": {}}
    )
    struck: float | None = None  # when, by the wall clock that the logs have
    hit: set[tuple[str, int]] = field(default_factory=set)  # whom a signal reached
    why_not: str = ""  # there was nothing to strike
    prelude: str = ""  # a pattern of log lines that are not about the fault

    def __post_init__(self) -> None:
        self._triggers: list[Trigger] = []
        self._timers: list[threading.Timer] = []
        # A socket's path is short, and a folder of a test may not be.
        self._place = tempfile.TemporaryDirectory(prefix="edl-")
        place = Path(self._place.name)
        self._net = place / "net"
        self._controller = Controller(place / "socket", POINTS, self._decide)
        self._consumer: Kept | None = None

    # -- the job

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        (self.folder / "logs").mkdir()
        (self.folder / "settings.json").write_text(self.settings.to_json())
        token = secrets.token_hex(16)
        (self.folder / "token").write_text(token)
        self._controller.__enter__()
        own = {
            "EDL_TOKEN": token,
            "EDL_JOB_DIR": str(self.folder),
            "EDL_JOB_NAME": self.settings.job_name,
            "OMP_NUM_THREADS": "1",
            faults.VARIABLE: self._controller.variable,
            unreliable.VARIABLE: str(self._net),
        }
        env = {**os.environ, **own}
        if self.settings.delta_dir:
            self._begin_to_follow(env)
        with open(self.folder / "logs" / "master.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edl.master", "--job-dir", str(self.folder)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        for timer in self._timers:
            timer.cancel()
        self.process.kill()
        self.process.wait(_END_S)
        if self._consumer is not None:
            self._consumer.end()
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in left:
            _send(process.pid, signal.SIGKILL)
        psutil.wait_procs(left, _END_S)
        self._controller.__exit__()
        self._place.cleanup()
        if self._controller.errors:
            raise self._controller.errors[0]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("EDL_JOB_DIR") == str(self.folder)
        except psutil.Error:
            return False

    def wait(self, timeout_s: float) -> int | None:
        """Return the job's exit code; None where it does not end in time."""
        self._keep(lambda: self.process.poll() is not None, timeout_s)
        return self.process.poll()

    @property
    def published(self) -> Path:
        """The folder in which the consumer writes down what it publishes."""
        return self.folder / "published"

    def catch_up(self, timeout_s: float) -> None:
        """Wait, at most so long, until the consumer has published the last cut of the job."""
        newest = followed.newest(Place(self.settings.delta_dir))

        def is_there() -> bool:
            last = next(followed.read(self.published), None)
            return newest is None or (last is not None and last.cut == newest.cut)

        self._keep(is_there, timeout_s)

    def _begin_to_follow(self, env: dict[str, str]) -> None:
        command = ["-m", "edl.chaos.consumer", self.settings.delta_dir, str(self.published)]
        env = {**env, "EDL_ROLE": "consumer", "EDL_INDEX": "0"}
        self._consumer = Kept(command, env, self.folder / "logs" / "consumer.log")
        if not self._keep(lambda: bool(self.alive("consumer")), _START_S):
            raise EdlError(f"a consumer of deltas did not begin in {_START_S:g} s")

    def _keep(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Keep a consumer running until something holds; False where it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                return False
            if self._consumer is not None:
                self._consumer.keep()
            time.sleep(_KEEP_S)
        return True

    def status(self) -> dict[str, Any]:
        """Return the job's last status."""
        try:
            return LocalJob(self.folder).status()
        except EdlError as error:
            return {"message": str(error)}

    # -- striking

    def at(
        self,
        points: Iterable[str],
        do: Callable[[Hit], Answer | None],
        nth: int = 1,
        when: Callable[[Hit], bool] = lambda _hit: True,
    ) -> None:
        """Call `do` at the `nth` hit of one of these points for which `when` holds."""
        self._triggers.append(Trigger(tuple(points), do, nth, when))

    @property
    def pending(self) -> list[str]:
        """Return the points that were waited for and not reached."""
        return [point for trigger in self._triggers for point in trigger.points]

    def later(self, after_s: float, do: Callable[[], object]) -> None:
        timer = threading.Timer(after_s, do)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def alive(self, role: str) -> dict[int, int]:
        """Return the pids of the replicas that run, by index."""
        if role == "master":
            address = LocalJob(self.folder).address()
            found = {0: address[1]} if address else {}
        else:
            found = self.pids[role]
        return {index: pid for index, pid in sorted(found.items()) if _runs(pid)}

    def victim(self, role: str, hit: Hit) -> int:
        """Return the index of whom to strike: the one at the point, if it has that role, or any."""
        there = self.alive(role)
        if not there:
            raise NotMeaningful(f"no {role} runs at this moment")
        return hit.index if hit.role == role else self.random.choice(list(there))

    def send(self, role: str, index: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a replica; return its pid."""
        pid = self.alive(role).get(index)
        if pid is None:
            raise NotMeaningful(f"{role} {index} does not run at this moment")
        _send(pid, number)
        self.hit.add((role, index))
        return pid

    def kill(self, hit: Hit) -> None:
        """Kill the process that has reached a point."""
        _send(hit.pid, signal.SIGKILL)
        self.hit.add((hit.role, hit.index))

    def send_all(self, role: str, number: signal.Signals = signal.SIGKILL) -> None:
        there = self.alive(role)
        if not there:
            raise NotMeaningful(f"no {role} runs at this moment")
        for index in there:
            self.send(role, index, number)

    def sleep(self, role: str, index: int, for_s: float) -> None:
        """Send SIGSTOP, and SIGCONT after that time."""
        pid = self.send(role, index, signal.SIGSTOP)
        self.later(for_s, lambda: _send(pid, signal.SIGCONT))

    def teach(self, index: int, how: str) -> None:
        """Have a teacher of the counting job do so from now on (counting.py)."""
        folder = Path(self.settings.envs["TEACH"])
        folder.mkdir(exist_ok=True)
        (folder / str(index)).write_text(how)

    def network(self, rules: str, for_s: float) -> None:
        """Let the network follow these rules for so many seconds."""
        self._net.write_text(f"seed={self.random.randrange(1 << 30)};{rules}")
        self.later(for_s, lambda: self._net.write_text(""))

    def snapshots(self, index: int, suffix: str = ".link") -> list[Path]:
        """Return the files of a server's snapshots, the newest last; each ends with its link."""
        root = Path(self.settings.snapshot_dir or self.folder / "snapshots")
        files = [path for path in root.glob(f"*/shard-{index}/*/*{suffix}") if path.is_file()]
        return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _decide(self, hit: Hit) -> Answer:
        if hit.point in REGISTERS:
            self.pids[hit.role][hit.index] = hit.pid
        for trigger in [t for t in self._triggers if hit.point in t.points and t.when(hit)]:
            trigger.left -= 1
            if trigger.left:
                continue
            self._triggers.remove(trigger)
            try:
                return trigger.do(hit) or CONTINUE
            except NotMeaningful as error:
                self.why_not = str(error)
                self._triggers.clear()
        return CONTINUE if self._triggers or hit.point in REGISTERS else OFF


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
