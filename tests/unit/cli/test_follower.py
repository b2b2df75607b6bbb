"""One follower for all jobs: what a source yields is drawn in its order, by one thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import pytest

from edl.common import paths
from edl.common.errors import JobError, Unreachable
from edl.jobs.follow import End, Interrupt, Note, follow
from edl.jobs.job import Status
from edl.jobs.local import LocalJob
from edl.jobs.local_source import LocalSource, how_it_died


class Screen:
    """A screen that remembers what it was shown, and by how many threads."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.threads: set[int] = set()

    def __enter__(self) -> Self:
        self.shown.append("open")
        return self

    def __exit__(self, *exception: object) -> None:
        self.shown.append("close")

    def _add(self, what: Any) -> None:
        self.shown.append(what)
        self.threads.add(threading.get_ident())

    def show(self, status: Status) -> None:
        self._add(status)

    def note(self, text: str) -> None:
        self._add(text)

    def end(self, status: Status, exit_code: int) -> None:
        self._add((status, exit_code))


class Source:
    """A source that tells of `events` from a thread; `answers` says what each is shown as."""

    def __init__(self, events: list[object], answers: Callable[[object], list[Any]]) -> None:
        self.events, self.answers, self.closed = events, answers, False

    def open(self, put: Callable[[object], None]) -> None:
        threading.Thread(target=lambda: [put(event) for event in self.events]).start()

    def take(self, event: object) -> Iterator[Any]:
        yield from self.answers(event)

    def close(self) -> None:
        self.closed = True


def test_all_is_drawn_in_order_by_one_thread_until_the_end() -> None:
    screen = Screen()
    shown = {1: [Note("hello")], 2: [], 3: [{"state": "running"}, Note("soon")]}
    shown[4] = [End({"state": "done"}, 3), Note("never drawn")]
    source = Source([1, 2, 3, 4, 3], lambda event: shown[event])

    code = follow(source, screen)

    drawn = ["open", "hello", {"state": "running"}, "soon", ({"state": "done"}, 3), "close"]
    assert (3, drawn) == (code, screen.shown)
    assert ({threading.get_ident()}, True) == (screen.threads, source.closed)


def test_an_end_without_a_status_draws_nothing() -> None:
    screen = Screen()

    code = follow(Source([1], lambda event: [End(None, 130)]), screen)

    assert (130, ["open", "close"]) == (code, screen.shown)


def test_an_error_of_the_source_closes_screen_and_source() -> None:
    def fail(event: object) -> list[Any]:
        raise JobError("it was deleted")

    screen, source = Screen(), Source([1], fail)

    with pytest.raises(JobError, match="it was deleted"):
        follow(source, screen)

    assert (["open", "close"], True) == (screen.shown, source.closed)


def test_signals_are_events_and_mean_what_they_did_before_once_it_is_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    taken: list[object] = []

    def answer(event: object) -> list[Any]:
        taken.append(event)
        if event == "ready":
            os.kill(os.getpid(), signal.SIGTERM)
            return []
        return [End(None, 130)] if isinstance(event, Interrupt) else []

    assert 130 == follow(Source(["ready"], answer), Screen())

    assert ["ready", Interrupt()] == [taken[0], taken[-1]]
    assert before == signal.getsignal(signal.SIGTERM)


class Deaf:
    """A master that no call reaches."""

    def stop(self, _reason: str) -> None:
        raise Unreachable("the master did not answer within 3 s")

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class DeafJob:
    """A job whose master serves where nobody can call it."""

    name = "deaf"

    def address(self) -> tuple[str, int]:
        return "127.0.0.1:1", 1

    def client(self) -> Deaf:
        return Deaf()


class Child:
    """The process that runs the master."""

    terminated = False

    def terminate(self) -> None:
        self.terminated = True


def test_the_first_interrupt_reaches_a_master_also_where_no_call_does() -> None:
    told: SimpleQueue[object] = SimpleQueue()
    job, child = DeafJob(), Child()
    source = LocalSource(job, child)  # type: ignore[arg-type]
    source._put = told.put

    noted = list(source.take(Interrupt()))

    after = told.get(timeout=300)
    assert [True, True] == ["stopping" in str(noted), "it is told by SIGTERM" in str(after)]
    assert child.terminated


def test_a_master_whose_log_had_no_room_is_told_of_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path) -> str:
        return "/disk cannot be written (No space left on device)"

    job = LocalJob(tmp_path / "j")
    job.log.parent.mkdir(parents=True)
    job.log.write_text("")
    monkeypatch.setattr(paths, "why_unwritable", full)

    assert (
        "The master of job 'j' exited with 1 before the job was over: /disk cannot be written "
        "(No space left on device): make room there." == str(how_it_died(job, 1))
    )
