"""Names, labels and the small languages of Kubernetes: quantities, resources, volumes. Pure.

Every object of a job is called edl-JOB or edl-JOB-..., in at most 63 characters of a DNS label: a
longer one is cut and told apart by a hash. The labels are how everybody finds them.
"""

from __future__ import annotations

import decimal
import hashlib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ..common.errors import UsageError

# Those who ask the Kubernetes API by a name of their own (connection.py).
CONTROLLER, SCHEDULER, MASTER = "edl-controller", "edl-scheduler", "edl-master"
# Where pods listen: below 16000, from where on Linux (32768) and gVisor take the ports of a pod's
# own calls, one of which would hold a port that is to be listened at, once in a while.
GRPC_PORT, HEALTH_PORT, METRICS_PORT = 12001, 12002, 12003
SERVICE_PORT = 50001  # where a job's Service is called, whatever port its master's pod names grpc
FILES_PORT = 50003  # of a helper pod, which calls nobody: known to edl of other versions
CONTAINER, CHECK = "edl", "check"  # that run edl: a program's, and before a master's its check's
JOB_LABEL, ROLE_LABEL = "edl.dev/job-name", "edl.dev/role"
QUEUED = "edl.dev/queued"  # annotation: since when a begun job waits for the scheduler
SAYS = "edl.dev/scheduler-says"  # annotation, of the scheduler: "Reason: sentence"
ADMITTED = "edl.dev/kueue-queue"  # annotation: the queue of Kueue whose quota a job runs by
EVICTIONS = "edl.dev/kueue-evictions"  # annotation: how often pods were not ready in Kueue's time
CONFIG_LABEL = "edl.dev/config"  # of the ConfigMap that a master watches
INDEX_LABEL, INCARNATION_LABEL = "edl.dev/index", "edl.dev/incarnation"
MEMORY_ANNOTATION = "edl.dev/memory-of"  # the limit from which that of a pod has grown
TEMPLATE_ANNOTATION = "edl.dev/template"  # of a master's pod: the hash of what it was made of
GROUP, VERSION, KIND, PLURAL = "edl.dev", "v1alpha1", "EdlJob", "edljobs"
OVER = ("Succeeded", "Failed")  # phases of an EdlJob that has ended
REPLICAS = ("ps", "worker", "teacher")  # the roles that a master starts, as pods say them
ROLES = ("master", *REPLICAS)
TEMPLATES = (*ROLES, "worker_high", "worker_low")  # of pods, and parts of --cluster_spec
COMPONENTS = {**{role: role for role in ROLES}, "server": "ps"}  # what pods say of a role

# Jobs whose Lease, ConfigMap or NetworkPolicy would be one of the manifests', or of whom they run.
_OWN = {"controller", "dashboard", "deny-ingress", "grafana", "scheduler", "scheduler-quotas"}
_LONGEST = 63
_HASH = 8
_QUANTITY = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,3})?"
)
_MOST = 2**63 - 1  # of Kubernetes' quantities
_FACTORS = {"m": Decimal("0.001"), "": Decimal(1)}
_FACTORS |= {unit: Decimal(1000) ** n for n, unit in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{unit}i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", 1)}
_RESOURCES = {"cpu": "cpu", "memory": "memory", "disk": "ephemeral-storage"}
_RESOURCES |= {"ephemeral-storage": "ephemeral-storage", "gpu": "nvidia.com/gpu"}
_PAGES = "hugepages-"
_HOST_PATH_TYPES = ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate")


def object_name(job: str, *parts: str) -> str:
    """Return edl-JOB-PART..., a DNS label of at most 63 characters."""
    name = "-".join(("edl", job, *parts))
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return f"{name[: _LONGEST - _HASH - 1].rstrip('-')}-{digest}"


def check_free(job: str, said: str) -> None:
    """Raise UsageError for a job whose objects would have names of edl's own."""
    if job in _OWN:
        raise UsageError(f"{said}: {job} is edl's own: choose another one.")


def pod_name(job: str, role: str, index: int, incarnation: str) -> str:
    """Return the name of an incarnation's pod: always the same, so that no start happens twice."""
    return object_name(job, COMPONENTS[role], str(index), incarnation.lower())


def labels(job: str, component: str = "job") -> dict[str, str]:
    """Return the labels of every object of a job. `component`: one of ROLES, or job."""
    found = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/managed-by": "edl",
        JOB_LABEL: job,
    }
    return found if component == "job" else {**found, ROLE_LABEL: component}


def selector(job: str, *components: str) -> str:
    """Return the label selector of a job's pods, of these components where some are named."""
    roles = f",{ROLE_LABEL} in ({','.join(components)})" if components else ""
    return f"{JOB_LABEL}={job}{roles}"


