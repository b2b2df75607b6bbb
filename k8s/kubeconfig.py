"""The kubeconfig: which files it is, what of them is wrong, the configuration that they give.

The official client reads it, but takes it to be well formed: what is not ends in whatever Python
raises there, or in a message that holds a token. So the files and the entries that the current
context names are looked at first, and all that is wrong is one sentence, which names file and part.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import UsageError
from ..common.values import check_namespace, safe_loader

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_PARTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
# What names a file, and may stand in the kubeconfig itself as base64 instead (NAME-data).
_FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key")}
_ENTRY = re.compile(r"/\{.*\}")  # which the client quotes, with its secrets

_Found = dict[str, dict[str, tuple[Path, dict[str, Any]]]]  # part, name -> file, entry


def said() -> str:
    """Return how the kubeconfig is named: by the variable, or the usual one."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def load() -> tuple[Configuration, str]:
    """Return the configuration of the kubeconfig, and the namespace of its context.

    Raises UsageError, which says what is wrong and in which file.
    """
    from kubernetes import config
    from kubernetes.client import Configuration

    files = [path for each in said().split(os.pathsep) if (path := _path(each)) is not None]
    where = os.pathsep.join(map(str, files)) or said()
    space = _check(files) if files else ""
    configuration = Configuration()
    try:
        config.load_kube_config(said(), client_configuration=configuration)
    except config.ConfigException as error:
        if files:
            what = _ENTRY.sub("", str(error))
            raise _wrong(where, what.removeprefix("Invalid kube-config file. ")) from error
        raise UsageError(
            f"No Kubernetes cluster is known here: {error}. Name its kubeconfig in KUBECONFIG, "
            "or leave out --runtime kubernetes to run on this machine."
        ) from error
    except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
        # providers of credentials, which have shapes of their own; what Python says may quote them
        why = f": {error.strerror}" if isinstance(error, OSError) else ""
        raise _wrong(where, f"the credentials of its user cannot be read{why}") from error
    _check_certificates(configuration, where)
    return configuration, space or "default"


def _path(each: str) -> Path | None:
    path = Path(os.path.expanduser(each))
    return path if each and path.exists() else None


def _wrong(where: object, what: str) -> UsageError:
    what = " ".join(what.split()).rstrip(".")
    return UsageError(
        f"The kubeconfig {where} cannot be used: {what}. Mend it, or name another one in "
        "KUBECONFIG."
    )


