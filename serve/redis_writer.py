"""A job's newest cut in a Redis server, for whoever serves in another language or on another host.

    edl:cut                     JSON: job, cut, number, version, space, tables {name: dim}, dense
                                {name: shape}
    edl:SPACE:rows:TABLE        a hash: id in decimal -> the row, float32 little-endian
    edl:SPACE:dense:TENSOR      the tensor, float32 little-endian, in C order

A base is written into a space of its own, which nobody reads before `edl:cut` names it. A delta is
one transaction: the rows, the dense values, and last `edl:cut`; it is carried out only if the cut
there is the one that it begins from. So a writer that is killed anywhere leaves one cut, another
that is started goes on from it, and two at once do no harm.

A reader asks for `edl:cut` and its rows in one MULTI. Where the answer names another space than the
one that it has asked in, it asks again in that one. An id without a row was never trained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common import deltas, faults
from ..common.deltas import About, Name
from ..common.errors import UsageError
from ..common.extras import install
from ..common.storage import Manifest
from .deltas import Generation, must_follow, opened, parts, read
from .follow import Folder, Pursuit
from .rows import widened

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

PREFIX = "edl:"
Fields = dict[Any, Any]  # id in decimal -> row, by the types of the client
_FIELDS = 2048  # of one command
_COMMANDS = 64  # of one round trip, outside of a transaction
_TIMEOUT_S = 30.0  # of one command; a transaction of some gigabytes takes so long


@dataclass(frozen=True)
class Standing:
    """The cut that a server has, as Pursuit asks for it."""

    about: About
    space: str
    is_heavy: bool = False  # a base weighs no less here than what deltas have made


def connected(url: str) -> Redis:
    """Return a client. Raises UsageError where that is no URL of a Redis server."""
    try:
        import redis
    except ImportError as error:
        raise UsageError(f"Redis needs its client: {install('redis')}") from error
    try:
        return redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
    except ValueError as error:
        raise UsageError(
            f"{url} is no URL of a Redis server: write redis://HOST:PORT/0, rediss://... or "
            f"unix:///PATH ({error})."
        ) from error


class Overtaken(Exception):
    """Another writer has brought the server to another cut."""


class Writer:
    """The Source (follow.py) that writes into a server what it reads from a folder."""

    def __init__(self, folder: Folder, client: Redis, prefix: str = PREFIX) -> None:
        self._folder, self._client, self._prefix = folder, client, prefix
        self._cut, self._building = f"{prefix}cut", f"{prefix}building"

    def standing(self) -> Standing | None:
        """Return the cut that the server has; None: it has none. Raises RedisError."""
        return self._standing_of(self._client.get(self._cut))

    def _standing_of(self, text: Any) -> Standing | None:
        if text is None:
            return None
        try:
            told = json.loads(text)
            return Standing(About(told["job"], told["cut"], told["number"]), told["space"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self._cut} on the Redis server is not what edl writes there: choose another "
                f"--prefix ({error!r})."
            ) from error

    # -- Source

    def owner(self) -> str:
        return self._folder.owner()

    def about(self, name: Name) -> About | None:
        return self._folder.about(name)

    def read(self, name: Name, here: Standing | None) -> Standing:
        """Bring the server to a cut, and return that."""
        manifest = read(self._folder.place / str(name))
        if here is None:
            return self._base(opened(manifest))
        about = deltas.about(manifest)
        must_follow(about, here.about)
        return self._delta(manifest, here)

    def _base(self, generation: Generation) -> Standing:
        about, before = generation.about, self._client.get(self._cut)
        space = f"{about.job}-{about.cut}-{time.time_ns():x}"
        old = self._standing_of(before)
        left = self._client.getset(self._building, space)  # by a writer that was killed, or is slow
        if left and (old is None or _text(left) != old.space):
            self._drop(_text(left))
        pipe = self._client.pipeline(transaction=False)
        for number, command in enumerate(self._commands(generation, space)):
            command(pipe)
            if number % _COMMANDS == _COMMANDS - 1:
                pipe.execute()
        pipe.execute()
        faults.point("redis.switch", number=about.number)
        told = {
            **_brief(about),
            "version": generation.version,
            "space": space,
            "tables": {name: table.spec.dim for name, table in generation.tables.items()},
            "dense": {name: list(values.shape) for name, values in generation.dense.items()},
        }
        with self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self._cut, self._building)  # type: ignore[no-untyped-call]
            if pipe.get(self._cut) != before or _text(pipe.get(self._building)) != space:
                self._drop(space)
                raise Overtaken
            pipe.multi()
            pipe.delete(self._building)
            pipe.set(self._cut, json.dumps(told))
            pipe.execute()
        if old is not None:
            self._drop(old.space)
        return Standing(about, space)

    def _commands(
        self, generation: Generation, space: str
    ) -> Iterator[Callable[[Pipeline], object]]:
        for name, values in generation.dense.items():
            key = self._dense(space, name)
            yield lambda pipe, key=key, v=values: pipe.set(key, v.astype("<f4").tobytes())  # type: ignore[misc]
        for name, table in generation.tables.items():
            for ids, rows in table.blocks():
                for start in range(0, len(ids), _FIELDS):
                    some = slice(start, start + _FIELDS)
                    fields = _fields(ids[some], rows[some])
                    key = self._rows(space, name)
                    yield lambda pipe, key=key, f=fields: pipe.hset(key, mapping=f)  # type: ignore[misc]

    def _delta(self, manifest: Manifest, here: Standing) -> Standing:
        found, space = parts(manifest), here.space
        with self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self._cut)  # type: ignore[no-untyped-call]
            text = pipe.get(self._cut)
            now = self._standing_of(text)
            if now is None or now.about.cut != here.about.cut or now.space != space:
                raise Overtaken
            told = {**json.loads(_text(text)), **_brief(found.about), "version": manifest.version}
            pipe.multi()
            for tensor, place, values in found.chunks:
                start = 4 * place.start
                pipe.setrange(self._dense(space, tensor), start, values.astype("<f4").tobytes())
            for name, layer in found.layers.items():
                dtype = next(table.dtype for table in found.spec.tables if table.name == name)
                key = self._rows(space, name)
                for start in range(0, len(layer), _FIELDS):
                    some = slice(start, start + _FIELDS)
                    rows = widened(layer.gather(layer.places[some]), dtype)
                    pipe.hset(key, mapping=_fields(layer.ids[some], rows))
                for id in layer.gone.tolist():
                    pipe.hdel(key, str(id))
            pipe.set(self._cut, json.dumps(told))
            faults.point("redis.apply", number=found.about.number)
            pipe.execute()
        return Standing(found.about, space)

    def _drop(self, space: str) -> None:
        keys = list(self._client.scan_iter(match=f"{self._prefix}{_escaped(space)}:*", count=1000))
        if keys:
            self._client.unlink(*keys)

    def _rows(self, space: str, table: str) -> str:
        return f"{self._prefix}{space}:rows:{table}"

    def _dense(self, space: str, tensor: str) -> str:
        return f"{self._prefix}{space}:dense:{tensor}"


def _brief(about: About) -> dict[str, Any]:
    return {key: asdict(about)[key] for key in ("job", "cut", "number")}


def _text(value: Any) -> str:
    """Return what the server has answered, as text; "" for nothing."""
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _fields(ids: Any, rows: Any) -> Fields:
    data = np.ascontiguousarray(rows, "<f4")
    return {str(id): row.tobytes() for id, row in zip(ids.tolist(), data, strict=True)}


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in text)


class Mirror:
    """A writer that keeps a server at the newest cut of a folder: one `step` at a time."""

    def __init__(self, url: str, client: Redis, prefix: str, tell: Callable[[str], None]) -> None:
        """Find the folder. Raises UsageError where there is no such kind."""
        self._folder = Folder(url)
        self._writer = Writer(self._folder, client, prefix)
        how = f"another --prefix, or {prefix}cut removed from the server, follows that one"
        self._pursuit: Pursuit[Standing] = Pursuit(self._writer, tell, how)
        self._knows = False
        self._tell, self._told = tell, ""

    @property
    def has_cut(self) -> bool:
        """Tell whether the server is known to have a cut."""
        return self._knows and self._pursuit.here is not None

    def step(self, now: float) -> About | None:
        """Bring the server one cut on; None: there is nothing that leads on. Failures are told."""
        from redis.exceptions import RedisError

        try:
            if not self._knows:
                self._pursuit.here, self._knows = self._writer.standing(), True
            if self._pursuit.look(self._folder.names(), now):
                self._told = ""
                return self._pursuit.here.about if self._pursuit.here else None
        except Overtaken:
            self._knows = False
        except (RedisError, OSError) as error:
            self._knows = False  # whether the last command was carried out, the server says
            text = f"{type(error).__name__}: {error}"
            if text != self._told:
                self._told = text
                self._tell(text)
        return None