def option(about: Mapping[str, Any]) -> str:
    """Return how a command says the namespace of an object, by its metadata: " -n lab"."""
    namespace = about.get("namespace")
    return f" -n {namespace}" if namespace else ""


# -- quantities and resources


def quantity(text: str, said: str) -> Decimal:
    """Read a quantity of Kubernetes: "500m" is 0.5, "4Gi" 4294967296. Raises UsageError."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{said}: {text!r} is no quantity: write 2, 500m, 4096Mi or 1.5Gi, for example."
        )
    number, unit = found.groups()
    if unit and unit not in _FACTORS:
        return Decimal(f"{number}{unit}")
    return Decimal(number) * _FACTORS[unit or ""]


def as_quantity(number: Decimal | int) -> str:
    """Write bytes as the shortest exact quantity: 4294967296 is 4Gi."""
    whole = int(Decimal(number).to_integral_value(decimal.ROUND_CEILING))
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if whole and whole % factor == 0:
            return f"{whole // factor}{unit}"
    return str(whole)


def resources(text: str, said: str) -> dict[str, str]:
    """Read "cpu=1,memory=4096Mi,gpu=1" as resources of Kubernetes. Raises UsageError.

    gpu is nvidia.com/gpu, disk is ephemeral-storage; a name with a slash, and hugepages-2Mi, are
    taken as they are.
    """
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        known = name if "/" in name or name.startswith(_PAGES) else _RESOURCES.get(name)
        if not equals or known is None:
            raise UsageError(
                f"{said}: {part!r} is no resource: write cpu=1,memory=4096Mi, and gpu=, disk= or "
                "vendor.com/device= where they are needed."
            )
        if (number := quantity(amount, said)) < 0 or known in found:
            raise UsageError(f"{said}: {name} is said twice, or is below 0.")
        if number > _MOST:
            raise UsageError(f"{said}: {name}={amount} is more than a cluster counts to, {_MOST}.")
        found[known] = amount
    return found


# -- volumes


def volumes(text: str, said: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read ElasticDL's volumes as those of a pod, and the mounts of its container.

    Volumes stand between semicolons: "claim_name=c,mount_path=/p,sub_path=s" is a claim,
    "host_path=/h,type=Directory,mount_path=/q" a folder of the node, "config_map=m,mount_path=/d"
    the files of a ConfigMap. A claim may be mounted twice.
    Raises UsageError.
    """
    sources: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        given = _pairs(part, said)
        path = given.pop("mount_path", "")
        if not path.startswith("/"):
            raise UsageError(f"{said}: {part!r} lacks mount_path=/a/folder.")
        sub_path, read_only = given.pop("sub_path", ""), given.pop("read_only", "false").lower()
        source = _source(given, said)
        known = next((v for v in sources if source.items() <= v.items()), None)
        if known is None:
            known = {"name": f"volume-{len(sources)}", **source}
            sources.append(known)
        mount: dict[str, Any] = {"name": known["name"], "mountPath": path}
        if sub_path:
            mount["subPath"] = sub_path
        if read_only == "true":
            mount["readOnly"] = True
        mounts.append(mount)
    return sources, mounts


def volume(text: str, said: str) -> dict[str, Any]:
    """Read "claim_name=..." or "host_path=...,type=..." as a volume's source. Raises UsageError.

    And JSON of a source as Kubernetes has it, which is what `volume_text` writes.
    """
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise UsageError(f"{said}: {text} is no JSON ({error}).") from error
    return _source(_pairs(text, said), said)


def volume_text(source: Mapping[str, Any]) -> str:
    """Return what `volume` reads as this source."""
    match source:
        case {"persistentVolumeClaim": {"claimName": claim, **options}} if not options:
            return f"claim_name={claim}"
    return json.dumps(source, sort_keys=True)


def _source(given: Mapping[str, str], said: str) -> dict[str, Any]:
    if given.keys() == {"claim_name"}:
        return {"persistentVolumeClaim": {"claimName": given["claim_name"]}}
    if given.keys() == {"config_map"}:
        return {"configMap": {"name": given["config_map"]}}
    if "host_path" in given and given.keys() <= {"host_path", "type"}:
        kind = given.get("type", "")
        if kind in _HOST_PATH_TYPES:
            return {"hostPath": {"path": given["host_path"], **({"type": kind} if kind else {})}}
    raise UsageError(
        f"{said}: {', '.join(f'{k}={v}' for k, v in given.items()) or 'nothing'} is no volume: "
        "write claim_name=CLAIM, host_path=/FOLDER[,type=Directory] or config_map=NAME, and "
        "mount_path=/FOLDER."
    )


def _pairs(text: str, said: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in text.split(","):
        name, equals, value = (each.strip() for each in piece.partition("="))
        if not equals or not value or name in found:
            raise UsageError(f"{said}: {piece!r} is not name=value, or is said twice.")
        found[name] = value
    return found
