"""Quotas of namespaces and users, out of a YAML file. It is read here; the rest is pure."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

from ..common.errors import UsageError
from ..common.values import yaml_loader
from ..k8s.names import quantity
from .cluster import Resources
from .jobs import Quota

_AMOUNTS = ("cpu", "memory", "gpu")
_FIELDS = ("namespace", "user", *_AMOUNTS, "priority")


def read_quotas(path: str) -> tuple[Quota, ...]:
    """Return the quotas of a file: a list of {namespace, user, cpu, memory, gpu, priority}.

    Who is not named is anybody; an amount that is not said has no limit. Raises UsageError, which
    names the entry and the field.
    """
    import yaml

    try:
        found = yaml.load(Path(path).read_text(encoding="utf-8"), yaml_loader())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(found, list):
        raise UsageError(f"{path} is no list of quotas: write - {{namespace: team-a, cpu: 16}}.")
    return tuple(_quota(each, f"{path}: quota {i}") for i, each in enumerate(found, 1))


def _quota(given: object, where: str) -> Quota:
    if not isinstance(given, dict):
        raise UsageError(f"{where} is {given!r:.60}: write {{namespace: team-a, cpu: 16}}.")
    if unknown := [str(each) for each in given if each not in _FIELDS]:
        raise UsageError(f"{where} has no field {unknown[0]!r}: there are {', '.join(_FIELDS)}.")
    if not any(name in given for name in (*_AMOUNTS, "priority")):
        raise UsageError(f"{where} limits nothing: say cpu, memory, gpu or priority.")
    most = {
        name: float(quantity(str(given[name]), f"{where}: {name}")) if name in given else math.inf
        for name in _AMOUNTS
    }
    namespace, user = (_name(given.get(each), f"{where}: {each}") for each in ("namespace", "user"))
    amounts = Resources(most["cpu"], most["memory"], most["gpu"])
    return Quota(namespace, user, amounts, _priority(given.get("priority"), where))


def _name(said: object, where: str) -> str | None:
    """Return a name, which YAML may take for a number; None: nobody is named."""
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, str | int) or said == "":
        raise UsageError(
            f"{where}: {said!r:.60} is no name: write one, in quotes, or leave it out."
        )
    return str(said)


def _priority(said: object, where: str) -> int | None:
    """Return a priority as YAML has it: of a chart also as 1e+06."""
    if said is None:
        return None
    try:
        number = Decimal(str(said))
        if isinstance(said, bool) or number != int(number):
            raise ValueError(said)
    except (ArithmeticError, ValueError) as error:
        raise UsageError(f"{where}: priority: {said!r} is no whole number.") from error
    return int(number)
