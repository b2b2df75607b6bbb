"""The routes and the snapshot's fields as an OpenAPI document, for clients that are no page."""

from __future__ import annotations

from typing import Any

from .. import __version__
from .model import SCHEMA

Schema = dict[str, Any]

_NUMBER, _INTEGER, _TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}
_NO_NUMBER = {"type": ["number", "null"]}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _map(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


_INCARNATION = _object(
    id=_TEXT,
    role=_TEXT,
    index=_INTEGER,
    name=_TEXT,
    began=_NUMBER,
    ended=_NO_NUMBER,
    end={"enum": ["killed", "finished", "preempted", "failed", None]},
    machine=_TEXT,
    why=_TEXT,
)
_EVENT = _object(
    id=_INTEGER,
    t=_NUMBER,
    text=_TEXT,
    kind={"enum": ["start", "death", "scale", "checkpoint", "other"]},
)
_METER = {
    name: {"type": ["integer", "null"]}
    for name in ("applied", "leased", "todo", "quarantined", "recomputed", "total", "lost", "twice")
}
_SECONDS = ("useful", "recomputed", "waiting_data", "waiting_servers", "waiting_teachers")
_SNAPSHOT = _object(
    schema={"const": SCHEMA},
    at={**_NUMBER, "description": "Unix time of the snapshot."},
    heard_s={**_NO_NUMBER, "description": "Age of what the master said; null: never heard."},
    live={"type": "boolean"},
    health=_object(level={"enum": ["good", "warn", "bad", "ended"]}, text=_TEXT),
    status={"type": "object", "description": "What `edl status JOB -o json` prints: docs/cli.md."},
    meter={"type": ["object", "null"], "properties": _METER},
    tasks=_object(
        epoch=_INTEGER,
        runs=_list({"type": "array", "description": "A state, and of how many tasks in a row."}),
        by=_list({}),
    ),
    incarnations=_list(_INCARNATION),
    scalars=_map(_list({"type": "array", "description": "version, t, value"})),
    thinned=_map(_INTEGER),
    goodput=_object(**dict.fromkeys((*_SECONDS, "starting", "idle"), _NUMBER)),
    shards=_list(
        _object(
            name=_TEXT,
            rows=_INTEGER,
            nbytes=_INTEGER,
            pulls_per_s=_NUMBER,
            pushes_per_s=_NUMBER,
            state=_TEXT,
        )
    ),
    events=_list(_EVENT),
    teaching={"type": ["object", "null"]},
    schedule={"type": ["object", "null"]},
    cost={"type": ["object", "null"]},
    actions=_list(_TEXT),
    not_finite={
        **_map({"enum": ["nan", "inf", "-inf"]}),
        "description": "Of numbers that are null: what they were, by JSON Pointer. Absent: none.",
    },
)


def openapi() -> Schema:
    """Return the document."""
    job = _parameter("job", "path", _TEXT)
    log = [_parameter("role", "query", _TEXT), _parameter("index", "query", _INTEGER)]
    log.append(_parameter("tail", "query", _INTEGER))
    snapshot = {"$ref": "#/components/schemas/Snapshot"}
    last = _parameter("Last-Event-ID", "header", _TEXT)
    asked = _object(
        action={"enum": ["scale", "stop", "checkpoint", "suspend", "resume", "kill"]},
        num_workers=_INTEGER,
        num_ps=_INTEGER,
        num_teachers=_INTEGER,
        role=_TEXT,
        index=_INTEGER,
    )
    act = _answer("Do something to a job.", _object(message=_TEXT))
    act |= {
        "parameters": [job, _parameter("X-EDL-CSRF", "header", _TEXT)],
        "requestBody": {"content": {"application/json": {"schema": asked}}},
    }
    listed = _object(schema={"const": SCHEMA}, jobs=_list({"type": "object"}))
    events = "Server-sent events: `snapshot`, then `change`s to it."
    paths = {
        "/api/jobs": {"get": _answer("The status of each job.", listed)},
        "/api/stream": {"get": _answer("The same as `jobs` events.", _TEXT, "text/event-stream")},
        "/api/jobs/{job}": {"get": {**_answer("A job.", snapshot), "parameters": [job]}},
        "/api/jobs/{job}/stream": {
            "get": {**_answer(events, _TEXT, "text/event-stream"), "parameters": [job, last]}
        },
        "/api/jobs/{job}/logs": {
            "get": {**_answer("Lines of logs.", _TEXT, "text/plain"), "parameters": [job, *log]}
        },
        "/api/jobs/{job}/actions": {"post": act},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "edl dashboard", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Snapshot": _SNAPSHOT}},
    }


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _answer(summary: str, schema: Schema, kind: str = "application/json") -> Schema:
    content = {kind: {"schema": schema}}
    return {"summary": summary, "responses": {"200": {"description": summary, "content": content}}}
