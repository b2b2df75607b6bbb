"""The schema of a job: what is known of its columns before a record is read, and what is found.

A job that goes on from a checkpoint, or uses one, has its columns as they were then. What is
declared with it may name more columns, but no other types: the model knows none. A new job that
only begins with a checkpoint's parameters may declare its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import RecordError, UsageError
from ..common.foreign import parse, read_plain
from ..common.settings import JobSettings
from ..common.storage import Manifest
from ..data.missing import named
from ..data.reader import Columns, RecordReader, Records, Source
from ..data.schema import NO_SCHEMA, Schema
from ..data.schema_given import of_params, schema_given

_MOST_NOTES = 20  # lines at the start of a job; `edl data schema` prints all


@dataclass(frozen=True)
class Known:
    """What is known of the columns before they are read.

    `before`: the columns of the checkpoint `place`; None: it says nothing of them, or there is
    none ("").
    """

    schema: Schema
    said: Schema  # what is declared with this job
    before: Schema | None = None
    place: str = ""
    notes: Sequence[str] = ()


def known(settings: JobSettings, manifest: Manifest | None) -> Known:
    """Return what is declared and what the checkpoint says of the columns.

    What `dtypes` declares its reader knows by itself. Raises UsageError where something is declared
    otherwise than the checkpoint says it, and the job has that one's model.
    """
    said = schema_given(settings.schema)
    place = "" if manifest is None else str(manifest.place)
    before = None if manifest is None else _before(manifest)
    if manifest is None or before is None:
        return Known(said, said, None, place)
    is_new = settings.command == "train" and not settings.resume
    then = of_params(_settings(manifest).get("data_reader_params") or {})
    now = of_params(settings.data_reader_params)
    typed = now.only(each.name for each in now if each != then.get(each.name))
    notes = []
    for flag, mine in (("--schema", said), ("dtypes", typed)):
        if not (why := _with_missing(mine, before).difference(before)):
            continue
        if not is_new:
            raise UsageError(f"{flag}: {why} in {place}{_instead(settings, flag)}")
        notes.append(f"{why} in {place}, whose parameters this job begins with")
    mine = _with_missing(said, before)
    if is_new:
        free = before.only(name for name in before.names if name not in typed)
        return Known(mine.over(free), said, before, place, notes)
    return Known(before.joined(mine), said, before, place, notes)


def _settings(manifest: Manifest) -> Mapping[str, Any]:
    told = manifest.books.get("settings")
    return told if isinstance(told, dict) else {}


def _before(manifest: Manifest) -> Schema | None:
    """Return the columns of a checkpoint; None: it is of a version that wrote none."""
    told = _settings(manifest).get("schema")
    return Schema.from_json(told, f"the schema in {manifest.place}") if told else None


def _with_missing(schema: Schema, other: Schema) -> Schema:
    """Return the schema; what it does not say of missing values is as in the other one."""
    fields = []
    for each in schema:
        like = other.get(each.name)
        if each.missing is None and like is not None:
            each = dataclasses.replace(each, missing=like.missing)
        fields.append(each)
    return Schema(tuple(fields))


def _instead(settings: JobSettings, what: str) -> str:
    if settings.resume:
        return (
            ": a job that is gone on with keeps the types of its columns. Say none, or start a new "
            "job from the checkpoint's parameters with --checkpoint_dir_for_init."
        )
    return f": its model was trained on that. Leave {what} out."


def check_resumed(settings: JobSettings, before: Known, found: Schema) -> None:
    """Check that the columns that were found are those of the job before. Raises UsageError."""
    theirs = before.before if settings.resume else None
    if theirs is not None and (why := found.difference(theirs)):
        raise UsageError(f"--resume: {why} in {before.place}{_instead(settings, '')}")


def notes_of(settings: JobSettings, before: Known, found: Schema) -> list[str]:
    """Return what the user should know of the columns' types."""
    notes = list(before.notes)
    decided = [each for each in found if before.before is None or each.name not in before.before]
    lines = Schema(tuple(decided)).notes()
    notes += lines[:_MOST_NOTES]
    if (beyond := len(lines) - _MOST_NOTES) > 0:
        notes.append(f"and so of {beyond} more columns: `edl data schema` prints them")
    is_used = settings.resume or settings.command != "train"
    if is_used and before.place and before.before is None and len(found):
        now = "they are those of the data that are read now; --schema says others"
        if settings.resume:
            now = "they are those that the data have now, and stay so from here on"
        notes.append(f"{before.place} is of a version that kept no types of columns: {now}")
    return notes


def strange(
    settings: JobSettings, before: Known, reader: RecordReader, sources: Sequence[Source]
) -> list[str]:
    """Return a note of columns that are declared for the training data and not there, or none."""
    if settings.resume or not len(before.said):
        return []
    records = first_of(reader, sources)
    there = records.names if isinstance(records, Columns) else before.said.names
    if lacking := [name for name in before.said.names if name not in there]:
        return [f"--schema names {named(lacking)}: the training data have no such column"]
    return []


def first_of(reader: RecordReader, sources: Sequence[Source]) -> Records:
    """Return the columns without a record; what has no columns, its first record."""
    name = next(each.name for each in sources if each.records)
    try:
        records = reader.read(name, 0, 0)
        return records if isinstance(records, Columns) else reader.read(name, 0, 1)
    except RecordError:
        return []  # the job will name it, and perhaps go on without it


def of_settings(settings: JobSettings) -> Schema:
    """Return the columns that the job's settings say, as describe has found them."""
    return Schema.from_json(settings.schema) if settings.schema else NO_SCHEMA


def with_described(settings: JobSettings, job_dir: Path) -> JobSettings:
    """Return a job's settings with the schema that was found at its start."""
    path = job_dir / "describe.json"
    try:
        schema = parse(read_plain(path)).get("schema")
    except FileNotFoundError:
        return settings
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    return dataclasses.replace(settings, schema=schema) if schema else settings  # earlier: none
