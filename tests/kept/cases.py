"""The cases that are kept: jobs, and how far each has come when all of it is killed.

Each runs in a folder of its own, the current one, and leaves its job in jobs/it. The docstring says
what is there then; expected.json says it task by task.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from kept import adapted, decisions
from kept.folders import DATA, HERE, JOB, ZOO, records
from kept.gates import WAIT_S, Gates, Told
from tools import jobs, trained, waiting

from edl.common.identity import Identity
from edl.common.order import order
from edl.jobs.local import LocalJob, kill
from edl.master.books.plan import Kind, Plan

COUNT, MINIBATCH = 128, 4  # records: 8 tasks of 4 minibatches
OF_GROUPS = {"model_params": {"records": COUNT}, "envs": {"MINIBATCH": str(MINIBATCH)}}
EVALUATIONS = 10**12  # the first one's first task


def ps() -> None:
    """Keep servers with tasks in every state, retired ones too, and with an evaluation.

    Tasks are retired, done, uneven and leased again, quarantined, fenced.
    """
    gates = Gates("worker.compute", "worker.evaluate", "ps.push", "ps.applied", "ps.snapshot.begin")
    poison("counting", record_at(task=10, position=5))
    first: dict[str, int] = {}

    def until(limit: int, snapshots: int) -> Callable[[Told], bool]:
        def holds(told: Told) -> bool:
            match told["point"], told.get("task"), told.get("start"):
                case "ps.snapshot.begin", _, _:
                    return told["number"] > snapshots
                case "worker.evaluate", number, _:
                    return number == EVALUATIONS + 2
                case "ps.push", 11, 4:
                    return told["index"] == 1
                case "worker.compute", 11, 4:
                    return told["pid"] != first.setdefault("of 11", told["pid"])
                case "worker.compute", 12, start:
                    return start >= 4 or limit < 12
                case "worker.compute", task, _:
                    return task > limit
            return False

        return holds

    with job("counting", num_workers=3, num_ps=2, use_async=True, checkpoint_steps=25) as made:
        for number, limit in ((1, 3), (2, 6), (3, 9), (4, 10)):
            gates.hold(until(limit, number - 1))
            gates.wait(point="worker.compute", task=limit + 1)
            gates.hold(until(limit, number))
            for index in range(2):
                gates.wait(point="ps.snapshot.begin", index=index, number=number + 1)
        gates.hold(until(12, 4))
        gates.wait(point="worker.evaluate", task=EVALUATIONS + 2)
        next_lost = gates.wait(point="worker.compute", task=12, start=4)["pid"]
        for point, index in (("ps.applied", 0), ("ps.push", 1)):  # server 1 has not applied it
            gates.wait(point=point, index=index, task=11, start=4)
        os.kill(first["of 11"], signal.SIGKILL)
        gates.wait(2, point="worker.compute", task=11, start=4)
        status = made.watch(lambda status: all(server["pid"] for server in status["servers"]))
        os.kill(status["servers"][1]["pid"], signal.SIGSTOP)
        os.kill(next_lost, signal.SIGKILL)
        made.watch(lambda status: status["tasks"]["fencing"], WAIT_S)
        scale(made, 2)
    gates.close()


def scale(made: jobs.Job, workers: int) -> None:
    """Ask the job for so many workers."""
    client = made.client()
    client.scale(workers)
    client.close()


def allreduce() -> None:
    """Keep a group: a round's lease in the midst of a task, a member lost, one snapshot."""
    group("tally", strategy="allreduce", evaluation_steps=42)


def sharded() -> None:
    """Keep a group of which each member has a part of the model."""
    group("tally", strategy="allreduce", fully_shard=True, evaluation_steps=42)


def hybrid() -> None:
    """Keep a group with servers, one of them silent: what the round held waits for its fence.

    No evaluation: e5532ee may wait for ever for one that was under way when a round broke.
    """
    group("hybrid", strategy="hybrid", num_ps=2, validation_data="")


