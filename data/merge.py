"""The schema of several files: for each column the one type that can hold what all of them mean.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..common.errors import DataError
from .exact import common, fits
from .schema import DECLARED, Field, Schema


def merged(parts: Sequence[tuple[str, Schema]], declared: Schema) -> Schema:
    """Return the columns of all parts, each of a name, with the declared types where there are.

    Raises DataError, which names two files, the column, both types and what to do.
    """
    found: dict[str, tuple[str, Field]] = {}
    for name, schema in parts:
        for column in schema:
            said = declared.get(column.name)
            if said is not None:
                if not fits(said.type, column.type):
                    raise DataError(
                        f"column {column.name!r} is {column.type} in {name}, and {said.type} "
                        f"{_whose(said)}: write the file with that type, or declare another "
                        f"(--schema, dtypes={column.name}:TYPE)."
                    )
                found[column.name] = name, said
                continue
            where, first = found.get(column.name, (name, column))
            together = common(first.type, column.type)
            if together is None:
                raise DataError(
                    f"column {column.name!r} is {first.type} in {where} and {column.type} in "
                    f"{name}: write both with one type, or name the files that belong together."
                )
            if together != first.type or column.type != first.type:
                why = first.why or f"{where} has {first.type} and {name} {column.type}"
                first = replace(first, type=together, why=why)
            found[column.name] = where, first
    return declared.over(Schema(tuple(column for _, column in found.values())))


def _whose(column: Field) -> str:
    return "as it was declared" if column.found == DECLARED else "in the training data"
