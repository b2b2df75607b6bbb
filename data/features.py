"""The features of tf.train.Examples as columns, where `columns=` or a schema names such.

One pass over all records of a file finds of what kind the values of each feature are, and of how
many: a feature with one value in every record that has it is a column of single values, every other
one of lists. What it found lies in the job's index. A feature that a record lacks is a missing
value, or an empty list. A feature list of a SequenceExample is a list, if each step has one value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from ..common.ragged import Ragged
from .arrow_values import full, why_missing
from .declared import declared, fill_of
from .exact import Unfit, Values, bring, fits
from .example import BYTES, FLOATS, INTEGERS, NO_KIND, Parsed, parse_kinds
from .examples import Examples, Run
from .file_reader import FileReader, Opened, check_columns, flag_of, names_of, pairs_of
from .files import DataFile, cached
from .merge import merged
from .missing import Missing
from .reader import Columns
from .schema import NO_SCHEMA, STORED, Field, Schema, Type

_AT_ONCE = 4096  # records of a scan
_TYPES = {BYTES: "bytes", FLOATS: "float32", INTEGERS: "int64"}
_EMPTY = {BYTES: object, FLOATS: np.float32, INTEGERS: np.int64}


@dataclass(frozen=True)
class Wanted:
    """What is said of the columns: those wanted, all where none is named, and their types."""

    columns: tuple[str, ...]
    declared: Schema
    missing: Missing


def wanted(schema: Schema, columns: Any, dtypes: Any, missing: Any) -> Wanted | None:
    """Return what is said of columns; None where nothing is: records are dicts, or bytes."""
    chosen = Missing.parse(missing)
    known = declared(schema, pairs_of(dtypes), chosen)
    names = tuple(names_of(columns))
    if not names and not len(known):
        if missing:
            raise UsageError("missing= is of columns: name those that you want with columns=a|b.")
        return None
    return Wanted(names, known, chosen)


def reader_of(
    kind: Callable[[DataFile, bool], Opened],
    files: Sequence[DataFile],
    raw: bool | str,
    said: Wanted | None,
) -> FileReader:
    """Return a reader of files that `kind(file, raw)` opens: of columns where some are wanted.

    Raises UsageError where columns of raw bytes are wanted.
    """
    plain = flag_of(raw, "raw")
    if said is None:
        return FileReader({file.name: partial(kind, file, plain) for file in files})
    if plain:
        raise UsageError("raw=true gives bytes, which have no columns: leave one of them out.")
    return FeatureReader(kind, files, said)


class FeatureReader(FileReader):
    """A reader of features as columns: one that is a list anywhere is a list in all files.

    `raw(file, True)` opens a file whose records are bytes.
    """

    def __init__(
        self, raw: Callable[[DataFile, bool], Opened], files: Sequence[DataFile], said: Wanted
    ) -> None:
        openers = {file.name: partial(FeatureFile, raw, file, said) for file in files}
        super().__init__(openers, said.declared, said.missing)
        self._said = said

    def _agreed(self, stored: list[tuple[str, Schema]]) -> list[tuple[str, Schema]]:
        files = [cast(FeatureFile, self._open(name)) for name, _ in stored]
        there = dict.fromkeys(name for each in files for name in each.features)
        for name, _ in stored[:1]:  # one of some files only is missing in the others
            check_columns(name, self._said.columns, (*there, *self._declared.names))
        lists = {each.name for _, schema in stored for each in schema if each.type.lists}
        return [
            (name, Schema(tuple(_as_list(each) if each.name in lists else each for each in schema)))
            for name, schema in stored
        ]


def _as_list(column: Field) -> Field:
    return replace(column, type=replace(column.type, lists=True, shape=()))


class _Feature(NamedTuple):
    """A feature of N records: of which kind and how many its values are, and by kind these."""

    kinds: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    values: Mapping[int, NDArray[Any]]


@dataclass
class _Found:
    """What the features of one name are like in all records of a file."""

    kinds: list[int]
    lists: bool = False
    first: int = 0  # a record that has it


class FeatureFile:
    """A file of tf.train.Examples, which `raw` reads as bytes."""

    def __init__(
        self, raw: Callable[[DataFile, bool], Opened], file: DataFile, said: Wanted
    ) -> None:
        self._raw, self._file, self._said = raw(file, True), file, said
        self._examples = Examples()
        self._schema = NO_SCHEMA
        self.records = self._raw.records

    @cached_property
    def _found(self) -> dict[str, _Found]:
        """What is in the file, by the pass over all of its records, once for the job."""

        def save(to: Path) -> None:
            told = {n: [f.kinds, f.lists, f.first] for n, f in self._scan().items()}
            to.write_text(json.dumps(told))

        path = cached(self._file, "features.json", save)
        if path is None:
            return self._scan()
        return {name: _Found(*told) for name, told in json.loads(path.read_text()).items()}

    def _scan(self) -> dict[str, _Found]:
        found: dict[str, _Found] = {}
        for first in range(0, self.records, _AT_ONCE):
            numbers = np.arange(first, min(first + _AT_ONCE, self.records))
            for start, features in self._sound(numbers):
                for name, feature in features.items():
                    there = np.flatnonzero(feature.kinds)
                    if len(there):
                        mine = found.setdefault(name, _Found([], first=start + int(there[0])))
                        mine.kinds = sorted({*mine.kinds, *feature.kinds[there].tolist()})
                        mine.lists |= bool((feature.lengths[there] != 1).any())
        return found

    def _sound(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, dict[str, _Feature]]]:
        """Yield (the first record, its features) of runs of records, without those broken."""
        try:
            yield int(numbers[0]), self._features(numbers, None)
        except RecordError:
            for number in numbers:
                try:
                    yield int(number), self._features(np.array([number]), None)
                except RecordError:
                    continue  # told when it is read

    @property
    def features(self) -> Sequence[str]:
        """All that its records have."""
        return tuple(self._found)

    @property
    def names(self) -> Sequence[str]:
        return self._said.columns or tuple(self._found)

    @cached_property
    def stored(self) -> Schema:
        """The types of the wanted features. Raises DataError where one is of several kinds."""
        names = [name for name in self.names if name in self._found]
        return Schema(tuple(self._stored(name, self._found[name]) for name in names))

    def _stored(self, name: str, found: _Found) -> Field:
        kinds = set(found.kinds)
        if _NO_PLACE in kinds:
            raise DataError(
                f"{self._file.name}: record {found.first}: the steps of the feature list {name!r} "
                "have several values each, which is no column: name the others with columns=a|b, "
                "or leave columns= out for records as dicts."
            )
        if len(kinds) > 1:
            said = " and ".join(_TYPES[kind] for kind in sorted(kinds))
            raise DataError(
                f"{self._file.name}: the feature {name!r} is {said}, of record to record: write it "
                "with one kind, or name the others with columns=a|b."
            )
        (kind,) = kinds
        type_, known = Type(_TYPES[kind], lists=found.lists), self._said.declared.get(name)
        if known is not None and known.type.is_list:  # which are written alike
            type_ = replace(type_, lists=known.type.lists, shape=known.type.shape)
        return Field(name, type_, found=STORED)

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns. Raises DataError where the file's own never fit."""
        if "_found" in vars(self) or not all(each in schema for each in self.names):
            stored = [each for each in self.stored if each.name in schema]
            lists = (_as_list(e) if schema[e.name].type.lists else e for e in stored)
            merged([(self._file.name, Schema(tuple(lists)))], schema)
        self._schema = schema

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        names = self.names
        features = self._features(numbers, set(names))
        return Columns({name: self._column(name, features.get(name), numbers) for name in names})

    def _features(self, numbers: NDArray[np.int64], wanted: set[str] | None) -> dict[str, _Feature]:
        """Return the features of these records, of all names where none is wanted.

        Raises RecordError.
        """
        records = cast("list[bytes]", self._raw.read(numbers))
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(lengths)
        data = b"".join(records)
        try:
            parts = [
                _of_run(data, r, wanted) for r in self._examples.runs(data, ends - lengths, ends)
            ]
        except ValueError:
            for number, record in zip(numbers.tolist(), records, strict=True):
                self._check(number, record)
            raise
        return _joined([count for count, _ in parts], [part for _, part in parts])

    def _check(self, number: int, record: bytes) -> None:
        try:
            parse_kinds(record)
        except ValueError as error:
            reason = f"it is no tf.train.Example ({error}); raw=true gives the bytes"
            raise RecordError(self._file.name, number, reason) from error

    def _column(self, name: str, feature: _Feature | None, numbers: NDArray[np.int64]) -> Values:
        column = self._schema[name]
        if feature is None:
            feature = _absent(len(numbers))
        single = column.type.single
        good = [kind for kind, word in _TYPES.items() if fits(single, Type(word))]
        odd = np.flatnonzero(~np.isin(feature.kinds, [NO_KIND, *good]))
        if len(odd):
            what = _TYPES.get(int(feature.kinds[odd[0]]), "a list of lists")
            reason = f"column {name!r} is {column.type}, and here it is {what}"
            raise RecordError(self._file.name, int(numbers[odd[0]]), reason)
        ragged = Ragged.of(_by_kind(feature), feature.lengths)
        try:
            return bring(column, ragged) if column.type.lists else _single(column, ragged)
        except Unfit as error:
            raise RecordError(self._file.name, int(numbers[error.row]), error.why) from error


