"""Holders of Leases: who acts as a service of the cluster, and which controller a namespace has.

A controller of all namespaces says so by a label of its Lease, which is in its own namespace;
whoever is logged in may see that one by its name, wherever it is.
"""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Iterator
from dataclasses import dataclass

from ..common.errors import UsageError
from . import names
from .api import Api, Object
from .connection import ApiError

SERVES = "edl.dev/serves"  # label of the controller's Lease: ALL, or one namespace
ALL, ONE = "all-namespaces", "one-namespace"
_STALE_S = 60.0  # of a lease that is renewed every 4 s; clocks differ


@dataclass(frozen=True)
class Holder:
    """A process that holds a Lease and renews it; `everywhere`: it serves all namespaces."""

    name: str
    namespace: str
    everywhere: bool


def holder(api: Api, name: str) -> Holder | None:
    """Return who holds this Lease of the namespace; None: nobody, or one may not look."""
    try:
        found = api.get("Lease", name)
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return next(_alive(api, [found] if found else []), None)


def controller(api: Api) -> Holder | None:
    """Return the controller of the namespace's EdlJobs; None: none runs, or one may not look."""
    own = holder(api, names.CONTROLLER)
    return own or next((each for each in _elsewhere(api) if each.everywhere), None)


def check_alone(api: Api, everywhere: bool) -> None:
    """Check that no controller of another namespace serves EdlJobs that this one is to serve.

    Raises UsageError: two may be allowed different things.
    """
    for other in _elsewhere(api):
        if everywhere or other.everywhere:
            whose = "all namespaces" if other.everywhere else "that namespace"
            mend = "--all_namespaces (controller.allNamespaces of the chart)"
            raise UsageError(
                f"an EdlJob has one controller, and {other.name} in the namespace "
                f"{other.namespace} is that of {whose}: uninstall it, or "
                + (f"leave out {mend} here." if everywhere else "this one.")
            )


def _elsewhere(api: Api) -> list[Holder]:
    try:
        found, _ = api.inside("").list("Lease", name=names.CONTROLLER)
    except ApiError as error:
        if error.status != 403:  # no controller of all namespaces is installed
            raise
        return []
    others = [each for each in found if _space(api, each) != api.namespace]
    return list(_alive(api, others))


def _space(api: Api, lease: Object) -> str:
    return str(lease["metadata"].get("namespace") or api.namespace)


def _alive(api: Api, leases: list[Object]) -> Iterator[Holder]:
    if not leases:
        return
    try:
        now = email.utils.parsedate_to_datetime(api.version()[1])
    except ValueError:  # it does not say what time it has
        return
    for each in leases:
        about, spec = each["metadata"], each.get("spec") or {}
        try:
            renewed = datetime.datetime.fromisoformat(spec.get("renewTime") or "")
        except ValueError:
            continue
        if spec.get("holderIdentity") and (now - renewed).total_seconds() < _STALE_S:
            serves = (about.get("labels") or {}).get(SERVES)
            yield Holder(str(spec["holderIdentity"]), _space(api, each), serves == ALL)
