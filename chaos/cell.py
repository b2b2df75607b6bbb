"""One cell of the fault matrix: a small job, one fault in one phase, and what it cost.

Everything is read from what any job leaves behind: the lines of its logs say when the fault was
noticed and how long the surviving workers stood still; its last checkpoint holds the rows and the
servers' counters that say what was applied how often (counting.py); its last evaluation is the
loss.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..common import storage
from ..common.errors import CheckpointError, EdlError
from ..common.pieces import decode
from ..common.places import Place
from ..common.settings import JobSettings
from . import followed
from .controller import Answer, Hit
from .faults import Fault
from .phases import Phase
from .scene import Scene

RECORDS, EPOCHS, WORKERS, SERVERS = 1024, 2, 2, 3
MODES = ("async", "sync", "sync-2")
_SPARED = ("worker", "server", "server_preemptions", "master")  # restarts of a status
COUNTED = ("records_lost", "records_duplicated", "updates_lost", "updates_duplicated")
MINIBATCH = 16
DEFINITION = str(Path(__file__).with_name("counting.py"))
LEASE_S, SERVER_TIMEOUT_S = 1.0, 4.0  # a server beats once a second, on a busy machine late
TEACHERS, TEACHER_TIMEOUT_S = 2, 2.0  # of cells whose fault strikes teachers
_LESSONS_FROM = 2000.0  # of record r that many and r more: no sum of two is another record's
_WITHOUT = ("wait", "hard_labels")
# Of cells whose fault is one of a job that is followed. Beside the start of a consumer on a busy
# machine nobody may be taken for lost.
DELTA_S, FOLLOWED_LEASE_S, FOLLOWED_SERVER_TIMEOUT_S = 0.2, 5.0, 20.0
_DELAY_S, _FOLLOWED_DELAY_S = 0.008, 0.03  # of a minibatch: some seconds of deltas
_CATCH_UP_S = 60.0  # the start of a consumer, a busy machine
_END_S = 120.0  # a job of two seconds, every recovery that a fault may ask for, a busy machine
_FIRST_END_S = 300.0  # of a run without a fault: it may be the first, which compiles all kernels
_NOTICED = re.compile(  # not: who leaves when all is done
    r"^(?!.*\(finished\)).*"
    r"(was killed|ended with|lost|silent|replac|recover|again|unreachable|unanswered|"
    r"fenced|refused|preempt|failed|cannot|expired|no answer|asked no more)"
)
_STEP = re.compile(r"^(\S+) INFO worker-(\d+) step=")


@dataclass(frozen=True)
class Cell:
    """The record of one cell. Times are seconds; None: there was nothing to measure."""

    fault: str
    phase: str
    seed: int
    mode: str
    nth: int
    outcome: str  # ok, not meaningful, or failed
    reason: str = ""
    detection_s: float | None = None
    stall_s: float | None = None
    records_lost: int | None = None
    records_duplicated: int | None = None
    updates_lost: int | None = None
    updates_duplicated: int | None = None
    loss: float | None = None
    exit_code: int | None = None
    wall_s: float = 0.0
    without: str = ""  # teachers: what follows; "": there are none
    taught: int | None = None  # records, as often as they were applied
    untaught: int | None = None
    mistaught: int | None = None  # records with what no teacher says of them
    published: int | None = None  # states, by consumers of deltas
    mixed: int | None = None  # of them: those that are no cut of the job
    commit: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.fault, self.phase


def settings(
    folder: Path,
    mode: str,
    seed: int,
    server_timeout_s: float,
    without: str = "",
    has_deltas: bool = False,
) -> JobSettings:
    """Return a cell's settings. `mode`: async, sync (a version is one push), sync-2 (it is two).

    `without`: what students do without teachers; "": the job has none.
    """
    data = folder.parent / "records.npz"
    if not data.exists():
        np.savez(data, record=np.arange(RECORDS, dtype=np.int64))
    pushes = 2 if mode == "sync-2" else 1
    return JobSettings(
        job_name=folder.name,
        model_def=DEFINITION,
        model_params={
            "delay_s": _FOLLOWED_DELAY_S if has_deltas else _DELAY_S,
            "taught": bool(without),
        },
        training_data=str(data),
        validation_data=str(data),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=(4, 0)[seed % 2],  # leased one at a time, and several
        num_epochs=EPOCHS,
        num_workers=WORKERS,
        num_ps=SERVERS,
        lease_s=FOLLOWED_LEASE_S if has_deltas else LEASE_S,
        server_timeout_s=FOLLOWED_SERVER_TIMEOUT_S if has_deltas else server_timeout_s,
        snapshot_s=0.2,
        use_async=mode == "async",
        grads_to_wait=pushes,
        envs={"GRADS_TO_WAIT": str(pushes), "TEACH": str(folder / "teach")},
        num_teachers=TEACHERS if without else 0,
        teacher_params={"first": _LESSONS_FROM, "delay_s": 0.004},
        teacher_batch_size=MINIBATCH,
        teacher_timeout_s=TEACHER_TIMEOUT_S,
        teacher_wait_s=_END_S / 2,
        without_teachers=without or "hard_labels",
        delta_dir=str(folder / "deltas") if has_deltas else "",
        delta_s=DELTA_S,
        shuffle=not has_deltas,  # a minibatch is of neighbours: followed.Course
        checkpoint_dir=str(folder / "checkpoints"),
        log_loss_steps=1,
        seed=seed,
    )


def run(
    fault: Fault | None, phase: Phase | None, folder: Path, *, seed: int, mode: str = ""
) -> Cell:
    """Run one cell, or (without a fault) the run to compare with.

    Removes the folder where all is well.
    """
    named = Cell(fault.name if fault else "none", phase.name if phase else "", seed, mode, 0, "ok")
    draw = random.Random(f"{seed} {named.fault} {named.phase}")
    mode = mode or draw.choice(MODES)
    nth = draw.randint(1, phase.latest) if phase else 0
    without = draw.choice(_WITHOUT) if fault and fault.has_teachers else ""
    named = dataclasses.replace(named, mode=mode, nth=nth, without=without)
    if fault and phase and phase.name in fault.not_in:
        return dataclasses.replace(named, outcome="not meaningful", reason=fault.not_in[phase.name])
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    # A server that compiles its kernels, which the first run of all may do, does not beat.
    timeout_s = SERVER_TIMEOUT_S if fault else _FIRST_END_S
    has_deltas = bool(fault and fault.has_deltas)
    given = settings(folder, mode, seed, timeout_s, without, has_deltas)
    with Scene(folder, given, draw) as scene:
        if fault and phase:
            _arm(scene, fault, phase, nth)
        code = scene.wait(_END_S if fault else _FIRST_END_S)
        status = scene.status()
        if code == 0 and has_deltas:
            scene.catch_up(_CATCH_UP_S)
    cell = dataclasses.replace(
        named, exit_code=code, wall_s=round(time.monotonic() - began, 2), **times(scene)
    )
    if scene.why_not:
        cell = dataclasses.replace(cell, outcome="not meaningful", reason=scene.why_not)
    if code is None:
        return _failed(cell, f"the job did not end in {_END_S:g} s")
    if code != 0:
        return _failed(cell, f"exit code {code}: {status.get('message')}")
    if scene.pending:
        return _failed(cell, f"never reached: {', '.join(scene.pending)}")
    cell = judged(cell, fault, scene, status)
    if cell.outcome != "failed":
        shutil.rmtree(folder)
    return cell


def judged(cell: Cell, fault: Fault | None, scene: Scene, status: Mapping[str, Any]) -> Cell:
    """Return the cell of a job that has ended well, with what is counted; failed if not sound."""
    try:
        found = counted(Path(scene.settings.checkpoint_dir), taught=bool(cell.without))
    except (EdlError, OSError, KeyError) as error:
        return _failed(cell, str(error))
    losses = [e["metrics"]["loss"] for e in status["evaluations"] if e["metrics"]]
    cell = dataclasses.replace(cell, **found, loss=losses[-1] if losses else None)
    wrong = [
        f"{what.replace('_', ' ')}: {value}" for what in COUNTED if (value := getattr(cell, what))
    ]
    if fault and fault.has_teachers:
        wrong += badly_taught(cell, fault, status)
    if fault and fault.is_outside:
        wrong += restarted(cell, status)
    if fault and fault.has_deltas:
        states = [*followed.read(scene.published)][::-1]
        waiting = scene.settings.grads_to_wait - 1
        course = followed.Course(RECORDS, EPOCHS, MINIBATCH, SERVERS, waiting)
        mixed = sum(bool(course.why_no_cut(state)) for state in states)
        cell = dataclasses.replace(cell, published=len(states), mixed=mixed)
        newest = followed.newest(Place(scene.settings.delta_dir))
        wrong += course.badly_followed(states, newest)
    if wrong or len(losses) != EPOCHS:
        return _failed(cell, "; ".join([*wrong, f"{len(losses)} evaluations of {EPOCHS}"]))
    return cell


def badly_taught(cell: Cell, fault: Fault, status: Mapping[str, Any]) -> list[str]:
    """Return what a fault of a teacher has done to whom it must not harm."""
    wrong = []
    if cell.mistaught:
        wrong.append(f"taught what no teacher says of them: {cell.mistaught} records")
    if cell.untaught and cell.without == "wait":
        wrong.append(f"applied and not taught: {cell.untaught} records")
    if cell.stall_s is not None and fault.stall_s is not None and cell.stall_s > fault.stall_s:
        wrong.append(f"a stall of {cell.stall_s:.2f} s, of at most {fault.stall_s:g}")
    wrong += restarted(cell, status)
    told = {name: status["teaching"][name] for name in ("records", "untaught")}
    # What a worker that was killed had been taught and not applied is taught again.
    if cell.phase != "requeue" and told != {"records": cell.taught, "untaught": cell.untaught}:
        wrong.append(f"the status has {told}, and the checkpoint {cell.taught}, {cell.untaught}")
    return wrong


def restarted(cell: Cell, status: Mapping[str, Any]) -> list[str]:
    """Return who was started again for a fault that is none of a worker, a server or the master."""
    killed = int(cell.phase == "requeue")  # the worker that this phase kills
    restarts = status["restarts"]
    if any(restarts[role] for role in _SPARED) or restarts["preemptions"] != killed:
        return [f"restarts of others than whom the fault struck: {restarts}"]
    return []


def _failed(cell: Cell, reason: str) -> Cell:
    return dataclasses.replace(cell, outcome="failed", reason=reason)


def _arm(scene: Scene, fault: Fault, phase: Phase, nth: int) -> None:
    """Strike when the phase has come and everybody that the fault needs is there."""

    def ready(_hit: Hit) -> bool:
        return all(len(scene.pids[role]) >= count for role, count in fault.needs.items())

    def strike(hit: Hit) -> Answer | None:
        scene.struck = time.time()
        return fault.strike(scene, hit)

    if phase.name != "requeue":
        scene.at(phase.points, strike, nth, ready)
        return

    def lose_one(hit: Hit) -> None:
        scene.at(phase.points, strike)
        scene.send("worker", hit.index)
        scene.prelude = rf"worker.{hit.index}\b|requeued"  # what the logs tell of this one

    scene.at(["worker.compute"], lose_one, scene.random.randint(8, 40))


# -- what the logs say


def times(scene: Scene) -> dict[str, Any]:
    """Return the time until anybody noticed, and a survivor's longest pause from then on."""
    if scene.struck is None:
        return {}
    logs = sorted((scene.folder / "logs").glob("*.log"))
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
    noticed = [
        at
        for line in lines
        if (at := _moment(line)) is not None
        and at > scene.struck
        and _NOTICED.match(line)
        and not (scene.prelude and re.search(scene.prelude, line))
    ]
    steps: dict[int, list[float]] = {}
    for line in lines:
        if (found := _STEP.match(line)) and (at := _moment(line)) is not None:
            steps.setdefault(int(found[2]), []).append(at)
    survivors = {i: s for i, s in steps.items() if ("worker", i) not in scene.hit}
    if not survivors and steps:
        survivors = {-1: sorted(at for each in steps.values() for at in each)}
    gaps = [gap for each in survivors.values() for gap in _gaps(each, scene.struck)]
    return {
        "detection_s": round(min(noticed) - scene.struck, 3) if noticed else None,
        "stall_s": round(max(gaps), 3) if gaps else None,
    }


