"""The rows of tables in a group's steps: pulled for each part, their gradients exchanged after it.

After the backward pass each member has the gradients of its slice's rows. They are exchanged so
that each shard's rows meet at one member, the shard's pusher in this round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from ...kernels.ids import finite, sum_by_id
from ...nn.buffers import NonFinite
from ...nn.device import Link
from ...nn.model_spec import ModelSpec
from ...ps.worker_client import PsClient, Pulled
from ..servers.ids import Unique
from ..servers.rows import Ids, PulledRows, TableRows, Values
from .allreduce import StepHooks
from .pusher import Rows

_WHOLE = np.frombuffer(b"all here", np.uint8)  # what a message of rows ends with
_DIGIT = 1 << 16  # two such digits are the size of any message, and each is exact in float32
Bytes = NDArray[np.uint8]


class RowExchange(StepHooks):
    """The exchange of the rows of a model's tables: `begin` before a step, `exchange` after it.

    `patience_s` bounds a pull. `first_rows()` makes rows whose first values are the model's own.

    `before_reduce()` is called before the backward pass that is reduced with the others.
    """

    def __init__(
        self,
        model: nn.Module,
        ps: PsClient,
        spec: ModelSpec,
        device: torch.device,
        *,
        first_rows: Callable[[], Mapping[str, Values]],
        patience_s: float,
        before_reduce: Callable[[], None],
    ) -> None:
        self.tables = tuple(table.name for table in spec.tables)
        self.versions: Sequence[int] = ()  # that the step's rows were pulled of, by shard
        self._ps = ps
        self._spec = spec
        self._dims = {table.name: table.dim for table in spec.tables}
        self._rows = TableRows(model, ps, Link(device), patience_s)
        self._first_rows = first_rows
        self._patience_s = patience_s
        self._before_reduce = before_reduce
        self._world = 1
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pull-rows")
        self._ahead: tuple[Any, Future[Pulled]] | None = None  # for what, and its rows
        self._source: PulledRows | None = None
        self._sums: list[Rows] = []  # of the parts of a step
        self._factor = 1.0  # of what all members' parts come to
        self._mine: Rows = {}  # what those come to
        self._messages: list[Bytes] = []  # of that, by member
        self._nbytes: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # of messages, from and to

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Return the distinct ids of a part; runs in the stream's thread."""
        return self._rows.prepare(features)

    def enter(self, world: int) -> None:
        """Begin a round of so many members."""
        self._world = world

    def leave(self) -> None:
        """End the round: what was pulled ahead is of no use."""
        self._ahead = None

    def begin(self) -> None:
        """Begin a step."""
        self._sums, self.versions, self._factor = [], (), 1.0

    def attach(self, features: Any) -> None:
        """Give the model the rows of now, for an evaluation."""
        prepared = self._rows.prepare(features)
        self._rows.attach(prepared, self._pull(prepared).rows, "", train=False)

    def pull_ahead(self, prepared: Mapping[str, Unique]) -> None:
        """Begin to pull the rows of the part that comes next."""
        self._ahead = prepared, self._pool.submit(self._pull, prepared)

    def _pull(self, prepared: Mapping[str, Unique]) -> Pulled:
        """Return the rows of now; servers that have not been told the model are told."""
        ids = {name: entry.ids_U for name, entry in prepared.items()}
        while not (pulled := self._ps.pull(ids, timeout_s=self._patience_s)).initialized:
            self._ps.init(self._spec, {}, self._first_rows(), timeout_s=self._patience_s)
        return pulled

    # -- a step (StepHooks)

    def begin_part(self, prepared: Mapping[str, Unique]) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is prepared:
            pulled = ahead[1].result()
        else:
            pulled = self._pull(prepared)
        self.versions = self.versions or pulled.versions  # of the oldest rows
        self._source = self._rows.attach(prepared, pulled.rows, "", train=True)

    def before_all_reduce(self) -> None:
        self._before_reduce()

    def end_part(self) -> None:
        assert self._source is not None
        self._sums.append(self._source.gradients())

    def scale(self, factor: float) -> None:
        self._factor = factor

    # -- the exchange: how long each message is, all members hear by the all-reduce

    def words(self) -> int:
        return 2 * self._world**2 if self._world > 1 else 0

    def tell(self) -> Sequence[float]:
        """Tell how many bytes this member has for each other, in two digits that float32 holds."""
        self._mine = {
            table: sum_by_id([rows[table] for rows in self._sums if table in rows])
            for table in sorted({table for rows in self._sums for table in rows})
        }
        for table, (_, values) in self._mine.items():
            values *= np.float32(1 / self._world)  # the mean, as of the dense gradients
            if not finite(values):
                raise NonFinite(f"the gradient of {table!r} is not finite")
        if self._world == 1:
            return ()
        self._messages = self._split_rows(self._mine)
        words = np.zeros((self._world, self._world, 2), np.float32)
        words[dist.get_rank()] = [divmod(len(message), _DIGIT) for message in self._messages]
        return words.reshape(-1).tolist()

    def hear(self, words: Sequence[float]) -> None:
        if len(words):
            digits = np.rint(words).astype(np.int64).reshape(self._world, self._world, 2)
            self._nbytes = digits[..., 0] * _DIGIT + digits[..., 1]

    def _split_rows(self, mine: Rows) -> list[Bytes]:
        """Return a message for each member, of the rows of its shards.

        By table: how many, ids, values.
        """
        owned = {t: self._ps.slot_map.partition(t, ids) for t, (ids, _) in mine.items()}
        messages = []
        for rank in range(self._world):
            counts, parts = np.zeros(len(self._dims), np.int64), []
            for number, table in enumerate(self._dims):
                if table not in mine:
                    continue
                order, bounds = owned[table]
                shards = range(rank, self._ps.num_shards, self._world)
                own = [order[:0], *(order[bounds[s] : bounds[s + 1]] for s in shards)]
                places = np.concatenate(own)
                ids, values = mine[table]
                counts[number] = len(places)
                parts += [ids[places].view(np.uint8), values[places].reshape(-1).view(np.uint8)]
            messages.append(np.concatenate([counts.view(np.uint8), *parts, _WHOLE]))
        return messages

    def exchange(self) -> Callable[[], Rows]:
        """Begin the exchange of rows, and return a function that waits for it.

        That one returns the sums, over all members, of the rows of this member's shards. All
        members call this after the same step.
        """
        factor = np.float32(self._factor)
        if self._world == 1:
            mine = _scaled(self._mine, factor)
            return lambda: mine
        rank = dist.get_rank()
        sent, received = self._nbytes[rank].tolist(), self._nbytes[:, rank].tolist()
        incoming = torch.zeros(sum(received), dtype=torch.uint8)
        outgoing = torch.from_numpy(np.concatenate(self._messages))
        work = dist.all_to_all_single(incoming, outgoing, received, sent, async_op=True)

        def rows() -> Rows:
            work.wait()
            messages = [part.numpy() for part in torch.split(incoming, received)]
            # An operation that was given up may end without an error.
            if not all(bytes(each[-len(_WHOLE) :]) == bytes(_WHOLE) for each in messages):
                raise dist.DistError("the group was given up")
            return _scaled(self._sum(messages), factor)

        return rows

    def _sum(self, messages: Sequence[Bytes]) -> Rows:
        found: dict[str, list[tuple[Ids, Values]]] = {}
        for data in messages:
            at = 8 * len(self._dims)
            counts = np.frombuffer(data[:at].tobytes(), np.int64)
            for (table, dim), count in zip(self._dims.items(), counts.tolist(), strict=True):
                if not count:
                    continue
                middle, end = at + 8 * count, at + (8 + 4 * dim) * count
                # copies, for what lies there may be at odd addresses
                ids = np.frombuffer(data[at:middle].tobytes(), np.int64)
                values = np.frombuffer(data[middle:end].tobytes(), np.float32).reshape(count, dim)
                found.setdefault(table, []).append((ids, values))
                at = end
        return {table: sum_by_id(parts) for table, parts in found.items()}


def _scaled(rows: Rows, factor: np.float32) -> Rows:
    if factor == 1:
        return rows
    return {table: (ids, values * factor) for table, (ids, values) in rows.items()}
