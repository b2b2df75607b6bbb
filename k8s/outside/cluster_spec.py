"""`--cluster_spec`: what a user lays over the pods that edl makes, of a job or of its servers.

A file of YAML has layers by part: `pod` is over all, the others over the pods of their role. A file
of Python has functions that get each pod's template, and the Service, and may change whatever they
like: it runs once, where it is submitted.
"""

from __future__ import annotations

import contextlib
import json
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...common.errors import UsageError
from ...common.values import safe_loader
from .. import layers, shapes
from ..api import Object

_LABELS = ("edl.dev/", "app.kubernetes.io/")


@dataclass(frozen=True)
class Spec:
    """A file's words: layers by part, or functions; of no file there are neither."""

    path: str = ""
    layers: Mapping[str, Any] = field(default_factory=dict)
    functions: object = None

    @classmethod
    def read(cls, path: str) -> Spec:
        """Read a file; "": none. Raises UsageError."""
        if not path:
            return cls()
        if path.endswith(".py"):
            return cls(path, functions=_functions(path))
        return cls(path, _layers(path))

    def pod(self, template: Object, parts: Sequence[str]) -> Object:
        """Return a pod's template with the layers of these parts, or as the user's function has it.

        Raises UsageError.
        """
        if self.functions is not None:
            return self.called(template)
        return layers.laid(template, self.layers, parts)

    def called(self, template: Object) -> Object:
        """Return a pod's template as `with_pod` makes it. Raises UsageError."""
        made = _called(self.functions, "with_pod", template, self.path)
        shapes.check(made, shapes.WHOLE, f"--cluster_spec: with_pod of {self.path}: pod")
        about = made.setdefault("metadata", {}).setdefault("labels", {})
        ours = template["metadata"]["labels"].items()
        about |= {k: v for k, v in ours if k.startswith(_LABELS)}  # all is found by these
        return made

    def service(self, service: Object) -> Object:
        """Return the Service as `with_service` makes it, where there is one. Raises UsageError."""
        return _called(self.functions, "with_service", service, self.path)


def _layers(path: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.load(Path(path).read_text(encoding="utf-8"), safe_loader())
    except (OSError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise UsageError(f"--cluster_spec: {path} cannot be read: {what}.") from error
    if not isinstance(found, dict):
        raise UsageError(f"--cluster_spec: {path} is no mapping of roles to pods.")
    return found


def _functions(path: str) -> object:
    """Return what has with_pod: the object `cluster` of the file (ElasticDL's way), or the file."""
    try:
        Path(path).open().close()
    except OSError as error:
        raise UsageError(f"--cluster_spec: {path} cannot be read: {error}.") from error
    with _users_code(f"{path} fails", ""):
        module = SimpleNamespace(**runpy.run_path(path))
    found = getattr(module, "cluster", module)
    if not any(callable(getattr(found, name, None)) for name in ("with_pod", "with_service")):
        raise UsageError(
            f"--cluster_spec: {path} has neither with_pod(pod) nor with_service(service), nor an "
            "object `cluster` with them."
        )
    return found


@contextlib.contextmanager
def _users_code(what: str, hint: str) -> Iterator[None]:
    """Tell of any error in the block as the user's: `what` fails, and a hint."""
    try:
        yield
    except Exception as error:  # the code of the user may raise whatever there is
        raise UsageError(f"--cluster_spec: {what}: {error!r}.{hint}") from error


def _called(functions: object, name: str, given: Object, path: str) -> Object:
    """Return an object as the user's function makes it, by returning it or changing it in place."""
    function = getattr(functions, name, None)
    if not callable(function):
        return given
    mine = json.loads(json.dumps(given))  # no part of it is another part as well
    hint = " What it gets is a dict, such as pod['spec']['tolerations']."
    with _users_code(f"{name} of {path} fails", hint):
        made = function(mine)
    made = mine if made is None else made
    if not isinstance(made, dict):
        raise UsageError(f"--cluster_spec: {name} of {path} returns no dict, but {made!r:.60}.")
    return made
