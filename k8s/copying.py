"""The helper pod that gives out files of a job, which `edl cp` reads through the API server. Pure.

Who wants a file writes into an annotation of the EdlJob which, and the digest of a secret; the
controller makes a pod of the workers' (or servers') template, with their volumes and rights, that
is of no other use. So whoever may change an EdlJob needs no right to make pods, or to run anything
in one. The pod ends when it has answered once, or nobody has asked for a while.
"""

from __future__ import annotations

import copy
import json
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import names, pods
from .api import Object
from .names import FILES_PORT

ANNOTATION = "edl.dev/copy"
ROLE = "copy"
LONGEST_S = 6 * 3600  # of one copy
FROM = "EDL_COPY_FROM"  # variable of the pod: the folders that it gives out of, between colons
_FOR = ("worker", "ps")  # whose template: of the first that has the job's volume
_OF_NOBODY = ("shm", "no-token")  # volumes that hold nothing of a job's


@dataclass(frozen=True)
class Wish:
    """A file or folder that is asked for. `digest`: SHA-256 of the secret, hexadecimal."""

    id: str
    path: str
    digest: str

    def to_annotation(self) -> str:
        return json.dumps(vars(self))


def wish(job: Object) -> Wish | None:
    """Return what is asked for in an EdlJob's annotation; None: nothing that can be read."""
    try:
        said = json.loads((job["metadata"].get("annotations") or {})[ANNOTATION])
        return Wish(**{name: str(said[name]) for name in ("id", "path", "digest")})
    except (KeyError, TypeError, ValueError):
        return None


def pod_name(job: str, id: str) -> str:
    return names.object_name(job, ROLE, id)


def folders(templates: dict[str, Object]) -> list[str]:
    """Return the folders whose files are given out: the job's, and those of the pods' volumes."""
    mounts = pods.container_of(_chosen(templates))["volumeMounts"]
    return [each["mountPath"] for each in mounts if each["name"] not in _OF_NOBODY]


def refusal(templates: dict[str, Object], path: str) -> str:
    """Say why nothing is given out at a path; "" where it may be there."""
    found = PurePosixPath(posixpath.normpath(posixpath.join(pods.JOB_DIR, path)))
    there = folders(templates)
    if any(found.is_relative_to(posixpath.normpath(each)) for each in there):
        return ""
    others = [each for each in there if each != pods.JOB_DIR]
    return (
        f"{path} is neither in the job's folder nor in a volume of its pods "
        f"({', '.join(others) or 'there is none'}): name a path in one of them."
    )


def _chosen(templates: dict[str, Object]) -> Object:
    mine = [templates[role] for role in _FOR]
    return next((each for each in mine if _has_volume(each)), mine[0])


def template(templates: dict[str, Object], asked: Wish) -> Object:
    """Make the template of the pod for a wish. Raises KeyError where `templates` are no job's."""
    made: Object = copy.deepcopy(_chosen(templates))
    labels = made["metadata"]["labels"]
    labels |= {names.ROLE_LABEL: ROLE, "app.kubernetes.io/component": ROLE}
    made["metadata"]["annotations"] = {}
    spec, container = made["spec"], pods.container_of(made)
    for field in ("topologySpreadConstraints", "resources"):
        spec.pop(field, None)
    spec["restartPolicy"], spec["activeDeadlineSeconds"] = "Never", LONGEST_S
    spec["terminationGracePeriodSeconds"] = 1
    for probe in ("startupProbe", "livenessProbe"):
        container.pop(probe, None)
    container |= {
        "command": ["python", "-m", "edl.k8s.send"],
        "args": [asked.path, asked.digest],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "ports": [{"name": "files", "containerPort": FILES_PORT}],
        "env": [
            *container.get("env", []),
            {"name": FROM, "value": os.pathsep.join(folders(templates))},
        ],
    }
    return made


def changes(job: str, asked: Wish | None, there: Sequence[Object]) -> tuple[bool, list[Object]]:
    """Return whether a pod is to be made, and which are to be deleted. `there`: all helpers."""
    wanted = pod_name(job, asked.id) if asked else ""
    known = [pod["metadata"]["name"] for pod in there]
    going = [pod for pod in there if pod["metadata"]["name"] != wanted]
    return bool(wanted) and wanted not in known, going


def _has_volume(made: Object) -> bool:
    return any(each["name"] == "job" for each in made["spec"]["volumes"])
