"""Read one column of the JSON that `edl data analyze` writes, or tell why it cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.errors import UsageError
from .read import text_of

FORMAT = "edl-analysis-1"  # data/analysis.py writes it
Analysis = Mapping[str, Any] | str | Path


def read_analysis(path: str | Path) -> dict[str, Any]:
    """Return the analysis in a file. Raises UsageError where it is none."""
    try:
        found = json.loads(text_of(path))
    except FileNotFoundError:
        raise UsageError(
            f"There is no {path}: `edl data analyze FILE --out {path}` writes it."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as an analysis: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} is no analysis of this version of edl: run `edl data analyze`.")
    return found


def column_of(analysis: Analysis, column: str) -> Mapping[str, Any]:
    """Return what the analysis says of a column. Raises UsageError where it says nothing."""
    whole = read_analysis(analysis) if isinstance(analysis, str | Path) else analysis
    columns: Mapping[str, Mapping[str, Any]] = whole.get("columns", {})
    if column not in columns:
        raise UsageError(
            f"The analysis has no column {column!r}; it has {', '.join(map(repr, columns))}."
        )
    if not columns[column]["count"]:
        raise UsageError(f"Column {column!r} has no value in the analysis: all are missing.")
    return columns[column]


def number_column(analysis: Analysis, column: str) -> Mapping[str, Any]:
    """Return what the analysis says of a column of numbers. Raises UsageError for another."""
    found = column_of(analysis, column)
    if found["kind"] != "number" or found["mean"] is None:
        raise UsageError(
            f"Column {column!r} is of {found['kind']} in the analysis, and finite numbers are "
            f"wanted: read it with dtypes={column}:float64, or take IndexLookup or Hashing."
        )
    return found
