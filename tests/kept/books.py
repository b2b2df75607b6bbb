"""The content of a kept folder, in words, as this version's code reads it.

This is the one place that knows the classes.

A version that writes another format, or reads by other functions, changes this file, no kept one.
`of_job` and its sisters give JSON values, which expected.json has as they were when it was made.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from edl.common import storage
from edl.common.clock import MonotonicClock
from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.launch.coordinator import FORMAT as ROUNDS_FORMAT
from edl.launch.coordinator import Coordinator
from edl.launch.serve import JOURNAL as ROUNDS
from edl.launch.settings import LaunchSettings
from edl.master import opening
from edl.master.books.saved import books_of
from edl.master.books.task import State, Task
from edl.master.books.task_queue import TaskQueue
from edl.master.core import MEMORY
from edl.master.master import Master


def of_job(job_dir: Path) -> dict[str, Any]:
    """Describe a job that was cut off: its queue as a new master restores it, and its status."""
    settings = JobSettings.of_job(job_dir)
    begun = opening.resume(settings, job_dir)
    assert begun is not None, "no master would go on with it"
    journal, queue = begun.journal, begun.queue
    told = _told(queue)
    memory = journal.get(MEMORY)
    assert memory is not None
    master = Master(
        settings=settings,
        job_dir=job_dir,
        books=begun,
        connect=lambda addresses: None,
        clock=MonotonicClock(),
        identity=Identity.of_folder(job_dir),
    )
    master.resume("", memory)
    status = json.loads(master.status_json())
    journal.close()
    return {
        **told,
        "goes on from": _begins(master, job_dir),
        "evaluations due": memory["course"]["due"],
        "evaluations": status["evaluations"],
        "workers wanted": master.replicas.wanted,
        "version": status["version"],
        "masters before": status["restarts"]["master"],
        "preemptions": status["restarts"]["preemptions"],
        "checkpoint": _below(job_dir, status["checkpoint"]),
    }


def of_checkpoint(job_dir: Path) -> dict[str, Any]:
    """Describe a checkpoint that a new job goes on with: the queue that it begins with."""
    manifest = storage.load(job_dir / "checkpoints")
    settings = JobSettings(**{**manifest.books["settings"], "resume": str(manifest.directory)})
    described = {"training": manifest.books["plan"]["sources"]}
    queue, _ = opening.open_queue(settings, described)
    return {**_told(queue), "version": manifest.version, "shards": manifest.num_shards}


def of_launch(job_dir: Path) -> dict[str, Any]:
    """Describe a launched job: what its coordinator, started anew, says."""
    journal = Journal(job_dir / ROUNDS, ROUNDS_FORMAT)
    status = Coordinator(LaunchSettings.of_job(job_dir), journal, MonotonicClock()).final_status()
    journal.close()
    names = ("state", "round", "world_size", "num_restarts", "failures", "min_nodes", "max_nodes")
    return {**{name: status[name] for name in names}, "nodes": len(status["nodes"])}


def of_journal(job_dir: Path) -> dict[str, Any]:
    """Describe a journal alone: the queue as a new master restores it."""
    begun = opening.resume(JobSettings.of_job(job_dir), job_dir)
    assert begun is not None, "no master would go on with it"
    begun.journal.close()
    return _told(begun.queue)


OF = {"job": of_job, "journal": of_journal, "checkpoint": of_checkpoint, "launch": of_launch}


def _told(queue: TaskQueue) -> dict[str, Any]:
    books = books_of(queue)
    return {
        "epochs opened": queue.opened,
        "closed": queue.closed,
        "proven": sorted(kind.name for kind in queue.proven),
        "records done": queue.records_done,
        "tasks by state": queue.counts(),
        "tasks": {str(number): _words(task) for number, task in sorted(queue.tasks.items())},
        "nobody had yet": [f"{first} to {end - 1}" for first, end in books["untouched"]],
        "quarantined": [
            f"epoch {q.epoch}, {' '.join(map(str, q.records))}: {q.error}"
            for q in queue.quarantined
        ],
        "left out": dict(Counter(str(r) for q in queue.quarantined for r in q.records)),
    }


def _words(task: Task) -> str:
    """Return in words all of a task that decides what becomes of it."""
    words = [f"{task.kind.name.lower()} {task.state.value}"]
    if task.state is not State.DONE:
        words.append(f"attempt {task.attempt} at {task.position} of {task.size}")
    words += [
        f"{name} {value}"
        for name, value in (
            ("held by", "somebody" if task.worker else ""),
            ("boundaries", [*task.boundaries]),
            ("skips", sorted(task.skips)),
            ("tries", task.tries),
            ("deaths", task.deaths),
            ("trying", [*task.trying.values()]),
            ("failure", task.failure and task.failure.error),
            ("worker's end", task.ended and task.ended.how),
            ("careful", task.careful),
            ("of", task.group),
            ("reads", task.cut),
            ("payload of bytes:", len(task.payload)),
            ("result of bytes:", len(task.result)),
        )
        if value
    ]
    return ", ".join(words)


def _begins(master: Master, job_dir: Path) -> dict[str, Any]:
    """Return the snapshots that are taken for safe, by who has them."""
    found: dict[str, Any] = {}
    settings = master.core.settings
    if settings.strategy != "allreduce":
        for index in range(settings.num_ps):
            _, left = master.group.server_map.arguments(index)
            found[f"server {index}"] = f"snapshot {left.partition(':')[2]}"
    if settings.strategy != "ps":
        path, version, applied = _base(master.group.memory())
        found["group"] = f"step {version}, {_below(job_dir, path)}, tasks {dict(applied)}"
    return found


def _base(memory: Any) -> tuple[str, int, Any]:
    base = memory.get("collective", memory)["base"]
    return base["path"], base["version"], base["applied"]


def _below(folder: Path, path: str | None) -> str | None:
    return str(Path(path).relative_to(folder)) if path else path