def group(model_def: str, **settings: Any) -> None:
    gates = Gates("worker.compute", "worker.round")
    poison(model_def, record_at(task=10, position=5))

    def beyond(task: int, start: int) -> Callable[[Told], bool]:
        return lambda told: (told.get("task", 0), told.get("start", 0)) >= (task, start)

    with job(model_def, num_workers=2, **OF_GROUPS, **settings) as made:

        def lose_one(task: int, start: int, *, last: bool = False) -> None:
            """Kill one worker; the other goes on, with `last` no further than to its next round."""
            stays, lost = (
                gates.wait(point="worker.compute", index=index, task=task, start=start)
                for index in range(2)
            )
            held = gates.holds
            os.kill(lost["pid"], signal.SIGKILL)
            gates.hold(
                lambda told: (
                    told is not stays and (held(told) or last and told["point"] == "worker.round")
                )
            )

        snapshots = Path(JOB, "group")
        for task in range(2, 9):
            gates.hold(beyond(task, 8))
            gates.wait(point="worker.compute", task=task, start=8)
            time.sleep(1.0)  # then a snapshot is due, which a member takes after the next step
            if [*snapshots.glob("*/MANIFEST.json")]:
                break
        lose_one(task, 8)
        gates.hold(beyond(12, 8))
        gates.wait(2, point="worker.compute", task=12, start=8)
        if made.settings.evaluation_steps:  # that of epoch 0 is over, and the next one is due
            made.watch(lambda status: status["tasks"]["total"] >= 2 * 8 + 9 + 8, WAIT_S)
        if made.settings.strategy == "hybrid":
            status = made.watch(lambda status: all(server["pid"] for server in status["servers"]))
            os.kill(status["servers"][1]["pid"], signal.SIGSTOP)
            lose_one(12, 8, last=True)
            made.watch(lambda status: status["tasks"]["fencing"], WAIT_S)
        if not made.settings.fully_shard:
            scale(made, 1)
    gates.close()


def stopped_ps() -> None:
    """Keep a checkpoint of servers amid an epoch, of a job that was told to stop."""
    stop(job("counting", num_workers=3, num_ps=2, use_async=True))


def stopped_quarantined() -> None:
    """Keep a checkpoint of servers amid an epoch where something is quarantined."""
    stop(job("counting", num_workers=3, num_ps=2, use_async=True), record_at(task=10, position=5))


def stopped_allreduce() -> None:
    """Keep a checkpoint of a group amid an epoch, of a job that was told to stop."""
    stop(job("tally", num_workers=2, strategy="allreduce", **OF_GROUPS))


def stopped_hybrid() -> None:
    """Keep a checkpoint of a group and of servers amid an epoch, of a job that was told to stop."""
    given = {"num_workers": 2, "num_ps": 2, "validation_data": "", **OF_GROUPS}
    stop(job("hybrid", strategy="hybrid", **given), task=12)


