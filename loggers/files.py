"""Loggers into files: lines of JSON, and TensorBoard's event files, written without TensorBoard.

A file is ours alone, and its length is kept with the cursor: what a process that was killed wrote
after that is cut off and written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..common import event_file, finite
from .core import EVENTS, Known, Told
from .logger import Run, State


class _File:
    """A file that grows, as the cursor knows it. `output`: the folder of --output; None: none."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._file: BinaryIO | None = None
        self._state: State = {}

    def open(self, run: Run, state: State) -> Known:
        path = self._path(run, self._output or run.folder, state)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._run = run
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        length = state.get("length") if state.get("name") == path.name else None
        there = self._file.seek(0, os.SEEK_END)
        if length is not None and length < there:
            self._file.truncate(length)
        length = there if length is None else min(length, there)
        self._state = {"job": "", **state, "name": path.name, "length": length}
        return {}

    def write(self, told: Sequence[Told]) -> bool:
        assert self._file is not None
        parts = []
        if self._state["job"] != self._run.job:
            parts.append(self._head(self._run, self._state["length"] == 0))
        parts += [self._piece(one) for one in told]
        whole = b"".join(parts)
        view = memoryview(whole)
        while view:
            view = view[self._file.write(view) :]
        os.fsync(self._file.fileno())  # before the cursor, which says that it is there
        length = self._state["length"] + len(whole)
        self._state = {"name": self._state["name"], "length": length, "job": self._run.job}
        return True

    def state(self) -> State:
        return self._state

    def finish(self, outcome: str) -> None:
        assert self._file is not None
        if self._state.get("end") != outcome:  # else nothing has come since it was said
            self._file.write(end := self._end(outcome))
            length = self._state["length"] + len(end)
            self._state = {**self._state, "length": length, "end": outcome}
        self._file.close()

    def _path(self, run: Run, base: Path, state: State) -> Path:
        raise NotImplementedError

    def _head(self, run: Run, is_new: bool) -> bytes:
        raise NotImplementedError

    def _piece(self, told: Told) -> bytes:
        raise NotImplementedError

    def _end(self, outcome: str) -> bytes:
        raise NotImplementedError


class Jsonl(_File):
    """Lines of JSON: the settings of each job, points by step, events, and how the job ended.

    Any language reads them: see common/finite.py.
    """

    def _path(self, run: Run, base: Path, _state: State) -> Path:
        return base / f"{run.id}.jsonl"

    def _head(self, run: Run, _is_new: bool) -> bytes:
        return _line({"run": run.id, "job": run.job, "settings": run.params, "tags": run.tags})

    def _piece(self, told: Told) -> bytes:
        about = {"step": told.step, "t": told.t}
        return _line({**about, "event": told.text} if told.text else {**about, **told.values})

    def _end(self, outcome: str) -> bytes:
        return _line({"job": self._run.job, "end": outcome})


def _line(what: Any) -> bytes:
    return finite.dumps(what).encode() + b"\n"


class TensorBoard(_File):
    """An event file in a folder of the run: curves, and settings and events as text."""

    def _path(self, run: Run, base: Path, state: State) -> Path:
        name = state.get("name") or event_file.name_of_file(run.began)
        return base / "tensorboard" / run.id / name

    def _head(self, run: Run, is_new: bool) -> bytes:
        about = {**run.tags, **run.params}
        rows = "".join(f"| {name} | `{json.dumps(value)}` |\n" for name, value in about.items())
        words = f"| | |\n|---|---|\n{rows}"
        head = event_file.head(run.began) if is_new else b""
        return head + event_file.text(f"settings/{run.job}", words, 0, run.began)

    def _piece(self, told: Told) -> bytes:
        return b"".join(self._records(told, self._run.began + told.t))

    def _records(self, told: Told, wall: float) -> Iterator[bytes]:
        if told.text:
            yield event_file.text(EVENTS, told.text, told.step, wall)
        for name, value in told.values.items():
            yield event_file.scalar(name, value, told.step, wall)

    def _end(self, _outcome: str) -> bytes:
        return b""