def _gaps(moments: list[float], since: float) -> Iterable[float]:
    return (b - a for a, b in itertools.pairwise(moments) if b >= since)


def _moment(line: str) -> float | None:
    """Return the time of a log line, in seconds since 1970; None where it has none."""
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()
    except ValueError:
        return None


# -- what the checkpoint says


def counted(
    checkpoints: Path,
    records: int = RECORDS,
    epochs: int = EPOCHS,
    servers: int = SERVERS,
    taught: bool = False,
) -> dict[str, Any]:
    """Count lost and doubled records by their rows, updates by each server's counters.

    `taught`: and what was taught, by its value, record by record.

    Raises CheckpointError where the last checkpoint of a counting job (counting.py) cannot be read.
    """
    manifest = storage.latest(checkpoints)
    if manifest is None:
        raise CheckpointError(f"there is no checkpoint in {checkpoints}")
    tables = {"counts": np.zeros(records), "lessons": np.zeros(records)}
    seen: dict[str, set[float]] = {}  # by shard
    for record in manifest.files:
        if not record.name.endswith(".safetensors"):
            continue
        tensors, about = decode(storage.read_checked(manifest, record))
        if (table := tables.get(about.get("rows", ""))) is not None:
            table[tensors["ids"]] += tensors["weight"][:, 0]
        for number, (name, *_) in enumerate(about.get("chunks", ())):
            if name.startswith("seen."):
                shard = record.name.partition(".")[0]
                seen.setdefault(shard, set()).add(float(tensors[f"{number}.value"][0]))
    if len(seen) != servers:
        raise CheckpointError(f"only {sorted(seen)} hold counters")
    expected, rows = records * epochs, tables["counts"]
    return {
        "records_lost": _sum(epochs - rows),
        "records_duplicated": _sum(rows - epochs),
        "updates_lost": sum(_sum(expected - np.array([*each])) for each in seen.values()),
        "updates_duplicated": sum(_sum(np.array([*each]) - expected) for each in seen.values()),
        **(taught_of(rows, tables["lessons"]) if taught else {}),
    }


def taught_of(
    rows: np.ndarray[Any, np.dtype[np.float64]], lessons: np.ndarray[Any, np.dtype[np.float64]]
) -> dict[str, int]:
    """Count how often records were taught, and not, and those taught what nobody says of them."""
    found = lessons / (_LESSONS_FROM + np.arange(len(lessons)))
    whole = np.round(found)
    right = (np.abs(found - whole) < 1e-6) & (whole >= 0) & (whole <= rows)  # a NaN is none
    return {
        "taught": round(float(whole[right].sum())),
        "untaught": round(float((rows - whole)[right].sum())),
        "mistaught": int((~right).sum()),
    }


def _sum(missing: np.ndarray[Any, np.dtype[np.float64]]) -> int:
    return round(float(np.clip(missing, 0, None).sum()))