def stop(starting: jobs.Job, poisoned: int = -1, **held: int) -> None:
    """Stop a job at task 12. `held`: where exactly, if not at its second minibatch."""
    gates = Gates("worker.compute")
    poison(starting.settings.model_def, poisoned)
    gates.hold(lambda told: (told["task"], told["start"]) >= (12, 4))
    with starting as made:
        gates.wait(point="worker.compute", **(held or {"task": 12, "start": 4}))
        made.process.send_signal(signal.SIGTERM)
        made.watch(lambda status: status["state"] == "stopping", WAIT_S)
        gates.hold(lambda told: False)
        assert made.wait(WAIT_S) == 130, made.logs()
    gates.close()
    for path in Path(JOB).iterdir():
        if path.name != "checkpoints":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def launch() -> None:
    """Keep `edl launch`: two nodes in their second round, after the failure of a worker."""
    Path("launched").symlink_to(HERE.parent / "launched")
    flags = [
        "--nodes=1:2",
        "--job_name=it",
        "--last_call=0s",
        "--keep_checkpoint_max=1",
        "--lease=4s",
    ]
    command = [sys.executable, "-m", "edl", "launch", *flags, "launched/counting.py", "."]
    made, steps = LocalJob(Path(JOB).absolute()), Path("steps")
    with open("launch.out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        waiting.until(lambda: steps.exists() and len(steps.read_text()) > 30, WAIT_S)
        client = made.client(patience_s=WAIT_S)
        _, status = client.status()
        workers = psutil.Process(status["nodes"][1]["pid"]).children()
        os.kill(workers[0].pid, signal.SIGKILL)
        revision = 0
        while (status["round"], status["world_size"]) != (2, 2):
            revision, status = client.status(revision, 1.0)
        client.close()
        before = len(steps.read_text())
        waiting.until(lambda: len(steps.read_text()) > before + 30, WAIT_S)
    finally:
        process.kill()
        kill(made)


def deltas() -> None:
    """Keep the bases and deltas of a job that counts, to its end."""
    starting = job(
        "counting",
        num_workers=2,
        num_ps=2,
        use_async=True,
        validation_data="",
        model_params={"delay_s": 0.03},
        delta_dir=f"{JOB}/deltas",
        delta_s=0.4,
    )
    poison("counting", -1)
    with starting as made:
        assert made.wait(WAIT_S) == 0, made.logs()
    for path in Path(JOB).iterdir():
        if path.name != "deltas":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def export() -> None:
    """Keep an exported model with two tables, as programs of torch and as rows."""
    shutil.copytree(ZOO, DATA / "zoo", dirs_exist_ok=True)
    trained.ZOO = DATA / "zoo"  # a program names the file of its model, wherever that is linked to
    made = trained.train(Path("trained"), 1)
    np.savez("data.npz", **trained.records_of(made.definition, np.arange(4)))
    flags = ["--data", "data.npz", "--to", "torch", "--to", "rows", "--rows", "safetensors"]
    out = f"{JOB}/exported"
    Path(JOB).mkdir(parents=True)
    command = [sys.executable, "-m", "edl", "export", str(made.checkpoint), out, *flags]
    subprocess.run(command, check=True)


def adaptive() -> None:
    """Keep the checkpoint of a script of `edl.adaptive` that was preempted in epoch 1."""
    with adapted.replica(Path(JOB, "adaptive").absolute()):
        before = adapted.run(adapted.STEPS)
    Path(JOB, "before.json").write_text(json.dumps(before))


def record_at(task: int, position: int) -> int:
    """Return the record at this position of a task."""
    plan = Plan(Kind.TRAIN, (("", COUNT),), MINIBATCH, 4, num_epochs=2, shuffle=True)
    epoch, (_, start, end) = plan.task(task)
    return start + int(order(plan.seed, epoch, task, end - start, True)[position])


def every_decision() -> None:
    """Keep a journal without a job: a decision of every kind, and tasks in every state."""
    job("counting")
    decisions.write(Path(JOB), compacts=False)


def compacted() -> None:
    """Keep such a journal with the queue's state in the place of most decisions."""
    job("counting")
    decisions.write(Path(JOB), compacts=True)


# -- what they share

_POISONED = """
with open({path!r}) as file:
    text = file.read() + {more!r}
exec(compile(text, "poisoned", "exec"))
"""
_POISON = """
whole = feed

def feed(records, mode):
    if mode == "train" and {record} in records["record"]:
        raise ValueError("a poisoned record")
    return whole(records, mode)
"""


def poison(model_def: str, record: int) -> None:
    """Write a definition that does not like this record (-1: none); the one that goes on does.

    It names no file of its own: errors do, and stand in checkpoints, which nobody can change.
    """
    Path("zoo").mkdir()
    path, more = ZOO / f"{model_def}.py", _POISON.format(record=record)
    Path("zoo", path.name).write_text(_POISONED.format(path=str(path), more=more))


def job(model_def: str, **settings: Any) -> jobs.Job:
    identity = Identity("a-token-to-throw-away")
    made = jobs.Job(
        Path(JOB),
        identity,
        **{
            "model_zoo": "zoo",
            "model_def": model_def,
            "training_data": str(records(COUNT)),
            "validation_data": str(records(COUNT)),
            "checkpoint_dir": "",
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_epochs": 2,
            "task_fault_tolerance": 1,
            "skip_records": COUNT,
            "snapshot_s": 0.5,
            "lease_s": 20.0,
            **settings,
        },
    )
    identity.save(made.folder)
    return made


CASES: dict[str, tuple[Callable[[], None], ...]] = {
    "job": (ps, allreduce, sharded, hybrid),
    "journal": (every_decision, compacted),
    "launch": (launch,),
    "checkpoint": (stopped_ps, stopped_allreduce, stopped_hybrid, stopped_quarantined),
    "deltas": (deltas,),
    "export": (export,),
    "adaptive": (adaptive,),
}
