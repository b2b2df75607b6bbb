"""A workload: which jobs come when, by a CSV file as the workloads of Pollux (OSDI '21)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from edl.common.errors import UsageError

from .tables import Parser, amount, read_table, text


@dataclass(frozen=True)
class Arrival:
    """A job that comes."""

    name: str
    submitted: float  # s since the beginning
    application: str


def read_workload(path: Path, applications: Collection[str]) -> list[Arrival]:
    """Return the jobs of a file with the columns name, time (s) and application, by their time.

    Raises UsageError that names the line and the field of what is no job: a name that another has,
    a time below 0 s, an application that is not among those given. One job is the least.
    """

    def application(field: str) -> str:
        if field not in applications:
            raise ValueError(f"one of {', '.join(sorted(applications))}")
        return field

    found: dict[str, Arrival] = {}
    columns: dict[str, Parser] = {"name": text, "time": amount, "application": application}
    for line, row in read_table(path, columns):
        name = str(row["name"])
        if name in found:
            raise UsageError(f"{path}: line {line}: name is one of its own, not again {name!r}")
        found[name] = Arrival(name, float(row["time"]), str(row["application"]))
    if not found:
        raise UsageError(f"{path} has no job: each is a line with a name, a time, an application")
    return sorted(found.values(), key=lambda job: job.submitted)
