"""Layers of a pod: what a user writes is laid over what edl makes. Pure, plain dicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.errors import UsageError
from . import names, shapes
from .api import Object

# Of --cluster_spec: over all pods, those of a role, and those of `edl serve`, which no job has.
PARTS = ("pod", *names.TEMPLATES, "serve")


def merged(base: Any, over: Any) -> Any:
    """Lay `over` over `base`: dicts key by key, lists of named things by name, other lists joined.

    Mounts are named by their path; all else is replaced.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        return {
            **base,
            **{k: merged(base[k], v) if k in base else copy.deepcopy(v) for k, v in over.items()},
        }
    if isinstance(base, list) and isinstance(over, list):
        for key in ("mountPath", "name"):
            if all(isinstance(each, dict) and key in each for each in (*base, *over)):
                known = {each[key]: each for each in base}
                for each in over:
                    known[each[key]] = merged(known.get(each[key], {}), each)
                return list(known.values())
        return base + [each for each in over if each not in base]
    return copy.deepcopy(over)


def laid(template: Object, overlays: Mapping[str, Any], parts: Sequence[str]) -> Object:
    """Lay those of --cluster_spec's layers that are of these parts over a pod template, in order.

    Raises UsageError, also for a part that no pod has.
    """
    if unknown := overlays.keys() - set(PARTS):
        raise UsageError(
            f"--cluster_spec: {', '.join(sorted(unknown))}: it has parts {', '.join(PARTS)}."
        )
    for part in parts:
        if (layer := overlays.get(part)) is not None:
            layer = said(as_template(layer))
            shapes.check(layer, shapes.TEMPLATE, f"--cluster_spec: {part}")
            template = merged(template, layer)
    return template


def said(value: Any) -> Any:
    """Return what a user says: a field that is null says nothing, as in Kubernetes.

    So it never takes away what edl sets. An item of a list that is null stays: shapes.py names it.
    """
    if isinstance(value, dict):
        return {name: said(each) for name, each in value.items() if each is not None}
    return [said(each) for each in value] if isinstance(value, list) else value


def as_template(layer: object) -> Object:
    """Return the layer as a pod template: a user may write only its spec's fields."""
    if not isinstance(layer, dict):
        raise UsageError("--cluster_spec: each part is a mapping, as a pod template is.")
    if layer.keys() <= {"metadata", "spec"}:
        return layer
    about = {key: layer[key] for key in ("labels", "annotations") if key in layer}
    spec = {key: value for key, value in layer.items() if key not in about}
    return {**({"metadata": about} if about else {}), **({"spec": spec} if spec else {})}
