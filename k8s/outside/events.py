"""Events: what a cluster says of the objects of one job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .. import names
from ..api import Api, Object
from . import state


def of_job(api: Api, job: str, pods: Sequence[Object]) -> list[Object]:
    """Return the events of a job and of its objects, `pods` among them, oldest first."""
    found, _ = api.list("Event")
    living = {pod["metadata"]["name"] for pod in pods}
    mine = [e for e in found if _is_about(e.get("involvedObject") or {}, job, living)]
    return sorted(mine, key=state.event_time)


def _is_about(about: Object, job: str, pods: set[str]) -> bool:
    kind, name, top = about.get("kind", ""), about.get("name", ""), names.object_name(job)
    if kind == names.KIND:
        return bool(name == job)
    if kind != "Pod":
        return name in (top, names.object_name(job, "ps"))
    # of a pod that is gone nothing but its name is left
    ours = rf"{re.escape(top)}-([a-z0-9]{{5}}|master-.+|({'|'.join(names.REPLICAS)})-\d+-.+)"
    return name in pods or re.fullmatch(ours, name) is not None
