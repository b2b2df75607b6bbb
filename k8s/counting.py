"""The resources that a pod asks for, counted as Kubernetes counts them. Pure.

The rules are those of podRequests in k8s.io/component-helpers, by which kube-scheduler, quotas and
Kueue count: KEP-753 (sidecars), KEP-2837 (what a pod says as a whole), KEP-688 (overhead).
"""

from __future__ import annotations

from . import names
from .api import Object

Requests = dict[str, float]  # cores, bytes and devices, by Kubernetes' names of resources


def requested(spec: Object) -> Requests:
    """Return what a pod of this spec asks for.

    Containers and sidecars together; where one of those that run before asks for more with the
    sidecars that have begun by then, as much as that. What the pod as a whole says goes before it,
    and its overhead comes on top.
    """
    asked: Requests = {}  # by containers and sidecars
    for each in spec["containers"]:
        _add(asked, _requests(each))
    begun: Requests = {}  # by sidecars so far
    before: Requests = {}  # the most at one time until the containers begin
    for each in spec.get("initContainers") or []:
        own = _requests(each)
        if each.get("restartPolicy") == "Always":
            _add(asked, own)
            _add(begun, own)
            own = begun
        else:
            _add(own, begun)
        _raise(before, own)
    _raise(asked, before)
    asked |= _of_pod(spec.get("resources") or {}, asked)
    _add(asked, _amounts(spec.get("overhead")))
    return asked


def _of_pod(said: Object, asked: Requests) -> Requests:
    """Return what a pod as a whole says; a limit counts where no container asks for anything."""
    found = {**_amounts(said.get("limits")), **_amounts(said.get("requests"))}
    known = {name for name in found if name in ("cpu", "memory") or name.startswith("hugepages-")}
    said_so = known & (said.get("requests") or {}).keys()
    return {name: found[name] for name in known if name in said_so or name not in asked}


def _requests(container: Object) -> Requests:
    said = container.get("resources") or {}
    return _amounts({**(said.get("limits") or {}), **(said.get("requests") or {})})


def _amounts(said: Object | None) -> Requests:
    return {name: float(names.quantity(str(text), name)) for name, text in (said or {}).items()}


def _add(to: Requests, more: Requests) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0.0) + amount


def _raise(to: Requests, least: Requests) -> None:
    for name, amount in least.items():
        to[name] = max(to.get(name, 0.0), amount)