def _by_kind(feature: _Feature) -> NDArray[Any]:
    """Return all values in their order; objects where they are of several kinds."""
    if not feature.values:
        return np.empty(0, np.int64)
    if len(feature.values) == 1:
        return next(iter(feature.values.values()))
    found = np.empty(int(feature.lengths.sum()), object)
    kinds = np.repeat(feature.kinds, feature.lengths)
    for kind, values in feature.values.items():
        found[kinds == kind] = values.astype(object)
    return found


def _single(column: Field, ragged: Ragged) -> Values:
    """Return a value for each row, or an array of as many as the type says. Raises Unfit."""
    size, shape = int(np.prod(column.type.shape)), column.type.shape
    lengths = ragged.lengths
    there = np.flatnonzero(lengths)
    if (odd := there[lengths[there] != size]).size:
        given = "a value" if lengths[odd[0]] == 1 else f"{lengths[odd[0]]} values"
        raise Unfit(int(odd[0]), f"column {column.name!r} is {column.type}, and here is {given}")
    fill = fill_of(column)
    if fill is None and len(there) < len(ragged):
        raise Unfit(
            int(np.flatnonzero(lengths == 0)[0]), why_missing(column.name, column.type.dtype)
        )
    try:
        values = bring(column, ragged.values.reshape(len(there), *shape))
    except Unfit as error:
        raise Unfit(int(there[error.row]), error.why) from error
    assert isinstance(values, np.ndarray), "it is no list of any length"
    if fill is None or len(there) == len(ragged):
        return values
    wide = np.array(fill.value).dtype if values.dtype.kind == "U" else values.dtype
    found = full((len(ragged), *shape), fill.value, np.result_type(wide, values.dtype))
    found[there] = values
    return found


