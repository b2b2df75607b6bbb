"""The labels and tolerations that the flavors of Kueue ask of pods, and an EdlJob's lack. Pure.

Kueue puts the nodeLabels and tolerations of a ResourceFlavor into pods of the kinds that it knows;
those of an EdlJob are made by its spec alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..k8s.api import Object
from .machines import is_borne, keeps_away, toleration, written


def lacks(
    sets: Sequence[Object], assigned: Mapping[str, set[str]], specs: Mapping[str, Object]
) -> str:
    """Say what is to be written into the spec of a job, "" where nothing is missing.

    `sets`: of pods, as they are asked for. `assigned`: flavors by set. `specs`: of flavors.
    """
    for each in sets:
        asked, role = each["template"]["spec"], each["name"]
        for flavor in sorted(assigned.get(role, ())):
            spec = specs.get(flavor) or {}
            wants = (spec.get("nodeLabels") or {}).items()
            labels = dict(wants - (asked.get("nodeSelector") or {}).items())
            if labels:
                words = written(dict(sorted(labels.items())))
                return (
                    f"is admitted for the flavor {flavor} of Kueue, whose nodes its pods may "
                    f"miss: write {words} into spec.{role}.nodeSelector"
                )
            if missing := _tolerations(spec, asked.get("tolerations") or []):
                words = ", ".join(map(written, missing))
                return (
                    f"is admitted for the flavor {flavor} of Kueue, whose nodes have a taint that "
                    f"its pods do not bear: add {words} to spec.{role}.tolerations"
                )
    return ""


def _tolerations(spec: Object, has: Sequence[Object]) -> list[Object]:
    """Return the tolerations that pods on a flavor's nodes need, and do not have."""
    taints = [each for each in spec.get("nodeTaints") or [] if keeps_away(each)]
    missing = [toleration(each) for each in taints if not is_borne(each, has)]
    for each in spec.get("tolerations") or []:
        as_taint = {"key": each.get("key", ""), "value": each.get("value", "")}
        as_taint["effect"] = each.get("effect") or "NoSchedule"
        if not any(is_borne(taint, [each]) for taint in taints) and not is_borne(as_taint, has):
            missing.append(each)
    return missing
