"""Memory of pods: the limit of one, whether it was too little, what the next one gets. Pure."""

from __future__ import annotations

import copy

from ..common.settings import JobSettings
from . import names, observe
from .api import Object
from .pods import container_of, give_memory

_OOM_FACTOR = 4


def memory_after_oom(pod: Object, cap: str) -> tuple[str, str]:
    """Return a pod's memory limit, and what the next one gets: "" if none, or it has the most."""
    limit = limit_of(pod)
    if not limit:
        return "", ""
    had, most = names.quantity(limit, "memory"), names.quantity(cap, "--oom_memory_cap")
    grown = min(2 * had, most)
    return limit, names.as_quantity(grown) if grown > had else ""


def limit_of(pod: Object) -> str:
    """Return the memory limit of the container that runs edl; "" where it has none."""
    limits = (container_of(pod).get("resources") or {}).get("limits") or {}
    return str(limits.get("memory", ""))


def ran_out(pod: Object) -> bool:
    """Tell whether a pod ended for want of memory."""
    state = observe.observe(pod)
    return (
        isinstance(state, observe.Ended) and state.code == observe.OUT_OF_MEMORY and bool(state.why)
    )


def grown(template: Object, last: Object, cap: str) -> Object:
    """Return the template with the memory that the pod before had; twice as much if that ran out.

    It stays as it is where it has been changed since, or has no limit.
    """
    said, had = limit_of(template), limit_of(last)
    basis = (last["metadata"].get("annotations") or {}).get(names.MEMORY_ANNOTATION, had)
    if not said or basis != said:
        return template
    more = memory_after_oom(last, cap)[1] if ran_out(last) else ""
    memory = more or had
    if memory == said:
        return template
    made = copy.deepcopy(template)
    made["metadata"].setdefault("annotations", {})[names.MEMORY_ANNOTATION] = said
    give_memory(made, memory)
    return made


def memory_cap(settings: JobSettings, template: Object) -> str:
    """Return the most memory that a pod of this template may get."""
    if settings.oom_memory_cap:
        return settings.oom_memory_cap
    limit = container_of(template).get("resources", {}).get("limits", {}).get("memory")
    return names.as_quantity(_OOM_FACTOR * names.quantity(limit, "memory")) if limit else "0"