_NO_PLACE = 4  # the kind of a feature list whose steps have several values


def _absent(records: int) -> _Feature:
    return _Feature(np.zeros(records, np.uint8), np.zeros(records, np.int64), {})


def _of_run(
    data: bytes, run: tuple[list[str], Run] | dict[str, Parsed], wanted: set[str] | None
) -> tuple[int, dict[str, _Feature]]:
    """Return how many records these are, and their features."""
    if isinstance(run, dict):
        chosen = run if wanted is None else {n: each for n, each in run.items() if n in wanted}
        return 1, {name: _of_one(parsed) for name, parsed in chosen.items()}
    names, parsed = run
    n = len(parsed.last)
    owners = np.repeat(np.arange(n), np.diff(parsed.last, prepend=0))
    entries = parsed.entries
    found = {}
    for number, name in enumerate(names):
        if wanted is None or name in wanted:
            mine = np.flatnonzero(entries["name"] == number)
            last = np.full(n, -1, np.int64)
            last[owners[mine]] = mine  # of one that comes twice in a record, the last one
            there = np.flatnonzero(last >= 0)
            found[name] = _of_entries(data, parsed, n, there, entries[last[there]])
    return n, found


def _of_entries(
    data: bytes, run: Run, n: int, there: NDArray[np.int64], entries: NDArray[Any]
) -> _Feature:
    kinds, lengths = np.zeros(n, np.uint8), np.zeros(n, np.int64)
    kinds[there], lengths[there] = entries["kind"], entries["stop"] - entries["start"]
    pools: dict[int, NDArray[Any]] = {INTEGERS: run.ints, FLOATS: run.floats, BYTES: run.places}
    values = {}
    for kind in np.unique(entries["kind"]).tolist():
        mine = entries[entries["kind"] == kind]
        sizes = mine["stop"] - mine["start"]
        ends = np.cumsum(sizes)
        places = np.repeat(mine["start"] - (ends - sizes), sizes) + np.arange(ends[-1])
        values[kind] = pools[kind][places]
    if BYTES in values:
        bounds = zip(*(values[BYTES][at].tolist() for at in ("start", "stop")), strict=True)
        values[BYTES] = _objects([data[low:high] for low, high in bounds])
    return _Feature(kinds, lengths, values)


def _of_one(parsed: Parsed) -> _Feature:
    """Return the feature of one record."""
    kind, values = parsed.kind, parsed.values
    if parsed.steps:
        if any(len(step) != 1 for step in values):
            return _Feature(np.array([_NO_PLACE], np.uint8), np.full(1, -1), {})
        values = [step[0] for step in values]
    if kind == NO_KIND:
        return _absent(1)
    made = _objects(values) if kind == BYTES else np.asarray(values, _EMPTY[kind])
    return _Feature(np.array([kind], np.uint8), np.array([len(made)]), {kind: made})


def _objects(values: Sequence[bytes]) -> NDArray[Any]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _joined(counts: list[int], parts: list[dict[str, _Feature]]) -> dict[str, _Feature]:
    """Return the features of all records of the parts, which have so many records."""
    if len(parts) == 1:
        return parts[0]
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        each = [part.get(name) or _absent(n) for n, part in zip(counts, parts, strict=True)]
        kinds = {kind for feature in each for kind in feature.values}
        found[name] = _Feature(
            np.concatenate([feature.kinds for feature in each]),
            np.concatenate([feature.lengths for feature in each]),
            {
                kind: np.concatenate([f.values[kind] for f in each if kind in f.values])
                for kind in kinds
            },
        )
    return found
