"""The accounts of a namespace's pods, as a controller of all namespaces makes them.

The masters' is bound to the ClusterRole that the manifests bring. What is there already, by
whomever, stays as it is: an installer may have narrowed it.
"""

from __future__ import annotations

from typing import Any

from . import names, pods
from .api import Api, Object
from .connection import ApiError

_RBAC = "rbac.authorization.k8s.io"


def accounts(namespace: str) -> list[Object]:
    """Return the accounts of masters and of all other pods, and what the masters' is bound by."""
    subject = {"kind": "ServiceAccount", "name": names.MASTER, "namespace": namespace}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": names.MASTER}
    replicas = {"automountServiceAccountToken": False}
    return [
        _object("v1", "ServiceAccount", names.MASTER, "master"),
        _object("v1", "ServiceAccount", pods.REPLICA_ACCOUNT, "replica", **replicas),
        _object(
            f"{_RBAC}/v1", "RoleBinding", names.MASTER, "master", roleRef=role, subjects=[subject]
        ),
    ]


def make(api: Api) -> None:
    """Make what lacks of them in the namespace of `api`. Raises ApiError where it may not."""
    for each in accounts(api.namespace):
        try:
            api.create(each["kind"], each)
        except ApiError as error:
            if error.status != 409:
                raise


def _object(version: str, kind: str, name: str, component: str, **rest: Any) -> Object:
    labels = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "edl",
    }
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        **rest,
    }
