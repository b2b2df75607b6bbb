"""The shape of a pod as a user writes it: which parts are mappings, lists, texts. Pure.

Where a podTemplate says anything, the API server does not look at its shape, and we read what we
know of it: the parts in this table. What is not in it is the API server's to judge, once there is a
pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..common.errors import UsageError

# A mapping of parts, [of what a list is], or the type of a leaf. NAME!: it must be there; NAME+: it
# is read by us, and may not be null.
_Shape = Any

_REFERENCE: _Shape = {"name!": str}
_SOURCE: _Shape = {
    "emptyDir": {},
    "persistentVolumeClaim+": {"claimName!": str},
    "secret+": {"secretName!": str},
    "configMap+": {"name!": str},
    "hostPath+": {"path!": str},
}
_VOLUMES: _Shape = [{"name!": str, **_SOURCE}]
_MOUNTS: _Shape = [{"name!": str, "mountPath!": str}]
_TOLERATIONS: _Shape = [{"key": str}]
_VARIABLE: _Shape = {
    "name!": str,
    "valueFrom": {"secretKeyRef+": _REFERENCE, "configMapKeyRef+": _REFERENCE},
}
_CONTAINER: _Shape = {
    "name": str,  # without one it is refused by allowed.py, or by the API server
    "image": str,
    "command": [str],
    "args": [str],
    "env+": [_VARIABLE],
    "envFrom": [{"secretRef+": _REFERENCE, "configMapRef+": _REFERENCE}],
    "ports": [{}],
    "resources+": {"requests+": {}, "limits+": {}},
    "securityContext": {},
    "volumeMounts+": _MOUNTS,
}
_POD: _Shape = {
    "affinity": {},
    "containers+": [_CONTAINER],
    "imagePullSecrets": [_REFERENCE],
    "initContainers": [_CONTAINER],
    "nodeSelector": {},
    "priorityClassName": str,
    "resources": {"requests": {}, "limits": {}},
    "securityContext": {},
    "serviceAccountName": str,
    "tolerations": _TOLERATIONS,
    "topologySpreadConstraints": [{}],
    "volumes+": _VOLUMES,
}
TEMPLATE: _Shape = {"metadata": {"labels+": {}, "annotations+": {}}, "spec": _POD}
# Of a pod template that is whole.
WHOLE: _Shape = {"metadata+": TEMPLATE["metadata"], "spec!": {**_POD, "containers!": [_CONTAINER]}}
_ROLE: _Shape = {
    "nodeSelector": {},
    "podTemplate": TEMPLATE,
    "priorityClassName": str,
    "tolerations": _TOLERATIONS,
}
# What an EdlJob says of its pods.
EDLJOB: _Shape = {
    "imagePullSecrets": [_REFERENCE],
    "jobVolume": _SOURCE,
    "preemptible": bool,
    "volumeMounts": _MOUNTS,
    "volumes": _VOLUMES,
    "master": _ROLE,
    "ps": _ROLE,
    "worker": {**_ROLE, "low": _POD},
    "teacher": _ROLE,
}
_WORDS = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
_WORDS |= {int: "a number", float: "a number", type(None): "null"}


def check(value: object, shape: _Shape, path: str) -> None:
    """Check that what a user wrote has this shape. Raises UsageError, which names the part."""
    for said in _wrong(value, shape, path):
        raise UsageError(f"{said}.")
    for where in _nulls(value, path):
        raise UsageError(f"{where} is null: take it out of the list.")


def _nulls(value: object, path: str) -> Iterator[str]:
    """Yield the items of lists that are null, of parts that the table does not know too."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _nulls(each, f"{path}.{name}")
    elif isinstance(value, list):
        for n, each in enumerate(value):
            if each is None:
                yield f"{path}[{n}]"
            yield from _nulls(each, f"{path}[{n}]")


def _wrong(value: object, shape: _Shape, path: str) -> Iterator[str]:
    kind = shape if isinstance(shape, type) else type(shape)
    if not isinstance(value, kind):
        is_ = _WORDS.get(type(value), f"a {type(value).__name__}")
        yield f"{path} is {is_}, and must be {_WORDS[kind]}"
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from _wrong(each, shape[0], f"{path}[{n}]")
    elif isinstance(value, dict):
        for key, part in shape.items():
            name = key.rstrip("!+")
            if name not in value:
                if key.endswith("!"):
                    yield f"{path} is without {name}"
            elif value[name] is not None or key != name:
                yield from _wrong(value[name], part, f"{path}.{name}")
