"""Submit a job to a cluster: make the objects of a batch Job, or one EdlJob.

Where a controller runs, an EdlJob says what is wanted and the controller makes the rest. Where none
does, all is made here: first a Job that does not run, which owns everything, then what its pod
needs, then it runs; whatever is refused in between, nothing is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

from ...common import launched
from ...common.errors import UsageError
from ...common.identity import Identity
from ...common.settings import JobSettings, knobs
from ...jobs.queue import Wishes, bounds
from .. import holders, layers, names, objects, pods
from ..api import Api, Object
from ..connection import ApiError
from ..job import check_state
from .cluster_spec import Spec
from .job import ClusterJob

KINDS = ("auto", "job", "edljob")
# Settings of the cluster that an EdlJob has no field of its own for.
_KEPT = {"oom_memory_cap", "service_account"}
_OWN_FIELDS = {"job_name", "envs", "num_workers", "num_ps", "port", "nodes"}
_OWN_FIELDS |= {"num_teachers", "max_teachers"}

Templates = dict[str, Object]


def plan(
    settings: JobSettings,
    kind: str = "job",
    wishes: Wishes | None = None,
) -> list[Object]:
    """Return all that a submission makes, in order, without what the moment gives (token, owner).

    Raises UsageError. `kind` is job or edljob; `wishes` are of a job for the scheduler's queue.
    """
    names.check_free(settings.job_name, "--job_name")
    settings = dataclasses.replace(settings, port=names.GRPC_PORT)
    base, changed, spec = _templates(settings)
    check_state(settings, changed, "--job_volume")
    if kind == "edljob":
        made = edl_job(settings, base, changed)
        return [made if wishes is None else queued(made, settings, wishes)]
    if wishes is not None:
        raise UsageError(
            "--queue is of EdlJobs, and here none would be made: say --as edljob, and see that "
            "their controller runs (docs/kubernetes.md)."
        )
    job = settings.job_name
    return [
        objects.master_job(job, changed["master"]),
        objects.secret(job, Identity("")),
        objects.config(settings, changed),
        spec.service(objects.service(job)),
        objects.network_policy(job),
        objects.disruption_budget(job, settings.num_ps),
    ]


def as_yaml(settings: JobSettings, kind: str, wishes: Wishes | None = None) -> str:
    """Return what `plan` makes, for reading; of an EdlJob for kubectl."""
    import yaml

    class Plain(yaml.SafeDumper):
        """A dumper without anchors: what two roles have in common is written twice."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    made = plan(settings, kind, wishes=wishes)
    for each in made:
        if settings.namespace:
            each["metadata"]["namespace"] = settings.namespace
    head = ""
    if kind == "job":
        head = "# The token and certificate in the Secret, and the owner of each, are made "
        head += "at submit.\n"
    return head + str(yaml.dump_all(made, Dumper=Plain, sort_keys=False))


def choose(api: Api) -> str:
    """Return edljob where the cluster knows it and a controller runs, else job."""
    return "edljob" if _unseen(api) is None and holders.controller(api) else "job"


def _unseen(api: Api) -> ApiError | None:
    """Return why EdlJobs are not shown: they are forbidden (403), or not known; None: they are."""
    try:
        api.list(names.KIND)
    except ApiError as error:
        if error.status in (403, 404):
            return error
        raise
    return None


def submit(
    api: Api,
    settings: JobSettings,
    kind: str = "auto",
    wishes: Wishes | None = None,
    definition: str = "",
) -> ClusterJob:
    """Make the job. Raises UsageError where one of its name is there.

    `definition`: the text of objects.DEFINITION, where the settings name that; else "".
    """
    job = settings.job_name
    is_chosen = kind == "auto"
    kind = choose(api) if is_chosen else kind
    top, *others = plan(settings, kind, wishes)
    if kind == "job":
        top["spec"]["parallelism"] = 0  # until all that its pod needs is there
    if kind == "job":
        others[0] = objects.secret(job, Identity.create(secrets.token_hex(16)))
    if definition:
        others.append(objects.definition(job, definition))
    try:
        owner = _create_top(api, top, job)
    except ApiError as error:
        refused = _unseen(api) if is_chosen and error.status == 403 else None
        if refused is not None and refused.status == 403:  # whose role is less than that of Jobs
            raise refused from error
        raise
    with contextlib.ExitStack() as undo:
        undo.callback(api.delete, top["kind"], top["metadata"]["name"])
        for each in others:
            each["metadata"]["ownerReferences"] = [
                {**objects.owner_reference(owner), "blockOwnerDeletion": False}
            ]
            api.create(each["kind"], each)
        if kind == "job":
            api.patch("Job", top["metadata"]["name"], {"spec": {"parallelism": 1}})
        undo.pop_all()
    return ClusterJob(api, job)


def _create_top(api: Api, top: Object, job: str) -> Object:
    kind = top["kind"]
    try:
        return api.create(kind, top)
    except ApiError as error:
        if error.status == 409:
            raise UsageError(
                f"--job_name: a job named {job!r} is in the namespace {api.namespace} already: "
                f"choose another name, or delete that one (`edl delete {job} -n {api.namespace}`)."
            ) from error
        if error.status == 404 and "namespaces" in error.message:
            raise UsageError(
                f"--namespace: there is no namespace {api.namespace!r}: name another one, or make "
                f"it (`kubectl create namespace {api.namespace}`)."
            ) from error
        if error.status == 404:
            raise UsageError(
                "--as edljob: this cluster does not know EdlJobs: `helm install edl "
                f"k8s/manifests/chart -n {api.namespace}` makes them known; else say --as job."
            ) from error
        raise


