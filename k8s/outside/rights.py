"""Rights of the roles in k8s/manifests, and what mends a refusal (403). Pure.

A right is a verb on a resource of an API group, as RBAC has it. The tables say what the manifests
give; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...common.errors import EdlError, PeerError
from ..connection import ApiError

Right = tuple[str, str, str]  # verb, group, resource

_READ = "get list watch"
_WRITE = "create update patch delete"
ROLES: dict[str, dict[tuple[str, str], str]] = {
    "edl-user": {
        ("edl.dev", "edljobs"): f"{_READ} {_WRITE}",
        ("edl.dev", "edljobs/scale"): "get update patch",
        ("edl.dev", "edljobs/status"): "get",
        ("", "pods"): _READ,
        ("", "configmaps"): _READ,
        ("", "services"): _READ,
        ("", "events"): _READ,
        ("", "persistentvolumeclaims"): _READ,
        ("", "serviceaccounts"): _READ,
        ("", "pods/log"): "get",
        ("", "pods/proxy"): "get",
        ("events.k8s.io", "events"): _READ,
        ("coordination.k8s.io", "leases"): "get list",
        ("metrics.k8s.io", "pods"): "get list",
    },
    "edl-submitter": {
        ("batch", "jobs"): f"{_READ} create patch delete",
        ("", "pods"): "delete",
        ("", "secrets"): _WRITE,
        ("", "configmaps"): _WRITE,
        ("", "services"): _WRITE,
        ("policy", "poddisruptionbudgets"): f"get list {_WRITE}",
        ("networking.k8s.io", "networkpolicies"): f"get list {_WRITE}",
    },
    "edl-master": {
        ("", "pods"): f"{_READ} create delete",
        ("", "configmaps"): f"{_READ} create update patch",
        ("coordination.k8s.io", "leases"): "get create update",
        ("batch", "jobs"): "patch",
        ("", "events"): "create patch",
        ("events.k8s.io", "events"): "create patch",
    },
}
SHARED = ("edl-master", "edl-user")  # ClusterRoles as well, where one controller serves all
# What `edl submit` and the commands on a job ask for, by the kind of its top object.
_SEEN = {
    ("", "pods"): _READ,
    ("", "pods/log"): "get",
    ("", "configmaps"): _READ,
    ("", "events"): "list",
}
NEEDED: dict[str, dict[tuple[str, str], str]] = {
    "edljob": {**_SEEN, ("edl.dev", "edljobs"): "get list watch create patch delete"},
    "job": {
        **_SEEN,
        ("batch", "jobs"): "get list watch create patch delete",
        ("", "secrets"): "create",
        ("", "configmaps"): f"{_READ} create update",
        ("", "services"): "create",
        ("networking.k8s.io", "networkpolicies"): "create",
        ("policy", "poddisruptionbudgets"): "create",
        ("", "pods"): f"{_READ} delete",
    },
}
MASTER = {
    key: verbs for key, verbs in ROLES["edl-master"].items() if not key[1].startswith("event")
}

_REFUSED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" '
    r'in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)


def rights(table: dict[tuple[str, str], str]) -> Iterator[Right]:
    for (group, resource), verbs in table.items():
        for verb in verbs.split():
            yield verb, group, resource


def role_of(right: Right) -> str:
    """Return the role for people that gives a right; "" where none does."""
    return next(
        (role for role in ("edl-user", "edl-submitter") if right in set(rights(ROLES[role]))), ""
    )


def how_to_bind(role: str, namespace: str, user: str = "", everywhere: bool = False) -> str:
    """Return the command that gives somebody a role; `everywhere`: it is the whole cluster's."""
    name, flag = user or "NAME", "--user"
    if user.startswith("system:serviceaccount:"):
        name, flag = user.removeprefix("system:serviceaccount:"), "--serviceaccount"
    bound = re.sub(r"[^a-z0-9.-]+", "-", name.lower())
    is_shared = everywhere and role in SHARED
    kind = "clusterrole" if is_shared else "role"
    return f"kubectl -n {namespace} create rolebinding {bound}-{role} --{kind} {role} {flag} {name}"


def explained(error: ApiError, everywhere: bool = False) -> EdlError:
    """Make of a refusal one line with what mends it; return others as they are.

    `everywhere`: edl is installed for all namespaces.
    """
    if error.status == 401:
        return PeerError(
            "the Kubernetes API takes your credentials for nobody's (401): log in anew, or name "
            "another kubeconfig in KUBECONFIG."
        )
    found = _REFUSED.search(error.message) if error.status == 403 else None
    if found is None:
        return error
    group, resource, namespace = found["group"], found["resource"], found["namespace"]
    place = f" in the namespace {namespace}" if namespace else " in the whole cluster"
    told = f"{found['user']} may not {found['verb']} {named(group, resource)}{place} (403)"
    role = role_of((found["verb"], group, resource)) if namespace else ""
    if not role:
        return PeerError(f"{told}: ask whoever keeps the cluster for it.")
    bind = how_to_bind(role, namespace, found["user"], everywhere)
    return PeerError(f"{told}; the role {role} gives it: {bind}")


def named(group: str, resource: str) -> str:
    """Return a resource as kubectl writes it: jobs.batch, pods."""
    return f"{resource}.{group}" if group else resource
