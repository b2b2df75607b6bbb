"""Scaling of an EdlJob: what its spec forbids is refused before anything is changed. Pure."""

from __future__ import annotations

from ...common.errors import UsageError
from .. import job as edljob
from ..api import Object


def check_bounds(name: str, worker: Object, number: int) -> None:
    """Refuse a number of workers that `spec.worker` does not allow. Raises UsageError."""
    least, most = worker.get("minReplicas") or 1, worker.get("maxReplicas")
    if most is not None and number > most:
        raise UsageError(
            f"{name}: spec.worker.maxReplicas is {most}: ask for {most} at most, or raise it."
        )
    if number < least:
        raise UsageError(
            f"{name}: spec.worker.minReplicas is {least}: ask for {least} at least, or lower it."
        )


def check_change(top: Object, change: Object) -> None:
    """Refuse what the controller would refuse of a job that it takes as it is (InvalidSpec).

    Raises UsageError.
    """
    spec = dict(top["spec"])
    for role, said in change.items():
        both = {**(spec.get(role) or {}), **said}
        spec[role] = {field: value for field, value in both.items() if value is not None}
    refused = _refused({**top, "spec": spec})
    if refused and not _refused(top):
        raise UsageError(f"{top['metadata']['name']}: {refused}")


def _refused(top: Object) -> str:
    try:
        edljob.templates(top)
    except UsageError as error:
        return str(error)
    return ""
