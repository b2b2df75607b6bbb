"""`edl doctor`: whether a cluster has what a job needs, and what mends what it lacks.

Each check asks the API server one thing and says one line. What the user may not look at is a
warning: it may well be there.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...common.errors import PeerError, UsageError
from ...common.settings import JobSettings
from .. import holders, names, pods
from ..api import Api, Object, too_old
from ..connection import ApiError
from ..holders import Holder
from . import rights

OK, WARNING, ERROR = "ok", "warning", "error"
_SKEW_S = 5.0
_IMAGE = re.compile(  # as container registries define it: [host[:port]/]path[:tag][@digest]
    r"(?:[a-zA-Z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@[a-z0-9]+:[0-9a-f]{32,})?"
)


@dataclass(frozen=True)
class Finding:
    """A finding: `level` is OK, WARNING or ERROR; `detail` says what is so, and what mends it."""

    level: str
    what: str
    detail: str


def examine(namespace: str, settings: JobSettings, kind: str) -> Iterator[Finding]:
    """Yield all that is found. `kind` is auto, job or edljob."""
    try:
        api = Api.connect(namespace, patience_s=5.0)
    except UsageError as error:
        yield Finding(ERROR, "cluster", str(error))
        return
    try:
        yield from _examine(api, settings, kind)
    finally:
        api.close()


def _examine(api: Api, settings: JobSettings, kind: str) -> Iterator[Finding]:
    try:
        version, date = api.version()
    except ApiError as error:  # so it is up
        yield Finding(ERROR, "cluster", str(rights.explained(error)))
        return
    except PeerError as error:
        yield Finding(ERROR, "cluster", f"{error}. Is it up, and is KUBECONFIG the right one?")
        return
    yield _version(version, api)
    yield _clock(date)
    try:
        yield _namespace(api)
        chosen = "job"
        holder = holders.controller(api)
        for finding in _controller(api, kind, holder):
            chosen = "edljob" if finding.level == OK and kind != "job" else chosen
            yield finding
        chosen = kind if kind != "auto" else chosen
        everywhere = holder is not None and holder.everywhere
        yield from _own_rights(api, chosen, everywhere)
        makes = everywhere and chosen == "edljob"
        lacking = [*_accounts(api, settings, makes), *_priorities(api, settings)]
        comes = makes and _look(api, "ServiceAccount", settings.service_account) is None
        rights_of_master = [] if comes else [*_master_rights(api, settings)]
        missing = [each for each in lacking if each.level == ERROR]
        if len(missing) > 1:  # nothing is installed here: that is one cause
            what = ", ".join(f"{each.what} {each.detail.split(':')[0]}" for each in missing)
            what = what.replace("there is no ", "")
            yield Finding(ERROR, "installation", f"there is no {what}: {_install(api)}")
            rights_of_master = [each for each in rights_of_master if each.level != ERROR]
        yield from (each for each in lacking if len(missing) < 2 or each.level != ERROR)
        yield from rights_of_master
        yield from _image(api, settings)
        yield from _volumes(api, settings)
    except PeerError as error:
        told = rights.explained(error) if isinstance(error, ApiError) else error
        yield Finding(ERROR, "cluster", str(told))


def _version(version: Object, api: Api) -> Finding:
    text = str(version.get("gitVersion") or "?")
    if said := too_old(version):
        return Finding(ERROR, "cluster", said)
    return Finding(OK, "cluster", f"Kubernetes {text}, namespace {api.namespace}")


def _clock(date: str) -> Finding:
    """Compare by the header Date, which is rounded down to a second."""
    try:
        there = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return Finding(WARNING, "clock", "the API server does not say what time it has")
    skew_s = (datetime.datetime.now(datetime.UTC) - there).total_seconds()
    if abs(skew_s) <= _SKEW_S:
        return Finding(OK, "clock", "as the API server's")
    how = "ahead of" if skew_s > 0 else "behind"
    return Finding(
        WARNING,
        "clock",
        f"this machine is {abs(skew_s):.0f} s {how} the API server: ages are shown wrong, and "
        "tokens may be refused: set it by NTP",
    )


def _namespace(api: Api) -> Finding:
    found = _look(api, "Namespace", api.namespace)
    if found is None:
        return Finding(
            ERROR,
            "namespace",
            f"there is no {api.namespace}: kubectl create namespace {api.namespace}, or name "
            "another one by --namespace",
        )
    if found == {}:
        return Finding(WARNING, "namespace", f"{api.namespace}: you may not look whether it exists")
    return Finding(OK, "namespace", api.namespace)


def _controller(api: Api, kind: str, holder: Holder | None) -> Iterator[Finding]:
    level = ERROR if kind == "edljob" else WARNING
    try:
        api.list(names.KIND)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        if error.status == 403:
            yield Finding(WARNING, "EdlJob", "you may not see any: `edl submit` makes a batch Job")
        else:
            yield Finding(
                level, "EdlJob", f"not known here: `edl submit` makes a batch Job; {_install(api)}"
            )
        return
    if holder is not None and holder.namespace != api.namespace:
        who = f"{holder.name} in the namespace {holder.namespace}"
        yield Finding(OK, "EdlJob", f"known, and the controller of all namespaces runs ({who})")
        return
    if holder is not None:
        yield Finding(OK, "EdlJob", f"known, and its controller runs ({holder.name})")
        return
    yield Finding(
        level,
        "EdlJob",
        "known, but no controller is seen to run: `edl submit` makes a batch Job; look at "
        f"`kubectl -n {api.namespace} get deployment edl-controller`",
    )


def _own_rights(api: Api, kind: str, everywhere: bool) -> Iterator[Finding]:
    needed = list(rights.rights(rights.NEEDED[kind]))
    lacking = [right for right in needed if not _allowed(api, "SelfSubjectAccessReview", right)]
    by_role: dict[str, list[rights.Right]] = {}
    for right in lacking:
        by_role.setdefault(rights.role_of(right), []).append(right)
    for role, those in by_role.items():
        yield Finding(
            ERROR,
            "rights",
            f"you may not {_told(those)}: the role {role} gives it: "
            f"{rights.how_to_bind(role, api.namespace, everywhere=everywhere)}",
        )
    if not lacking:
        what = "an EdlJob" if kind == "edljob" else "a batch Job"
        yield Finding(OK, "rights", f"yours: all {len(needed)} that submitting {what} needs")


def _master_rights(api: Api, settings: JobSettings) -> Iterator[Finding]:
    account = settings.service_account
    who = {"user": f"system:serviceaccount:{api.namespace}:{account}"}
    needed = list(rights.rights(rights.MASTER))
    try:
        lacking = [
            right for right in needed if not _allowed(api, "LocalSubjectAccessReview", right, **who)
        ]
    except ApiError as error:
        if error.status != 403:
            raise
        yield Finding(WARNING, "master's rights", "you may not look at those of others")
        return
    if lacking:
        yield Finding(
            ERROR,
            "master's rights",
            f"{account} may not {_told(lacking)}: the role edl-master gives it; {_install(api)}",
        )
    else:
        yield Finding(OK, "master's rights", f"{account}: all {len(needed)} that it needs")


def _told(lacking: list[rights.Right]) -> str:
    """Join what is said of one resource: "get and list pods, create jobs.batch"."""
    verbs: dict[str, list[str]] = {}
    for verb, group, resource in lacking:
        verbs.setdefault(rights.named(group, resource), []).append(verb)
    parts = []
    for what, those in verbs.items():
        *first, last = those
        parts.append(f"{', '.join(first)} and {last} {what}" if first else f"{last} {what}")
    return ", ".join(parts)


def _allowed(api: Api, kind: str, right: rights.Right, **who: str) -> bool:
    verb, group, resource = right
    name, _, sub = resource.partition("/")
    about = {"namespace": api.namespace, "verb": verb, "group": group, "resource": name}
    if sub:
        about["subresource"] = sub
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": kind,
        "spec": {"resourceAttributes": about, **who},
    }
    if who:
        review["metadata"] = {"namespace": api.namespace}
    return bool(api.create(kind, review)["status"]["allowed"])


def _accounts(api: Api, settings: JobSettings, makes: bool) -> Iterator[Finding]:
    """Look for the accounts of pods. `makes`: the controller of all namespaces makes its own."""
    for name in (settings.service_account, pods.REPLICA_ACCOUNT):
        found = _exists(api, "ServiceAccount", name, "service account", _install(api))
        if found.level == ERROR and makes and name in (names.MASTER, pods.REPLICA_ACCOUNT):
            said = f"{name}: it comes with the first EdlJob of the namespace"
            found = Finding(OK, "service account", said)
        yield found


def _priorities(api: Api, settings: JobSettings) -> Iterator[Finding]:
    said = [settings.master_pod_priority, settings.ps_pod_priority, settings.teacher_pod_priority]
    if pods.is_fraction(settings.worker_pod_priority):
        said += ["high", "low"]
    else:
        said.append(settings.worker_pod_priority)
    for name in sorted({pods.priority_class(each) for each in said if each}):
        yield _exists(api, "PriorityClass", name, "priority class", _install(api))


def _image(api: Api, settings: JobSettings) -> Iterator[Finding]:
    name, secret = settings.image_name, settings.image_pull_secret
    found = _IMAGE.fullmatch(name)
    if not name:
        yield Finding(WARNING, "image", "none is named: --image_name NAME is looked at too")
    elif found is None:
        yield Finding(
            ERROR,
            "image",
            f"{name!r} is no name of an image: write registry.example/team/edl:1.0, in lower case",
        )
    elif not (found["tag"] or found["digest"]) or found["tag"] == ":latest":
        yield Finding(
            WARNING,
            "image",
            f"{name} may be another one on each node, and later: give it a tag of its own",
        )
    else:
        yield Finding(OK, "image", name)
    if secret:
        mend = (
            f"kubectl -n {api.namespace} create secret docker-registry {secret} --docker-server=..."
        )
        yield _exists(api, "Secret", secret, "pull secret", mend)


def _volumes(api: Api, settings: JobSettings) -> Iterator[Finding]:
    sources, _ = names.volumes(settings.volume, "--volume")
    own = names.volume(settings.job_volume, "--job_volume") if settings.job_volume else {}
    claim = (own.get("persistentVolumeClaim") or {}).get("claimName")
    for source in sources:
        name = (source.get("persistentVolumeClaim") or {}).get("claimName")
        if name not in (None, claim):
            yield _claim(api, name)[0]
    if not settings.job_volume:
        yield Finding(
            WARNING,
            "job volume",
            "none: a job whose master's pod is lost begins anew; --job_volume claim_name=CLAIM "
            "keeps its journal",
        )
        return
    if claim is None:
        yield Finding(
            WARNING, "job volume", "a folder of one node: keep master and servers on that node"
        )
        return
    finding, found = _claim(api, claim)
    yield finding
    modes = ((found or {}).get("spec") or {}).get("accessModes") or []
    if "ReadWriteMany" in modes:
        yield Finding(
            WARNING,
            "job volume",
            "ReadWriteMany is mostly a network file system: the journal (SQLite with a WAL) needs "
            "one whose locks and mmap hold between processes of one node; NFS from version 4 on",
        )
    elif modes:
        yield Finding(
            WARNING,
            "job volume",
            f"{', '.join(modes)}: master and servers can only run on the node that has it: say so "
            "by a node selector in --cluster_spec",
        )


def _claim(api: Api, name: str) -> tuple[Finding, Object | None]:
    mend = f"make it (kubectl -n {api.namespace} apply -f CLAIM.yaml), or name another one"
    finding = _exists(api, "PersistentVolumeClaim", name, "volume claim", mend)
    found = _look(api, "PersistentVolumeClaim", name) if finding.level == OK else None
    phase = ((found or {}).get("status") or {}).get("phase")
    describe = f"kubectl -n {api.namespace} describe pvc {name}"
    if phase == "Pending":
        text = (
            f"{name} is not bound yet: right where its class waits for a first pod; else {describe}"
        )
        return Finding(WARNING, "volume claim", text), found
    if found and phase != "Bound":
        return Finding(ERROR, "volume claim", f"{name} is {phase}: {describe}"), found
    return finding, found


def _exists(api: Api, kind: str, name: str, what: str, mend: str) -> Finding:
    found = _look(api, kind, name)
    if found is None:
        return Finding(ERROR, what, f"there is no {name}: {mend}")
    if found == {}:
        return Finding(WARNING, what, f"{name}: you may not look whether it exists")
    return Finding(OK, what, name)


def _look(api: Api, kind: str, name: str) -> Object | None:
    """Return an object; None: it is not there; {}: who asks may not know."""
    try:
        return api.get(kind, name)
    except ApiError as error:
        if error.status != 403:
            raise
        return {}


def _install(api: Api) -> str:
    return (
        f"`helm install edl k8s/manifests/chart -n {api.namespace}` makes it, or `kubectl apply "
        "-k` of an overlay beside that chart"
    )


def as_rows(findings: list[Finding]) -> list[dict[str, Any]]:
    return [{"level": f.level, "what": f.what, "detail": f.detail} for f in findings]
