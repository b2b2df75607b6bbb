"""The ConfigMap that a job's master starts from: settings, templates, what is wanted. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ..common import launched
from ..common.settings import JobSettings
from . import job as edljob
from . import layers, objects
from .api import Object
from .job import Wanted


def begun(config: Object) -> Wanted:
    """Return what the job has begun with.

    Raises KeyError, TypeError or ValueError where somebody has written something else into it.
    """
    data = config["data"]
    return Wanted(launched.read(data[objects.SETTINGS]), json.loads(data[objects.TEMPLATES]))


def settings(config: Object | None) -> JobSettings | None:
    """Return the settings that the job has begun with, None where none can be read."""
    try:
        return launched.read(config["data"][objects.SETTINGS]) if config else None
    except (KeyError, TypeError, ValueError):  # somebody has written into it: it is made anew
        return None


def with_its_volume(job: Object, config: Object | None) -> tuple[Object, bool]:
    """Return an EdlJob with the volume that its templates have, and whether its spec has another.

    What ends with its pod is no volume. Where no templates can be read, it stays as it is.
    """
    if config is None:
        return job, False
    try:
        volumes = begun(config).templates["master"]["spec"]["volumes"]
        volume = layers.said(next(each for each in volumes if each["name"] == "job"))
        source = {name: each for name, each in volume.items() if name != "name"}
    except (KeyError, StopIteration, TypeError, ValueError):
        return job, False
    spec, before = job["spec"], {"jobVolume": source}
    lasted, lasts = edljob.durable(before), edljob.durable(spec)
    if lasted == lasts and (not lasts or source == spec["jobVolume"]):
        return job, False
    rest = {name: each for name, each in spec.items() if name != "jobVolume"}
    return {**job, "spec": {**rest, **(before if lasted else {})}}, True


def changes(
    config: Object,
    spec: Object,
    wanted: Wanted,
    told: Mapping[str, Any] | None,
    whole: bool,
    stop: str = "",
) -> tuple[dict[str, str], list[str]]:
    """Return the parts of the data that a spec changes, and the settings that it may not change.

    `wanted` is what the EdlJob's `spec` asks for; `told` is the master's status. `whole`: a master
    is to start from it, so that it may change in all its parts. `stop`: why it is to stop; "".
    """
    now = wanted.settings
    refused: list[str] = []
    if (before := settings(config)) is not None:
        now, refused = edljob.adopted(before, now)
    data = config["data"]
    parts: dict[str, str] = {}
    said = _parsed(data.get(objects.WANTED))
    questions = said.get("checkpoints") or []
    asked = objects.wanted(wanted.settings, str(said.get("stop") or stop), questions)
    if any((said.get(name) or type(value)()) != value for name, value in asked.items()):
        parts[objects.WANTED] = json.dumps(asked)
    if whole:
        now = dataclasses.replace(now, resume=_resume(now, spec, wanted, told))
        if _parsed(data.get(objects.SETTINGS)) != dataclasses.asdict(now):
            parts[objects.SETTINGS] = now.to_json()
        if _parsed(data.get(objects.TEMPLATES)) != wanted.templates:
            parts[objects.TEMPLATES] = json.dumps(wanted.templates)
    return parts, refused


def _resume(now: JobSettings, spec: Object, wanted: Wanted, told: Mapping[str, Any] | None) -> str:
    """Return the checkpoint from which the next master goes on where no journal is kept."""
    newest = str((told or {}).get("checkpoint") or "")
    lasts = edljob.outlives(now.checkpoint_dir, wanted.templates["ps"])
    if edljob.durable(spec) or now.command != "train" or not (newest and lasts):
        return now.resume
    return newest


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