def _check(files: list[Path]) -> str:
    """Check what the current context names; return its namespace. Raises UsageError."""
    found: _Found = {part: {} for part in _PARTS}
    current: object = None
    for path in files:
        read = _read(path)
        for part in _PARTS:
            for name, entry in _entries(path, read, part).items():
                found[part].setdefault(name, (path, entry))  # the first one counts
        current = read.get("current-context", current)
    where = os.pathsep.join(map(str, files))
    if not current or not isinstance(current, str):
        raise _wrong(where, "current-context is missing: `kubectl config use-context NAME` sets it")
    path, context = _named(found, "contexts", current, where, "current-context")
    here = f"the context {current!r}"
    for part in ("cluster", "user", "namespace"):
        if not isinstance(context.get(part, ""), str | None):
            raise _wrong(path, f"{part} of {here} is {_kind(context[part])}, and must be a text")
    check_namespace(
        context.get("namespace") or "", f"The kubeconfig {path}: {here} has the namespace"
    )
    if not context.get("cluster"):
        raise _wrong(path, f"{here} names no cluster")
    path, cluster = _named(found, "clusters", context["cluster"], where, here)
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        what = f"the server of the cluster {context['cluster']!r}"
        raise _wrong(path, f"{what} is missing, or no URL (https://HOST:PORT)")
    _check_files(path, cluster, "cluster", context["cluster"])
    if who := context.get("user"):  # without one: whoever asks is nobody, which may be allowed
        path, user = _named(found, "users", who, where, here)
        _check_files(path, user, "user", who)
        _check_user(path, user, who)
    return context.get("namespace") or ""


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), safe_loader())
    except OSError as error:
        raise _wrong(path, f"it cannot be read ({error.strerror})") from error
    except yaml.composer.ComposerError as error:
        what = "it holds more than one document" if "single" in str(error) else error.problem
        raise _wrong(path, f"{what}{_line(error)}") from error
    except yaml.MarkedYAMLError as error:  # all of it would quote the file, with its secrets
        raise _wrong(path, f"it is no YAML: {error.problem}{_line(error)}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _wrong(path, "it is no YAML: it has bytes that no text has") from error
    if found is None:
        raise _wrong(path, "it is empty")
    if not isinstance(found, dict):
        raise _wrong(path, f"it is {_kind(found)}, and must be a mapping")
    return found


def _line(error: Any) -> str:
    return f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""


def _entries(path: Path, read: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    listed = read.get(part) or []
    if not isinstance(listed, list):
        raise _wrong(path, f"{part} is {_kind(listed)}, and must be a list")
    found: dict[str, dict[str, Any]] = {}
    for n, each in enumerate(listed):
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise _wrong(path, f"{part}[{n}] is no mapping with a name")
        if each["name"] in found:
            raise _wrong(path, f"{part} has two of the name {each['name']!r}")
        found[each["name"]] = each
    return found


def _named(found: _Found, part: str, name: str, where: str, by: str) -> tuple[Path, dict[str, Any]]:
    """Return the file and the body of an entry that something names."""
    if name not in found[part]:
        raise _wrong(where, f"{by} names {name!r}, of which there is none in {part}")
    path, entry = found[part][name]
    body = entry.get(_PARTS[part])
    if not isinstance(body, dict):
        what = f"the {_PARTS[part]} {name!r}"
        raise _wrong(path, f"{what} is {_kind(body)}, and must be a mapping")
    for field, value in body.items():
        if value is None and part != "contexts":
            raise _wrong(path, f"{field} of the {_PARTS[part]} {name!r} is empty: take it out")
    return path, body


def _check_files(path: Path, body: dict[str, Any], what: str, name: str) -> None:
    """Check that what a cluster or a user says of certificates is there."""
    for field in _FILES[what]:
        data = body.get(f"{field}-data")
        if data:
            try:
                text = "".join(data.split()) if isinstance(data, str) else "?"
                base64.b64decode(text, validate=True)
            except ValueError as error:
                raise _wrong(path, f"{field}-data of the {what} {name!r} is no base64") from error
        elif body.get(field) and f"{field}-data" not in body:
            _check_file(path, body[field], f"{field} of the {what} {name!r}")


def _check_file(path: Path, value: object, what: str) -> None:
    if not isinstance(value, str):
        raise _wrong(path, f"{what} is {_kind(value)}, and must be the path of a file")
    file = path.absolute().parent / value
    if not file.is_file():
        raise _wrong(path, f"{what} is a file that is missing: {file}")
    if not os.access(file, os.R_OK):
        raise _wrong(path, f"{what} is a file that you may not read: {file}")


def _check_user(path: Path, user: dict[str, Any], name: str) -> None:
    for field in ("token", "username", "password"):
        if not isinstance(user.get(field, ""), str):
            kind = _kind(user[field])
            raise _wrong(path, f"{field} of the user {name!r} is {kind}, and must be a text")
    for field in ("exec", "auth-provider"):
        if not isinstance(user.get(field, {}), dict):
            kind = _kind(user[field])
            raise _wrong(path, f"{field} of the user {name!r} is {kind}, and must be a mapping")
    if "token" not in user and "tokenFile" in user:
        _check_file(path, user["tokenFile"], f"tokenFile of the user {name!r}")


def _check_certificates(configuration: Configuration, where: str) -> None:
    """Check that certificates and key are such: a connection would only say that it fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if configuration.ssl_ca_cert:
            context.load_verify_locations(configuration.ssl_ca_cert)
    except (OSError, ValueError) as error:
        what = "the certificate-authority of its cluster is no certificate (PEM)"
        raise _wrong(where, what) from error
    try:
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (OSError, ValueError) as error:
        what = "client-certificate and client-key of its user are no certificate and its key (PEM)"
        raise _wrong(where, what) from error


def _kind(value: object) -> str:
    words = {dict: "a mapping", list: "a list", str: "a text", type(None): "empty"}
    return words.get(type(value), "a number or a date")
