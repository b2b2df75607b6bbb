"""The columns' types that a user declares: in a file, or as a mapping from Python or a job file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.errors import UsageError
from ..common.values import convert, yaml_loader
from .file_reader import pairs_of
from .schema import NO_SCHEMA, Field, Schema, Type


def schema_given(given: object, said: str = "--schema") -> Schema:
    """Return the schema that is given, each column as one that is declared.

    `given`: {column: type}, what `edl data schema` prints, a Schema, or the path of a file that
    holds one of the first two. `said` names the flag. Raises UsageError.
    """
    if isinstance(given, Schema):
        given = given.to_json()
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        if not text:
            return NO_SCHEMA
        if text.lstrip().startswith("{"):
            given = convert(text, dict[str, Any], said)
        else:
            given, said = _read(text, said), f"{said}: {text}"
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{said} takes a file or a mapping of COLUMN: TYPE, not {given!r:.60}: "
            "`edl data schema DATA` prints one."
        )
    # A column may be called columns: its type is then a text, as that of any other.
    is_whole = isinstance(given.get("columns"), Mapping)
    columns = given["columns"] if is_whole else given
    if strange := [name for name in columns if not isinstance(name, str)]:  # 007 would be 7
        raise UsageError(f"{said}: a column's name is a text, not {strange[0]!r}: quote it.")
    told = {**(given if is_whole else {}), "columns": dict(map(_declared, columns.items()))}
    return Schema.from_json(told, said)


def of_params(params: Mapping[str, Any]) -> Schema:
    """Return what `dtypes=` of a reader's parameters declares.

    Words that are no type are left to the reader, which names those that it knows.
    """
    given = params.get("dtypes")
    fields = []
    for name, word in pairs_of(given if isinstance(given, str | Mapping) else None).items():
        try:
            fields.append(Field(str(name), Type.parse(str(word))))
        except ValueError:
            continue
    return Schema(tuple(fields))


def _declared(column: tuple[object, object]) -> tuple[object, object]:
    """Return a column's name and type, without how it was found: now it is declared."""
    name, told = column
    if isinstance(told, Mapping):
        told = {word: value for word, value in told.items() if word not in ("found", "why")}
    return name, told


def _read(path: str, said: str) -> object:
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{said}: {path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error

    class Loader(yaml_loader()):  # type: ignore[misc]
        """Names are texts as they stand there: 007, yes and 1e3 too."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    key.tag = "tag:yaml.org,2002:str"
            return dict(super().construct_mapping(node, deep))

    try:
        return yaml.load(text, Loader)  # a SafeLoader, which reads JSON as well
    except yaml.YAMLError as error:
        raise UsageError(f"{said}: {path} is not YAML: {' '.join(str(error).split())}.") from error
