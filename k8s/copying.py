"""The helper pod that gives out files of a job, which `edl cp` reads through the API server. Pure.

Who wants a file writes into an annotation of the EdlJob which, and the digest of a secret; the
controller makes a pod of the workers' (or servers') template, with their volumes and rights, that
is of no other use. So whoever may change an EdlJob needs no right to make pods, or to run anything
in one. The pod ends when it has answered once, or nobody has asked for a while.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass

from . import names, pods
from .api import Object
from .names import FILES_PORT

ANNOTATION = "edl.dev/copy"
ROLE = "copy"
LONGEST_S = 6 * 3600  # of one copy
_FOR = ("worker", "ps")  # whose template: of the first that has the job's volume


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


def template(templates: dict[str, Object], asked: Wish) -> Object:
    """Make the template of the pod for a wish. Raises KeyError where `templates` are no job's."""
    mine = [templates[role] for role in _FOR]
    chosen = next((each for each in mine if _has_volume(each)), mine[0])
    made: Object = copy.deepcopy(chosen)
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
