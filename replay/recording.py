"""The trace of a job as it was written: what each server applied, what workers computed.

Pure reading (docs/replay.md has the lines). A process that was killed may have left half a line at
the end of its file: what that would have told was acknowledged to nobody, so it is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..common.errors import UsageError
from ..ps.books.ledger import Span

Found = TypeVar("Found")


@dataclass(frozen=True)
class Step:
    """A push that a server applied at `version`, or (no span) a flush.

    `on`: the version of this server that its gradients were computed on; `digest`: of the
    gradients.
    """

    version: int
    span: Span | None = None
    on: int = 0
    digest: str = ""
    line: str = ""  # where it stands, for messages


@dataclass(frozen=True)
class Timeline:
    """The trace of one incarnation of a server.

    `parent`: the one whose snapshot it began from, if it did: of its version `version`, `pushes` of
    which waited for their step.
    """

    index: int
    incarnation: str
    address: str
    checkpoint: str
    new_job: bool
    steps: tuple[Step, ...]
    parent: str = ""
    version: int = 0
    pushes: int = 0

    @property
    def name(self) -> str:
        return f"server {self.index} ({self.incarnation})"


@dataclass(frozen=True)
class Pull:
    """The answer to a pull, by server: the version, and the address of who answered."""

    versions: tuple[int, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Computed:
    """The gradients that a worker computed: the minibatch, and what it pulled from whom."""

    span: Span
    epoch: int
    source: str
    first: int
    last: int
    skips: tuple[int, ...]
    used: int
    pulls: tuple[Pull, ...]
    loss: float | None = field(compare=False)


@dataclass(frozen=True)
class Recording:
    """The trace of a job. `computed`: by span, in no order, each once."""

    timelines: tuple[Timeline, ...]
    computed: dict[Span, tuple[Computed, ...]]


def read(job_dir: Path) -> Recording:
    """Read the trace of a job. Raises UsageError where there is none, or a line that cannot be."""
    folder = job_dir / "trace"
    servers = sorted(folder.glob("server-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    timelines = [found for path in servers if (found := _timeline(path)) is not None]
    if not timelines:
        raise UsageError(
            f"There is no trace in {folder}: only a training job with --deterministic records one."
        )
    computed: dict[Span, dict[Computed, None]] = {}
    for path in sorted(folder.glob("worker-*.jsonl")):
        for where, values in _lines(path):
            one = _parsed(where, lambda: _computed(values))  # noqa: B023
            computed.setdefault(one.span, {})[one] = None
    return Recording(tuple(timelines), {span: tuple(each) for span, each in computed.items()})


def _timeline(path: Path) -> Timeline | None:
    """Read the trace of a server; None: it was killed before it had a store."""
    lines = _lines(path)
    where, start = next(lines, ("", {}))
    if not start:
        return None
    steps = tuple(_parsed(where, lambda: _step(where, values)) for where, values in lines)  # noqa: B023
    found: Timeline = _parsed(
        where,
        lambda: Timeline(
            start["server"],
            start["incarnation"],
            start["address"],
            start.get("checkpoint", ""),
            start.get("new_job", False),
            steps,
            start.get("parent", ""),
            start.get("version", 0),
            start.get("pushes", 0),
        ),
    )
    return found


def _step(where: str, values: dict[str, Any]) -> Step:
    if values.get("flush"):
        return Step(values["at"], line=where)
    return Step(values["at"], Span(*values["span"]), values["on"], values["sum"], where)


def _computed(values: dict[str, Any]) -> Computed:
    first, last = values["records"]
    return Computed(
        Span(*values["span"]),
        values["epoch"],
        values["source"],
        first,
        last,
        tuple(values["skips"]),
        values["used"],
        tuple(Pull(tuple(p["versions"]), tuple(p["servers"])) for p in values["pulls"]),
        values["loss"],
    )


def _parsed(where: str, make: Callable[[], Found]) -> Found:
    try:
        return make()
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{where} is no line of a trace: {error!r}.") from error


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, values) of each whole line."""
    *whole, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(whole, 1):
        where = f"{path}:{number}"
        yield where, _parsed(where, lambda: json.loads(line))  # noqa: B023
