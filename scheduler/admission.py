"""Steps of the gate of Kueue (kueue.py), made in a cluster: Workloads are made and deleted."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.errors import PeerError
from ..k8s import names
from ..k8s.api import Api, Object
from ..k8s.connection import ApiError
from .gate import Make, Step, Suspend
from .kueue import Gates
from .place import Tell

_CROSSED = (404, 409)  # somebody else was faster; the next round sees it


def admit(api: Api, gates: Gates, planned: Mapping[str, int], now: str, tell: Tell) -> None:
    """Ask Kueue for what was planned, and suspend whoever runs without its leave.

    `planned`: workers by the uid of the job. `now`: RFC 3339. What fails is told once, and tried
    again in each round.
    """
    if not api.kueue():
        return
    for step in gates.steps(planned, api.kueue()):
        try:
            _make(api, step, now, tell)
        except PeerError as error:
            said = f"Kueue: {_words(step)}: not done, {error}; it is tried again"
            is_crossed = isinstance(error, ApiError) and error.status in _CROSSED
            if not is_crossed and said not in gates.told:
                gates.told.add(said)
                tell(said)
    for name in sorted(gates.flavors()):
        gates.specs[name] = _spec(api, name, tell)


def _make(api: Api, step: Step, now: str, tell: Tell) -> None:
    if isinstance(step, Suspend):
        about = step.job["metadata"]
        marks: dict[str, str | None] = {names.QUEUED: now, names.ADMITTED: None}
        if step.evictions:
            marks[names.EVICTIONS] = str(step.evictions)
        seen = {"resourceVersion": about["resourceVersion"], "annotations": marks}
        patch = {"metadata": seen, "spec": {"suspend": True}}
        api.inside(about["namespace"]).patch(names.KIND, about["name"], patch)
    elif isinstance(step, Make):
        api.inside(step.body["metadata"]["namespace"]).create("Workload", step.body)
    else:
        api.inside(step.namespace).delete("Workload", step.name, uid=step.uid)
    tell(_words(step))


def _words(step: Step) -> str:
    if isinstance(step, Suspend):
        return f"{step.job['metadata']['name']}: is suspended, it {step.why}"
    if isinstance(step, Make):
        return f"{step.job}: the Workload {step.body['metadata']['name']} asks Kueue for quota"
    return f"{step.job}: the Workload {step.name} gives its quota back"


def _spec(api: Api, flavor: str, tell: Tell) -> Object:
    """Return the spec of a flavor; an empty one where nobody may know."""
    try:
        found = api.get("ResourceFlavor", flavor) or {}
    except PeerError as error:
        tell(f"the flavor {flavor} of Kueue cannot be read: {error}")
        return {}
    return dict(found.get("spec") or {})
