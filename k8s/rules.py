"""The demands of an EdlJob's fields on each other, in the words of the resource's own rules. Pure.

The resource (edljobs.yaml) has each of these as a rule, so that `kubectl apply` refuses what breaks
it; here it is said of EdlJobs that are not refused: those made while the resource had no such rule.
"""

from __future__ import annotations

from ..common import launched
from ..common.contradictions import JOB_NAME
from ..common.errors import UsageError
from ..common.settings import knobs
from . import names
from .api import Object

_MOST_REPLICAS = next(knob.most for knob in knobs() if knob.name == "num_workers")


def check_name(name: str) -> None:
    """Check that an EdlJob may be called so. Raises UsageError."""
    if not JOB_NAME.fullmatch(name):
        raise UsageError(
            "metadata.name is made of at most 50 lower-case letters, digits and dashes, not "
            f"{name!r}."
        )
    names.check_free(name, "metadata.name")


def check(spec: Object) -> None:
    """Check replicas, and what is of some jobs only. Raises UsageError."""
    worker, teacher = spec.get("worker") or {}, spec.get("teacher") or {}
    command = spec.get("command", "train")
    if command == launched.COMMAND and spec.get("ps") not in (None, {}, {"replicas": 1}):
        # one replica is the default of any EdlJob
        raise UsageError("spec.ps: a script's job has no parameter servers: leave it out.")
    if command != "train" and (int(teacher.get("replicas", 0)) or "maxReplicas" in teacher):
        raise UsageError("spec.teacher: only a job that trains has teachers: leave it out.")
    for role, said in (("worker", worker), ("teacher", teacher)):
        for name in ("replicas", "minReplicas", "maxReplicas"):
            if int(said.get(name, 0)) > _MOST_REPLICAS:
                raise UsageError(
                    f"spec.{role}.{name} is at most {_MOST_REPLICAS}, not {said[name]}."
                )
    if "scheduling" in spec and "maxReplicas" not in worker:
        raise UsageError(
            "spec.worker.maxReplicas is missing: say the most workers that it may be given."
        )
    _check_bounds(spec, worker, teacher)
    if "highFraction" in worker and "priorityClassName" in worker:
        raise UsageError(
            "spec.worker.highFraction and spec.worker.priorityClassName: leave out one of them."
        )
    if spec.get("preemptible") is False and "highFraction" in worker:
        raise UsageError(
            "spec.preemptible false and spec.worker.highFraction: workers that are edl-low are "
            "there to be preempted: leave out one of them."
        )
    if "low" in worker and "highFraction" not in worker:
        raise UsageError(
            "spec.worker.low is of the workers that are edl-low: say in spec.worker.highFraction "
            "how many are not."
        )


def _check_bounds(spec: Object, worker: Object, teacher: Object) -> None:
    fewest = int(worker.get("minReplicas", 1))
    bounds = {"maxReplicas": int(worker["maxReplicas"])} if "maxReplicas" in worker else {}
    if "scheduling" not in spec:
        bounds["replicas"] = int(worker.get("replicas", 2))
    for name, most in bounds.items():
        if fewest > most:
            raise UsageError(
                f"spec.worker.minReplicas is more than spec.worker.{name}: no task would ever be "
                "leased."
            )
    most = int(teacher.get("maxReplicas", 0))
    if most and most < int(teacher.get("replicas", 0)):
        raise UsageError("spec.teacher.maxReplicas is below spec.teacher.replicas.")
