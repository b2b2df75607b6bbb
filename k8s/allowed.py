"""The limits of what an EdlJob may ask: what harms nobody else, and what is allowed. Pure.

Whoever may create EdlJobs may create no pods, mostly, so an EdlJob must not be a way around that:
its podTemplates, volumes and settings are held against a list of what they may say, and all that is
not in it is refused by name. What an installer allows besides stands with the controller
(EDL_ALLOW, which the chart writes from `controller.allow`), as lists of names in which * stands for
anything: who may change that is whoever may change the controller.

The master's container holds a token that can make pods. So its image is the installer's, what lies
over its files or changes its environment is refused, and the definition is checked beside it
(confined.py).
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..common.cluster_settings import POD_USER
from ..common.errors import UsageError
from ..common.values import safe_loader
from . import names
from .api import Object
from .names import CONTAINER

_MASTER_CLASS = "edl-master"
_OWN_LABELS = ("edl.dev/", "app.kubernetes.io/")  # which a podTemplate does not change
_OWN_VOLUMES = {"job", "scratch", "shm", "settings", "checked", "no-token"}
_KUBERNETES = re.compile(
    r"([a-z0-9.-]+\.)?(kubernetes|k8s)\.io/.*"
)  # "*" does not mean its own taints
# Folders that the file system's standard gives to the system: Python and edl lie there.
_SYSTEM = re.compile(
    r"/(bin|boot|dev|etc|home|lib[^/]*|opt|proc|root|run|sbin|sys|tmp|usr|var)?(/.*)?"
)


class NotAllowed(UsageError):
    """An EdlJob asks for more than its namespace allows."""


@dataclass(frozen=True)
class Allowed:
    """Names that EdlJobs of a namespace may use, by what they are names of."""

    claims: tuple[str, ...] = ("*",)  # PersistentVolumeClaims, by which data comes in
    secrets: tuple[str, ...] = ()  # as volumes and environment
    pull_secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()
    host_paths: tuple[str, ...] = ()
    service_accounts: tuple[str, ...] = ()  # of masters, besides edl-master
    priority_classes: tuple[str, ...] = ("edl-low", "edl-high")
    labels: tuple[str, ...] = ()  # of pods: Services and policies select by them
    annotations: tuple[str, ...] = ()  # of pods: sidecars and cloud roles come by them
    tolerations: tuple[str, ...] = ("*",)  # keys of taints
    mounts: tuple[str, ...] = ()  # paths of masters in a folder of the system's
    fields: tuple[str, ...] = ()  # any other: spec.worker.podTemplate.spec.runtimeClassName

    @classmethod
    def of(cls, given: object, where: str) -> Allowed:
        """Read what is allowed from YAML, named as Kubernetes writes it. Raises UsageError."""
        known = {_camel(each.name): each.name for each in dataclasses.fields(cls)}
        if not isinstance(given, Mapping) or (unknown := sorted(given.keys() - known.keys())):
            what = f"it has no {unknown[0]!r}" if isinstance(given, Mapping) else "it is no mapping"
            raise UsageError(f"{where}: {what}; what can be allowed is {', '.join(known)}.")
        for name, words in given.items():
            if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
                raise UsageError(f"{where}: {name} is no list of names, but {words!r:.60}.")
        return cls(**{known[name]: tuple(words) for name, words in given.items()})


@dataclass(frozen=True)
class Installed:
    """The installer's word to the controller. `image`: of masters ("": the EdlJob's own)."""

    allowed: Allowed = Allowed()
    by_namespace: Mapping[str, Allowed] = field(default_factory=dict)  # instead of `allowed`
    image: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    pod_user: str = POD_USER  # as --pod_user has it

    @classmethod
    def parse(cls, text: str, **more: Any) -> Installed:
        """Read EDL_ALLOW. Raises UsageError."""
        import yaml

        try:
            given = yaml.load(text, safe_loader()) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"EDL_ALLOW is no YAML: {' '.join(str(error).split())}.") from error
        spaces = given.pop("namespaces", None) or {} if isinstance(given, dict) else {}
        if not isinstance(spaces, dict):
            raise UsageError(
                "EDL_ALLOW: namespaces is no mapping of namespaces to what they allow."
            )
        by_namespace = {
            name: Allowed.of(each, f"EDL_ALLOW: namespaces.{name}") for name, each in spaces.items()
        }
        return cls(Allowed.of(given, "EDL_ALLOW"), by_namespace, **more)

    def of(self, namespace: str) -> Allowed:
        return self.by_namespace.get(namespace, self.allowed)


USUAL = Installed()


# What `pod` and `_container` look at by lists of their own; else a pod is as edl makes it.
_LISTED = {"nodeSelector", "topologySpreadConstraints", "affinity", "priorityClassName"}
_LISTED |= {"tolerations", "imagePullSecrets", "volumes", "containers"}
_LISTED_OF_CONTAINER = {"name", "resources", "volumeMounts"}


def check(spec: Object, account: str, usual_account: str, allowed: Allowed, job: str = "") -> None:
    """Check that a spec says only what is allowed. `account`: of the master; `job`: its name.

    Raises NotAllowed, which names all that a spec may not say; AttributeError, KeyError, TypeError
    where a part of it has another shape than a pod's has.
    """
    found = _Check(allowed, names.object_name(job, "definition"))
    if account != usual_account:
        found.name("serviceAccounts", "spec.settings.service_account", account)
    if spec.get("jobVolume"):
        found.source("spec.jobVolume", spec["jobVolume"])
    found.pod("spec", {"volumes": spec.get("volumes")}, "")
    mounts = spec.get("volumeMounts") or []
    found.mounts("spec.volumeMounts", mounts, master=True)  # all pods have them, the master's too
    for each in spec.get("imagePullSecrets") or []:
        found.name("pullSecrets", "spec.imagePullSecrets", each["name"])
    for role in names.ROLES:
        said = spec.get(role) or {}
        fields = ("priorityClassName", "tolerations", "nodeSelector")
        found.pod(f"spec.{role}", {name: said.get(name) for name in fields}, role)
        if role == "worker":
            found.pod("spec.worker.low", said.get("low") or {}, role)
        template = said.get("podTemplate") or {}
        path = f"spec.{role}.podTemplate"
        for part, value in template.items():
            if part == "metadata":
                found.metadata(f"{path}.metadata", value or {})
            elif part == "spec":
                found.pod(f"{path}.spec", value or {}, role)
            else:
                found.field(f"{path}.{part}", value)
    found.tell()


def check_pods(
    made: Mapping[str, Object], usual: Mapping[str, Object], allowed: Allowed, job: str = ""
) -> None:
    """Check that pods are as they are made of settings alone, but for what is allowed.

    `check` reads what was written, this what has become of it: `made` are the templates by roles
    with all that an EdlJob lays over them, `usual` those without. Raises NotAllowed.
    """
    found = _Check(allowed, names.object_name(job, "definition"))
    for role, template in made.items():
        component, _, pool = role.partition("_")
        where = [f"spec.{component}.podTemplate"]
        if pool == "low":
            where.append("spec.worker.low")
        found.whole(where, usual[role], template, component)
    found.tell()


class _Check:
    """A walk through a pod as a user writes it, which collects what is not allowed."""

    def __init__(self, allowed: Allowed, definition: str) -> None:
        self._allowed = allowed
        self._definition = definition  # the job's own ConfigMap (objects.definition)
        self._refused: list[str] = []

    def tell(self) -> None:
        if self._refused:
            raise NotAllowed(
                "This namespace does not allow EdlJobs to say: "
                f"{'; '.join(dict.fromkeys(self._refused))}. Take it out, or ask whoever installed "
                "edl to allow it (controller.allow of the chart, EDL_ALLOW of the controller)."
            )

    def name(self, kind: str, path: str, name: object, also: str = "") -> None:
        """Check a name, which has to be in the list of its kind."""
        patterns = getattr(self._allowed, _snake(kind))
        if name != also and not any(fnmatchcase(str(name), each) for each in patterns):
            self._refused.append(f"{path} ({kind}: {name})")

    def field(self, path: str, value: object) -> None:
        """Check a field that is in no list but `fields`: it, or what is below it, must be there."""
        if any(fnmatchcase(path, each) for each in self._allowed.fields):
            return
        if isinstance(value, Mapping) and value:
            for name, each in value.items():
                self.field(f"{path}.{name}", each)
        elif isinstance(value, list) and value:
            for each in value:
                self.field(path, each) if isinstance(each, Mapping) else self._no(path)
        else:
            self._no(path)

    def _no(self, path: str) -> None:
        self._refused.append(f"{path} (fields: {path})")

    def metadata(self, path: str, about: Mapping[str, Any]) -> None:
        for part, value in about.items():
            if part not in ("labels", "annotations"):
                self.field(f"{path}.{part}", value)
                continue
            for name in value or {}:
                if part == "annotations" or not name.startswith(_OWN_LABELS):
                    self.name(part, f"{path}.{part}", name)

    def pod(self, path: str, spec: Mapping[str, Any], role: str) -> None:
        for name, value in spec.items():
            here = f"{path}.{name}"
            if value is None:
                continue
            match name:
                case "nodeSelector" | "topologySpreadConstraints":
                    pass  # where it runs, and of its own pods only
                case "affinity":  # the one between pods keeps others off a node
                    self.rest(here, value, {"nodeAffinity"})
                case "priorityClassName":
                    also = _MASTER_CLASS if role == "master" else ""
                    self.name("priorityClasses", here, value, also)
                case "tolerations":
                    for each in value:
                        self._toleration(here, each.get("key") or "")
                case "imagePullSecrets":
                    for each in value:
                        self.name("pullSecrets", here, each["name"])
                case "volumes":
                    for each in value:
                        if each["name"] in _OWN_VOLUMES:
                            raise UsageError(
                                f"{here}: the name {each['name']} is edl's own: choose another one."
                            )
                        self.source(here, {k: v for k, v in each.items() if k != "name"})
                case "containers":
                    for each in value:
                        if each.get("name") == CONTAINER:
                            self._container(here, each, role)
                        else:
                            self.field(f"{here}.{each.get('name') or '?'}", each)
                case _:
                    self.field(here, value)

    def whole(self, where: list[str], usual: Object, made: Object, role: str) -> None:
        """Check a pod as it is to be. `where`: the paths by which a user may have changed it."""
        labels = made["metadata"]["labels"]
        for name, value in usual["metadata"]["labels"].items():
            if labels.get(name) != value:
                self._no(f"{where[0]}.metadata.labels.{name}")
        before, after = usual["spec"], made["spec"]
        specs = [where[0] + ".spec", *where[1:]]
        for name in sorted((before.keys() | after.keys()) - _LISTED):
            self._other([f"{each}.{name}" for each in specs], before.get(name), after.get(name))
        known = before["volumes"]
        for each in after["volumes"]:
            if each not in known:
                self._volume(["spec.volumes", *(f"{at}.volumes" for at in specs)], each)
        ours = {each["name"]: each for each in before["containers"]}
        free = _LISTED_OF_CONTAINER | (
            {"env", "envFrom", "workingDir"} if role != "master" else set()
        )
        for each in after["containers"]:
            name = each.get("name") or "?"
            mine = ours.get(name, {})
            ends = [f"{at}.containers" + ("" if mine else f".{name}") for at in specs]
            for part in sorted((mine.keys() | each.keys()) - (free if mine else set())):
                paths = [f"{end}.{part}" for end in ends]
                self._other(paths, mine.get(part), each.get(part))

    def _other(self, paths: list[str], before: object, after: object) -> None:
        """Check a value that is another one than edl's: any of these paths may allow it."""
        if before == after:
            return
        if after is None:  # which nothing allows: what edl sets is replaced at most
            self._no(paths[0])
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            for name in sorted(before.keys() | after.keys()):
                below = [f"{path}.{name}" for path in paths]
                self._other(below, before.get(name), after.get(name))
        else:
            new = after
            if isinstance(before, list) and isinstance(after, list):
                new = [each for each in after if each not in before]
            self._any(paths, lambda one, path: one.field(path, new))

    def _volume(self, paths: list[str], volume: Mapping[str, Any]) -> None:
        sources = {name: each for name, each in volume.items() if name != "name"}
        self._any(paths, lambda one, path: one.source(path, sources))

    def _any(self, paths: list[str], look: Callable[[_Check, str], None]) -> None:
        """Refuse what is refused by each of these paths."""
        tries = [_Check(self._allowed, self._definition) for _ in paths]
        for one, path in zip(tries, paths, strict=True):
            look(one, path)
        if all(one._refused for one in tries):
            self._refused += tries[0]._refused

    def rest(self, path: str, value: Mapping[str, Any], free: set[str]) -> None:
        """Refuse fields that are none of these."""
        for name, each in value.items():
            if name not in free:
                self.field(f"{path}.{name}", each)

    def _toleration(self, path: str, key: str) -> None:
        if _KUBERNETES.fullmatch(key) or not key:
            if key not in self._allowed.tolerations:
                self._refused.append(
                    f"{path} (tolerations: {key or 'without a key, of all taints'})"
                )
        else:
            self.name("tolerations", path, key)

    def source(self, path: str, sources: Mapping[str, Any]) -> None:
        """Check a volume."""
        for kind, source in sources.items():
            here = f"{path}.{kind}"
            match kind:
                case "emptyDir":
                    pass
                case "persistentVolumeClaim":
                    self.name("claims", here, source["claimName"])
                case "secret":
                    self.name("secrets", here, source["secretName"])
                case "configMap":
                    self.name("configMaps", here, source["name"], self._definition)
                case "hostPath":
                    self.name("hostPaths", here, _plain(source["path"]))
                case _:
                    self.field(here, source)

    def _container(self, path: str, container: Mapping[str, Any], role: str) -> None:
        for name, value in container.items():
            here = f"{path}.{name}"
            match name:
                case "name":
                    pass
                case "resources":
                    self.rest(here, value or {}, {"requests", "limits"})
                case "volumeMounts":
                    self.mounts(here, value or [], master=role == "master")
                case "workingDir" if role != "master":
                    pass
                case "env" | "envFrom" if role != "master":
                    for each in value or []:
                        self._variable(here, each)
                case _:
                    self.field(here, value)

    def _variable(self, path: str, given: Mapping[str, Any]) -> None:
        """Check `env` and `envFrom`."""
        kinds = {"secretKeyRef": "secrets", "secretRef": "secrets"}
        kinds |= {"configMapKeyRef": "configMaps", "configMapRef": "configMaps"}
        for name, value in given.items():
            if name in ("name", "value", "prefix"):
                continue
            parts = (value or {}) if name == "valueFrom" else {name: value}
            here = f"{path}.{name}" if name == "valueFrom" else path
            for part, source in parts.items():
                if part in kinds:
                    self.name(kinds[part], f"{here}.{part}", source["name"])
                else:
                    self.field(f"{here}.{part}", source)

    def mounts(self, path: str, mounts: Iterable[Mapping[str, Any]], master: bool) -> None:
        for each in mounts:
            where = _plain(each["mountPath"])
            if master and _SYSTEM.fullmatch(where):
                self.name("mounts", path, where)
            self.rest(path, each, {"name", "mountPath", "subPath", "subPathExpr", "readOnly"})


def _plain(path: str) -> str:
    """Return a path said in the one way that the lists know."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
