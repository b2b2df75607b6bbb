"""Answers on disk: files of many records' answers, each named by the sha256 of its bytes.

    <folder>/<fingerprint of the teacher>/<sha256>.safetensors

Plain safetensors: an array `answer...` for each that the teacher answers (tree.py has the rest of
the name), with a row for each record. Whose rows they are stands in the metadata, with a checksum
of its own, so that the head alone tells what a file is good for; before anything of it is used, all
of it is compared with its name. A file is written under another name and renamed when it is whole.
So any number of writers, of any hosts, may share a folder: they never write into the same file, and
what they leave half written, or what was damaged later, is not taken for an answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from ..common.errors import EdlError
from ..common.foreign import must_be, open_plain, parse
from . import tree
from .frames import Part

SUFFIX = ".safetensors"
_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_MOST_HEAD_NBYTES = 256 << 20  # far above what a segment has
_ANSWER, _TOLD = "answer", "answers of"  # of an array's name; of the metadata
SOURCE, RECORD, VIEW, DIGEST = range(4)  # columns of `Rows.table`


class Damaged(EdlError):
    """A file is no segment, or not the one that was written."""


@dataclass(frozen=True)
class Rows:
    """Whose answers the rows of a segment are.

    `table`: int64[N, 4], of each row the place of its source in `sources`, the record's number, its
    view, and the digest of the features that the teacher was asked about.
    """

    sources: list[str]
    table: NDArray[np.int64]


def digests_of(parts: Sequence[Part], rows: int | None) -> NDArray[np.int64]:
    """Return what tells features apart: int64[rows], or of all together int64[1].

    8 bytes of a sha256 of each array's name, kind and shape, and of its values.
    """
    kinds = [
        (p.name, p.values.dtype.str, p.values.shape[0 if rows is None else 1 :], p.is_bfloat16)
        for p in parts
    ]
    begin = hashlib.sha256(repr(kinds).encode())
    arrays = [part.values for part in parts]
    found = np.empty(1 if rows is None else rows, np.int64)
    for row in range(len(found)):
        digest = begin.copy()
        for array in arrays:
            digest.update((array if rows is None else array[row]).tobytes())
        found[row] = int.from_bytes(digest.digest()[:8], "little", signed=True)
    return found


def pack(teacher: str, rows: Rows, parts: Sequence[Part]) -> tuple[str, bytes]:
    """Return the name and the bytes of a segment."""
    told = json.dumps(
        {
            "teacher": teacher,
            "names": [part.name for part in parts],
            "sources": rows.sources,
            "rows": base64.b64encode(rows.table.astype("<i8").tobytes()).decode(),
        }
    )
    # One text: of several the order in the file is not always the same.
    metadata = {_TOLD: f"{hashlib.sha256(told.encode()).hexdigest()} {told}"}
    tensors = {_ANSWER + part.name: tree.tensor_of(part).contiguous() for part in parts}
    data = save_tensors(tensors, metadata)
    return hashlib.sha256(data).hexdigest() + SUFFIX, data


def is_segment(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def read_rows(path: Path, teacher: str) -> Rows:
    """Return whose answers a segment has, by its head alone. Raises Damaged, OSError."""
    with open_plain(path) as file:
        nbytes = int.from_bytes(file.read(8), "little")
        if nbytes > min(_MOST_HEAD_NBYTES, os.fstat(file.fileno()).st_size):
            raise Damaged("its head is longer than the file")
        told = _told(file.read(nbytes))
    if told["teacher"] != teacher:
        raise Damaged(f"it is of the teacher {told['teacher']}")
    try:
        flat = np.frombuffer(base64.b64decode(told["rows"], validate=True), "<i8")
        table = flat.reshape(-1, 4).astype(np.int64)
    except ValueError as error:
        raise Damaged(f"its head tells of no rows: {error}") from error
    if not (0 <= table[:, SOURCE]).all() or not (table[:, SOURCE] < len(told["sources"])).all():
        raise Damaged("its head tells of sources that it does not name")
    return Rows(told["sources"], table)


def _told(head: bytes) -> dict[str, Any]:
    """Return what a head's metadata tell, which their checksum vouches for. Raises Damaged."""
    try:
        found = parse(head)
        must_be(found, {"__metadata__": {_TOLD: str}})
        checksum, _, text = found["__metadata__"][_TOLD].partition(" ")
        if hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() != checksum:
            raise Damaged("its head is not what was written")
        told: dict[str, Any] = parse(text)
        must_be(told, {"teacher": str, "names": [str], "sources": [str], "rows": str})
    except ValueError as error:
        raise Damaged(f"it has no head of a segment: {error}") from error
    return told


def read_parts(path: Path, rows: int) -> list[Part]:
    """Return the arrays of a segment of so many rows. Raises Damaged, OSError.

    They are what was written: the file is compared with its name.
    """
    with open_plain(path) as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() + SUFFIX != path.name:
        raise Damaged("its bytes are not those that were written")
    try:
        tensors = load_tensors(data)
        names = _told(data[8 : 8 + int.from_bytes(data[:8], "little")])["names"]
        parts = [tree.part_of(name, tensors[_ANSWER + name]) for name in names]
    except (SafetensorError, KeyError) as error:
        raise Damaged(f"it is no segment: {error}") from error
    if not parts or tree.rows_of(parts) != rows:
        raise Damaged(f"its answers are not of {rows} records")
    if fault := tree.fault_of(parts, rows):  # kept by an edl that took it
        raise Damaged(f"of its answers: {fault}")
    return parts


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody sees before it is whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
