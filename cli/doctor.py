"""`edl doctor`: whether a cluster has what a job needs."""

from __future__ import annotations

from typing import Any

import click

from .options import NAMES, JobCommand, given_values, job_options
from .output import print_data, say
from .paths import LocalPath

_MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


@click.command(cls=JobCommand, context_settings=NAMES)
@click.option("--config", metavar="FILE", type=LocalPath(), help="Settings from a YAML file.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["auto", "job", "edljob"]),
    default="auto",
    help="What `edl submit` would make.",
)
@click.option("-o", "as_", type=click.Choice(["table", "json", "yaml"]), default="table")
@job_options
def doctor(config: str | None, kind: str, as_: str, **flags: Any) -> int:
    """Check whether a cluster has what a job needs, and what mends it; exit code 1 on an error.

    Takes the flags of `edl submit`: the more are given, the more is looked at.
    """
    from ..common.resolve import typed
    from ..common.values import check_namespace
    from ..k8s.outside import doctor as doctor_

    values, origins = given_values(config, flags)
    settings = typed("train", {**values, "runtime": "kubernetes"}, origins)
    check_namespace(settings.namespace, "--namespace")
    found = []
    for finding in doctor_.examine(settings.namespace, settings, kind):
        found.append(finding)
        if as_ == "table":
            say(f"{_MARKS[finding.level]} {finding.what}: {finding.detail}")
    if as_ != "table":
        print_data(doctor_.as_rows(found), as_)
    return int(any(finding.level == doctor_.ERROR for finding in found))
