"""A reader of files: it opens sources at first use, checks ranges and leaves out skips.

A format gives one opener per source; an opened source says how many records it has and reads any
ascending choice of them. Readers can be pickled and used from several threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, UsageError
from .declared import with_missing
from .files import EmptyFile
from .merge import merged
from .missing import Missing, named
from .reader import Records, Source
from .schema import NO_SCHEMA, Schema

log = logging.getLogger(__name__)


class Opened(Protocol):
    """An opened source."""

    @property
    def records(self) -> int: ...

    def read(self, numbers: NDArray[np.int64]) -> Records:
        """Return the records of these ascending numbers (perhaps none).

        Raises RecordError for the first of them that is broken.
        """
        ...


class Typed(Opened, Protocol):
    """An opened source whose columns have types: it is read once it holds a schema.

    `names`: the columns that are wanted of it. `stored`: the types that it has of itself, which
    may take a while to find.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def stored(self) -> Schema: ...

    def hold(self, schema: Schema) -> None:
        """Take the types that its columns are brought to, at once or when they are read.

        Raises DataError where a column has a type that never could be.
        """
        ...


def is_typed(opened: Opened) -> TypeGuard[Typed]:
    return hasattr(opened, "hold")  # isinstance would have it find its types


class FileReader:
    """A RecordReader made of openers: {source name: callable that opens it}.

    `declared`: the columns whose types are known; those of others are found over all sources, and
    have what `missing` says of them.
    """

    def __init__(
        self,
        openers: Mapping[str, Callable[[], Opened]],
        declared: Schema = NO_SCHEMA,
        missing: Missing | None = None,
    ) -> None:
        self._openers = dict(openers)
        self._missing = missing
        self._declared = declared
        self._opened: dict[str, Opened] = {}
        self._holding: set[str] = set()
        self._schema: Schema | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            k: value for k, value in vars(self).items() if k not in ("_opened", "_holding", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened={}, _holding=set(), _lock=threading.RLock())

    @property
    def schema(self) -> Schema:
        """The types of all columns of all sources, each found once.

        Raises DataError where two sources have types of which none can hold what the other means.
        """
        with self._lock:
            if self._schema is None:
                self._schema = self._find()
            return self._schema

    def _find(self) -> Schema:
        typed = {}
        for name in self._openers:
            with contextlib.suppress(EmptyFile):
                opened = self._open(name)
                if is_typed(opened) and opened.records:
                    typed[name] = opened
        stored = [(name, each.stored) for name, each in typed.items()]
        found = merged(self._agreed(stored), self._declared)
        if self._missing is None:
            return found
        known, missing = self._declared, self._missing
        return Schema(tuple(f if f.name in known else with_missing(f, missing) for f in found))

    def _agreed(self, stored: list[tuple[str, Schema]]) -> list[tuple[str, Schema]]:
        """Return the types of the sources, after what they only know together."""
        return stored

    def sources(self) -> Sequence[Source]:
        """Return all sources with records; those without are named in a warning and left out.

        All others hold the types of their columns then, or are refused.
        """
        counted, empty = [], []
        for name in self._openers:
            try:
                records = self._open(name).records
            except EmptyFile:
                records = 0
            if records:
                counted.append(Source(name, records))
            else:
                empty.append(name)
        if not counted:
            which = empty[0] + (f" (like each of {len(empty)} files)" if len(empty) > 1 else "")
            raise DataError(f"{which} has no records: remove it or put records into it.")
        if empty:
            log.warning(
                "%d of %d files have no records and are left out, the first of them %s.",
                len(empty), len(self._openers), empty[0],
            )  # fmt: skip
        for source in counted:
            self._held(source.name)
        return counted

    def read(self, source: str, start: int, end: int, skip: Collection[int] = ()) -> Records:
        if source not in self._openers:
            raise DataError(f"There is no source {source!r} in this data; did its path change?")
        opened = self._held(source)
        if not 0 <= start <= end <= opened.records:
            raise DataError(
                f"{source} has {opened.records} records, not the range [{start}, {end}): "
                "did the file change while the job ran?"
            )
        numbers = np.arange(start, end, dtype=np.int64)
        if skip:
            numbers = numbers[~np.isin(numbers, np.fromiter(skip, np.int64, len(skip)))]
        return opened.read(numbers)

    def _held(self, name: str) -> Opened:
        """Return the opened source, which holds the types of its columns."""
        with self._lock:
            opened = self._open(name)
            if name not in self._holding and is_typed(opened):
                known = all(each in self._declared for each in opened.names)
                opened.hold(self._declared if known else self.schema)
                self._holding.add(name)
            return opened

    def _open(self, name: str) -> Opened:
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._openers[name]()
            return self._opened[name]


def names_of(value: str | Sequence[str] | None) -> list[str]:
    """Return a list of names, as given or from "a|b|c".

    Commas are not used, for those of the command line part parameters.
    """
    if value is None:
        return []
    return value.split("|") if isinstance(value, str) else [str(each) for each in value]


def pairs_of(value: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return a mapping, as given or from "a:x|b:y". Raises UsageError."""
    if not isinstance(value, str):
        return dict(value or {})
    pairs = [pair.rpartition(":") for pair in value.split("|") if pair]
    if bad := [name + value for name, colon, value in pairs if not colon]:
        raise UsageError(f"{bad[0]!r} must read name:type, with | between several.")
    return {name: value for name, _, value in pairs}


def flag_of(value: bool | str, name: str) -> bool:
    """Return a yes or no, as given or spelled. Raises UsageError."""
    spelled = str(value).lower()
    if spelled not in ("true", "false", "1", "0", "yes", "no"):
        raise UsageError(f"The parameter {name} must be true or false, not {value!r}.")
    return spelled in ("true", "1", "yes")


def check_columns(source: str, wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the wanted columns, all where none is named.

    Raises DataError, which names those there are.
    """
    known = set(there)
    if lacking := [name for name in wanted if name not in known]:
        raise DataError(f"{source} has no column {named(lacking)}; it has {named(there)}.")
    return list(wanted or there)