def _templates(settings: JobSettings) -> tuple[Templates, Templates, Spec]:
    """Return the pods' templates by the settings, those by --cluster_spec, and this."""
    base = pods.templates(settings)
    spec = Spec.read(settings.cluster_spec)
    if spec.functions is None:
        return base, pods.templates(settings, spec.layers) if spec.layers else base, spec
    changed = {role: spec.called(template) for role, template in base.items()}
    for template in changed.values():
        pods.container_of(template)
    return base, changed, spec


# -- EdlJob


def edl_job(settings: JobSettings, base: Templates, changed: Templates) -> Object:
    """Make the EdlJob of which a controller makes the same. Raises UsageError where none would."""
    if settings.restart_policy != "Never":
        raise UsageError(
            "--restart_policy: the controller of EdlJobs starts a master in a new pod: leave it "
            "out, or say --as job."
        )
    if settings.pod_user != JobSettings().pod_user:
        raise UsageError(
            "--pod_user: whoever installed the controller of EdlJobs says whom their pods run as "
            "(podUser of the chart): leave it out, or say --as job."
        )
    sources, mounts = names.volumes(settings.volume, "--volume")
    worker: Object = {**_role(base, changed, "worker"), "replicas": settings.num_workers}
    if settings.min_workers:
        worker["minReplicas"] = settings.min_workers
    ps: Object = {**_role(base, changed, "ps"), "replicas": settings.num_ps}
    teacher: Object = {}
    if settings.most_teachers:
        teacher = {**_role(base, changed, "teacher"), "replicas": settings.num_teachers}
    if settings.max_teachers:
        teacher["maxReplicas"] = settings.max_teachers
    if isinstance(settings, launched.LaunchedSettings):
        worker["minReplicas"], worker["maxReplicas"] = settings.bounds
        ps = {}
    if pods.is_fraction(settings.worker_pod_priority):
        worker["highFraction"] = float(settings.worker_pod_priority)
    job_volume = next(v for v in base["master"]["spec"]["volumes"] if v["name"] == "job")
    secret = settings.image_pull_secret
    spec = {
        "image": settings.image_name,
        "imagePullPolicy": settings.image_pull_policy,
        "imagePullSecrets": [{"name": secret}] if secret else [],
        "command": settings.command,
        "settings": _said(settings),
        "envs": settings.envs,
        **({} if settings.preemptible else {"preemptible": False}),
        "jobVolume": {k: v for k, v in job_volume.items() if k not in ("name", "emptyDir")},
        "volumes": sources,
        "volumeMounts": mounts,
        "master": _role(base, changed, "master"),
        "ps": ps,
        "worker": worker,
        "teacher": teacher,
    }
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": settings.job_name, "labels": names.labels(settings.job_name)},
        "spec": {name: value for name, value in spec.items() if value not in ({}, [], "")},
    }


def queued(made: Object, settings: JobSettings, wishes: Wishes) -> Object:
    """Return an EdlJob that waits for the scheduler. Raises UsageError, as `queue.bounds` does."""
    minimum, maximum = bounds(settings, wishes)
    said = {name: value for name, value in vars(wishes).items() if value and name != "max_ps"}
    worker = {"replicas": minimum, "minReplicas": minimum, "maxReplicas": maximum}
    spec = {**made["spec"], "suspend": True, "scheduling": said}
    spec["worker"] = {**spec["worker"], **worker}
    if wishes.max_ps:
        spec["ps"] = {**spec["ps"], "maxReplicas": wishes.max_ps}
    return {**made, "spec": spec}


def _said(settings: JobSettings) -> dict[str, Any]:
    """Return the settings that are not the default, and have no field of their own."""
    return {
        knob.name: value
        for knob in (launched.knobs() if settings.command == launched.COMMAND else knobs())
        if (value := getattr(settings, knob.name)) != knob.default
        and knob.name not in _OWN_FIELDS
        and (knob.group != "Cluster" or knob.name in _KEPT)
    }


def _role(base: Templates, changed: Templates, role: str) -> Object:
    spec = base[role]["spec"]
    made: Object = {"resources": pods.container_of(base[role])["resources"]}
    if "priorityClassName" in spec:
        made["priorityClassName"] = spec["priorityClassName"]
    templates = [each for each in names.TEMPLATES if each.partition("_")[0] == role]
    more = [difference(base[each], changed[each]) for each in templates]
    if any(each != more[0] for each in more) or any(
        layers.merged(base[each], more[0] or {}) != changed[each] for each in templates
    ):
        raise UsageError(
            f"--cluster_spec: what it makes of the {role} cannot be said in an EdlJob (it takes "
            "something away, or tells workers from one another): say --as job."
        )
    if more[0]:
        made["podTemplate"] = more[0]
    return made


def difference(base: Any, changed: Any) -> Any:
    """Return what laid over `base` (layers.merged) gives `changed`, if anything; None: equal."""
    if base == changed:
        return None
    if isinstance(base, Mapping) and isinstance(changed, Mapping):
        found = {k: difference(base[k], v) if k in base else v for k, v in changed.items()}
        return {k: v for k, v in found.items() if k not in base or v is not None}
    if isinstance(base, list) and isinstance(changed, list):
        for key in ("mountPath", "name"):
            if all(isinstance(each, dict) and key in each for each in (*base, *changed)):
                known = {each[key]: each for each in base}
                parts = [(each, difference(known.get(each[key]), each)) for each in changed]
                return [{key: each[key], **part} for each, part in parts if part is not None]
        return [each for each in changed if each not in base]
    return changed
