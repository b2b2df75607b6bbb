"""Programs that say what happens to them in lines of JSON (events.py), under deadlines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.faults.books import Stall, stall

HERE = Path(__file__).parents[2]  # the repository's root: where programs run
_END_S = 10.0

Event = dict[str, Any]


class Unavailable(Exception):
    """A rival that is not there, or does not run; says why."""


class Program:
    """A process in a session of its own, and what it has said so far."""

    def __init__(self, command: Sequence[object], more: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        self.events: list[Event] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths(), **(more or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self._reader.join(_END_S)
        self._errors.close()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; one that is gone hears nothing."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]

    def wait(self, until: Callable[[list[Event]], bool], timeout_s: float) -> bool:
        """Wait until it has come to that; return False where it ended before, or not in time."""
        give_up = time.monotonic() + timeout_s
        with self._news:
            while not until(self.events):
                left = give_up - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    return until(self.events)
                self._news.wait(min(left, 1.0))  # an end of its output wakes it as well
        return True

    def said(self, event: str) -> list[Event]:
        with self._news:
            return [each for each in self.events if each["event"] == event]

    def must_say(self, event: str, timeout_s: float) -> Event:
        """Return the first such event. Raises Unavailable where it does not come in time."""
        if not self.wait(lambda events: any(e["event"] == event for e in events), timeout_s):
            why = "it ended" if self.process.poll() is not None else f"waited {timeout_s:g} s"
            raise Unavailable(f"no word of {event!r} ({why}): {self.last_words()}")
        return self.said(event)[0]

    def ended(self, timeout_s: float) -> bool:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(_END_S)
        return True

    def kill(self) -> float:
        """Send SIGKILL to all that is left of its session; return when."""
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return at

    def last_words(self) -> str:
        """Return the last line of its standard error that says something, and the place."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        places = re.findall(r'File "(?:.*/)?(.+?)", line (\d+)', "\n".join(lines))
        place = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
        if not lines:
            return f"without a word, exit code {self.process.poll()}"
        return f"{lines[-1][:160]}{place}"

    def stall(self, since: float, until: float | None = None) -> Stall | None:
        """Return the longest stall of its steps; `until` as books.stall has it."""
        return stall([event["at"] for event in self.said("step")], since, until)

    def _read(self) -> None:
        for line in self.process.stdout:  # type: ignore[union-attr]
            with contextlib.suppress(json.JSONDecodeError):  # libraries print to it too
                event = json.loads(line)
                if isinstance(event, dict):
                    with self._news:
                        self.events.append(event)
                        self._news.notify_all()
        with self._news:
            self._news.notify_all()


def paths() -> str:
    """Return a PYTHONPATH that finds `benchmarks`, and `edl` where it is not installed."""
    return os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))


def home(peers: Path, name: str) -> Path:
    """Return where setup.py put a rival. Raises Unavailable."""
    failed = peers / f"{name}.failed"
    if failed.exists():
        raise Unavailable(failed.read_text().strip())
    if not (peers / name).is_dir():
        raise Unavailable(f"not set up: python -m benchmarks.peers.setup --into FOLDER {name}")
    return (peers / name).absolute()


def records_of(*programs: Program) -> set[int]:
    """Return the records of all steps that the programs went on from."""
    return {
        record
        for program in programs
        for step in program.said("step")
        for record in range(step["first"], step["end"])
    }
