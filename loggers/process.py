"""The process that writes: a thread for each logger, and one that waits for the job's end.

A file has no event in the standard library, and the master, whose status has one, makes four a
second: a look at the history every two seconds, as often as it gets a point, costs nobody anything
and needs no master. The job's end is an event: its lock is free.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..common import log as logs
from ..common import paths
from ..common.foreign import read_plain
from ..common.identity import Identity
from ..common.locations import is_file
from ..common.settings import JobSettings, knobs
from ..jobs import notes
from ..jobs.job import INTERRUPTED
from ..jobs.loggers import FOLDER
from . import kept
from .logger import DONE, FAILED, STOPPED, Logger, Run
from .writer import Writer

log = logging.getLogger("edl.loggers")

_LOOK_S = 2.0
_HANG_S = 120.0  # wandb gives up a start after 90
_DRAIN_S = 60.0  # after the job's end
_ALARM_S = 1.0
_LAST_TRIES = 2
_GIT_S = 5.0


class Follower:
    """A writer in a thread of its own, which others do not wait for."""

    def __init__(
        self,
        writer: Writer,
        ended: threading.Event,
        outcome: Callable[[], str],
        last_pause_s: float,
    ) -> None:
        self.writer = writer
        self._ended = ended
        self._outcome = outcome
        self._last_pause_s = last_pause_s
        self.since: float | None = None  # when it began what it does now
        self.done = False
        self.thread = threading.Thread(target=self._run, name=writer.name, daemon=True)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._do(self.writer.turn)
            self._ended.wait(_LOOK_S)
        outcome = self._outcome()
        for _ in range(_LAST_TRIES):  # whoever fails for longer keeps nobody
            self.done = self._do(lambda now: self.writer.finish(outcome, now))
            if self.done:
                return
            time.sleep(self._last_pause_s)

    def _do(self, what: Callable[[float], bool]) -> bool:
        self.since = time.monotonic()
        try:
            return what(self.since)
        finally:
            self.since = None


def follow(
    writers: Sequence[Writer],
    ended: threading.Event,
    outcome: Callable[[], str],
    hang_s: float = _HANG_S,
    drain_s: float = _DRAIN_S,
    last_pause_s: float = _LOOK_S,
) -> bool:
    """Have all write until the job has ended, and finish; return whether all of them have.

    `outcome` says, after the end, what it was. One that hangs is told, and left behind.
    """
    followers = [Follower(writer, ended, outcome, last_pause_s) for writer in writers]
    for each in followers:
        each.thread.start()
    until = math.inf
    while running := [each for each in followers if each.thread.is_alive()]:
        running[0].thread.join(min(_ALARM_S, hang_s))
        now = time.monotonic()
        if ended.is_set():
            until = min(until, now + drain_s)
        if now > until:
            for each in running:
                each.writer.complain(f"it has not taken all within {drain_s:g} s of the job's end")
            break
        for each in running:
            if each.since is not None and now - each.since > hang_s:
                each.writer.complain(f"it has not answered for {hang_s:g} s")
    return all(each.done for each in followers)


def write(job_dir: Path) -> int:
    """Write a job to its loggers, from wherever that was ended, until the job has ended.

    Return 0 where all is told, 1 where something was given up.
    """
    settings = JobSettings.of_job(job_dir)
    logs.configure(settings.log_level, settings.log_format, "loggers")
    folder = job_dir / FOLDER
    folder.mkdir(exist_ok=True)
    ended = threading.Event()

    def wait() -> None:
        paths.wait_until_unlocked(job_dir)
        ended.set()

    with kept.alone(folder):
        run = run_of(job_dir, settings)
        job = hashlib.sha256(Identity.of_folder(job_dir).token.encode()).hexdigest()[:16]
        say = partial(notes.leave, job_dir)
        writers = [
            Writer(name, make(name, settings), run, job_dir, job, say) for name in settings.loggers
        ]
        threading.Thread(target=wait, name="end", daemon=True).start()
        log.info("writing run=%s loggers=%s", run.id, settings.logger)
        is_all = follow(writers, ended, lambda: outcome_of(job_dir))
    log.info("ended run=%s all=%s", run.id, is_all)
    return 0 if is_all else 1


def outcome_of(job_dir: Path) -> str:
    """Return how the job has ended; without a result it was cut off."""
    try:
        result = json.loads(read_plain(job_dir / "result.json"))
    except (OSError, ValueError):
        return STOPPED
    if result.get("state") == "done":
        return DONE
    return STOPPED if result.get("exit_code") == INTERRUPTED else FAILED


def make(name: str, settings: JobSettings) -> Callable[[], Logger]:
    """Return what makes a logger; its library is imported when it is opened."""
    from .files import Jsonl, TensorBoard
    from .to_mlflow import Mlflow
    from .to_trackio import Trackio
    from .to_wandb import Wandb

    output = Path(settings.output) if settings.output else None
    made: dict[str, Callable[[], Logger]] = {
        "jsonl": lambda: Jsonl(output),
        "tensorboard": lambda: TensorBoard(output),
        "mlflow": Mlflow,
        "trackio": Trackio,
        "wandb": Wandb,
    }
    return made[name]


def run_of(job_dir: Path, settings: JobSettings) -> Run:
    """Return the run of a job, with what the job before has left of it."""
    return Run(
        settings.run,
        settings.job_name,
        params_of(settings),
        tags_of(settings),
        kept.begin(job_dir, settings.run),
        (job_dir / "settings.json").stat().st_mtime,
    )


def params_of(settings: JobSettings) -> Mapping[str, Any]:
    """Return the settings but for those of clusters; of variables the names alone."""
    values = dataclasses.asdict(settings)
    names = [knob.name for knob in knobs() if knob.group != "Cluster"]
    return {name: values[name] for name in names} | {"envs": sorted(settings.envs)}


def tags_of(settings: JobSettings) -> dict[str, str]:
    """Return what tells this run from others: the definition's content and commit, our version."""
    tags = {
        "edl.job": settings.job_name,
        "edl.version": __version__,
        "edl.definition": settings.model_def,
    }
    if is_file(settings.model_def) and (path := Path(settings.model_def)).is_file():
        tags["edl.definition_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if commit := _commit(path.parent):
            tags["edl.commit"] = commit
    return tags


def _commit(folder: Path) -> str:
    """Return the commit that a folder is at; "" where it is under no version control."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()
