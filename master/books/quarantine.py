"""The records that a job skipped, each named once. Pure.

The queue quarantines by task: a record that is broken for good is found anew in each epoch and each
evaluation. It is one record all the same, and `--skip_records` is a budget of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...common.settings import JobSettings
from .plan import Kind
from .task import Quarantine

_NAMES = {
    Kind.TRAIN: "training",
    Kind.EVALUATE: "evaluation",
    Kind.PREDICT: "prediction",
    Kind.ANALYZE: "analysis",
}


def data_of(settings: JobSettings) -> dict[Kind, str]:
    """Return which data the tasks of each kind read."""
    return {
        Kind.TRAIN: settings.training_data,
        Kind.EVALUATE: settings.validation_data,
        Kind.PREDICT: settings.prediction_data,
        Kind.ANALYZE: settings.training_data,
    }


def by_record(found: Iterable[Quarantine], data: Mapping[Kind, str]) -> list[dict[str, Any]]:
    """Put records together that share their source, error and places.

    They stand in the order of the first find.

    A path or URL is one source, whoever reads it. Another name is one of its data: two readers of a
    definition's own may both call something "part-0".
    """
    first: dict[tuple[str, str, int], Quarantine] = {}
    places: dict[tuple[str, str, int], dict[tuple[str, int], None]] = {}
    for each in found:
        known = each.source.startswith("/") or "://" in each.source
        for record in each.records:
            key = ("" if known else data.get(each.kind, ""), each.source, record)
            first.setdefault(key, each)
            places.setdefault(key, {})[_NAMES.get(each.kind, "end"), each.epoch] = None
    rows: dict[Any, dict[str, Any]] = {}
    for (origin, source, record), each in first.items():
        where = places[origin, source, record]
        row = rows.setdefault(
            (origin, source, each.error, tuple(where)),
            {
                "source": source,
                "records": [],
                "error": each.error,
                "task": each.task,
                "where": [{"kind": kind, "epoch": epoch} for kind, epoch in where],
            },
        )
        row["records"].append(record)
    for row in rows.values():
        row["records"].sort()
    return list(rows.values())


def count(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return how many records `by_record` names."""
    return sum(len(row["records"]) for row in rows)
