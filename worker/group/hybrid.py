"""A member of a hybrid job: dense parameters by all-reduce, rows of tables from the servers.

After the backward pass each member has the gradients of its slice's rows. They are exchanged so that
each shard's rows meet at one member, the shard's pusher in this round, which adds them up and pushes
the span of the whole minibatch, one span after the other. So a shard sees each span once, whole and in
order, as from a worker of its own (ps/books/ledger.py), and the dense parameters' ledger is the group's.

A step's rows are those of all spans but the newest `staleness` (Ho et al. 2013, SSP; Lian et al. 2022,
"Persia", section 3.2 for this division). With 0 all wait for the servers after each step. Else a pusher
takes part in a step's all-reduce only when all of its pushes but the newest `staleness - 1` are
acknowledged, and so tells the others: a push has the next forward pass for its way, and rows of the next
step are pulled from the end of the all-reduce on, while this step's own are exchanged and applied.

A span that the group has applied, but some server has not, comes again: its dense gradient is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from ...common.errors import DefinitionError
from ...kernels.ids import finite, sum_by_id
from ...nn.buffers import NonFinite
from ...nn.model_spec import ModelSpec
from ...ps.books.ledger import Span
from ...ps.worker_client import PsClient, Pulled, PushOutcome
from ..device import Link, to_device
from ..servers.ids import Unique
from ..servers.rows import Ids, PulledRows, TableRows, Values
from ..task_stream import Item
from .allreduce import AllReduceTrainer, Reduced
from .process_group import RoundOver
from .slices import Slice
from .state import GroupState

_NEVER_STALE = 1 << 40  # the version of a push that has no gradients
_CUT_HOLD_S = 2.0
_WHOLE = np.frombuffer(b"all here", np.uint8)  # what a message of rows ends with
_DIGIT = 1 << 16  # two such digits are the size of any message, and each is exact in float32
Bytes = NDArray[np.uint8]
Rows = dict[str, tuple[Ids, Values]]  # by table: distinct ids[U], gradients[U, D]


class HybridTrainer(AllReduceTrainer):
    """See the module. `patience_s` bounds every wait for the servers."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        ps: PsClient,
        spec: ModelSpec,
        *,
        staleness: int,
        patience_s: float,
        **settings: Any,
    ) -> None:
        super().__init__(make_model, loss, spec, **settings)
        self._ps = ps
        self._of_servers = spec.of_servers
        self._dims = {table.name: table.dim for table in spec.tables}
        self._link = Link(self._device)
        self._rows = TableRows(self.model, ps, self._link, patience_s)
        self._staleness = staleness
        self._patience_s = patience_s
        self._pusher: _Pusher | None = None
        self._shards: list[int] = []  # that this member pushes to
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pull-rows")
        self._ahead: tuple[Any, Future[Pulled]] | None = None  # for what, and its rows
        self._source: PulledRows | None = None
        self._sums: list[Rows] = []  # of the parts of a step
        self._versions: Sequence[int] = ()  # that its rows were pulled of, by shard
        self._mine: Rows = {}  # what those come to
        self._messages: list[Bytes] = []  # of that, by member
        self._nbytes: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # of messages, from and to
        ps.agree(self._of_servers, timeout_s=patience_s)

    def _check(self, names: Sequence[str]) -> None:
        if not names:
            raise DefinitionError(
                "the model has no tables that live on parameter servers: use --strategy allreduce"
            )

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Distinct ids of a part; runs in the stream's thread."""
        return self._rows.prepare(features)

    def enter(self, world: int) -> None:
        super().enter(world)
        rank = dist.get_rank()
        self._shards = [s for s in range(self._ps.num_shards) if s % world == rank]
        self._pusher = _Pusher(self._ps, self._shards, self._patience_s)

    def leave(self) -> None:
        super().leave()
        if self._pusher is not None:
            self._pusher.close()
        self._pusher = self._ahead = None

    # -- a step

    def reduce(self, piece: Slice, wish: bool) -> Reduced:
        """Raises RoundOver where the servers refuse what was pushed, and as AllReduceTrainer's."""
        self._sums, self._versions = [], ()
        step = super().reduce(piece, wish)
        self._push(piece, self._exchange(), self._versions)
        return step

    def _push(self, piece: Slice, rows: Callable[[], Rows], versions: Sequence[int]) -> None:
        assert self._pusher is not None
        task = piece.lease.task
        span = Span(task.id, task.attempt, piece.start, piece.end)
        self._pusher.push(span, rows, versions or [_NEVER_STALE] * self._ps.num_shards)
        if not self._staleness:
            self.settle()

    def look_ahead(self, item: Item | None) -> None:
        """Begin to pull what the next step begins with, where that is known and may be stale."""
        if self._staleness and isinstance(item, Slice) and item.parts:
            prepared = item.parts[0][-1]
            self._ahead = prepared, self._pool.submit(self._pull, prepared)

    def _begin_part(self, prepared: Mapping[str, Unique]) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is prepared:
            pulled = ahead[1].result()
        else:
            pulled = self._pull(prepared)
        self._versions = self._versions or pulled.versions  # of the oldest rows
        self._source = self._rows.attach(prepared, pulled.rows, "", train=True)

    def _before_all_reduce(self) -> None:
        assert self._pusher is not None, "a step needs its round"
        if self._staleness:
            self._pusher.wait(self._staleness - 1)

    def _end_part(self) -> None:
        assert self._source is not None
        self._sums.append(self._source.gradients())

    def _pull(self, prepared: Mapping[str, Unique]) -> Pulled:
        """The rows of now; tells servers the model that have not been told."""
        ids = {name: entry.ids_U for name, entry in prepared.items()}
        while not (pulled := self._ps.pull(ids, timeout_s=self._patience_s)).initialized:
            self._ps.init(self._of_servers, {}, timeout_s=self._patience_s)
        return pulled

    # -- the exchange of rows: how long each message is, all members hear by the all-reduce

    def _more_words(self) -> int:
        return 2 * self._world**2 if self._world > 1 else 0

    def _words(self) -> Sequence[float]:
        """How many bytes this member has for each, in two digits, so that float32 holds them."""
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
        self._messages = self._cut(self._mine)
        words = np.zeros((self._world, self._world, 2), np.float32)
        words[dist.get_rank()] = [divmod(len(message), _DIGIT) for message in self._messages]
        return words.reshape(-1).tolist()

    def _hear(self, words: Sequence[float]) -> None:
        if len(words):
            digits = np.rint(words).astype(np.int64).reshape(self._world, self._world, 2)
            self._nbytes = digits[..., 0] * _DIGIT + digits[..., 1]

    def _cut(self, mine: Rows) -> list[Bytes]:
        """A message for each member, of the rows of its shards: by table how many, ids, values."""
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

    def _exchange(self) -> Callable[[], Rows]:
        """Begin to; what is called waits for the sums over all members of the rows of this member's shards."""
        if self._world == 1:
            mine = self._mine
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
            return self._sum(messages)

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

    @torch.no_grad()
    def commit(self, step: Reduced) -> None:
        """Apply a step, if that is not done already."""
        if self.state.applied.get(step.task, 0) < step.end:
            super().commit(step)

    def pass_over(self, piece: Slice) -> None:
        self._push(piece, dict, ())
        task = piece.lease.task.id
        self.state.applied[task] = max(self.state.applied.get(task, 0), piece.end)

    def finish(self) -> None:
        assert self._pusher is not None
        self._pusher.wait(0)

    def settle(self) -> int:
        assert self._pusher is not None
        self.finish()
        least = torch.tensor([self._pusher.servers_version])
        if self._world > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return int(least)

    def cut(self, name: str) -> GroupState | None:
        cut = self._ps.take_cut(name, hold_s=_CUT_HOLD_S, timeout_s=self._patience_s)
        if cut is None:
            return None
        there = {task: at for task, at in cut.applied.items() if at}
        ours = {task: at for task, at in self.state.applied.items() if at}
        both = there.keys() & ours.keys()  # a side may have retired a task that the other has not
        if any(there[task] != ours[task] for task in both):
            self._ps.unpin(name, timeout_s=self._patience_s)
            return None
        twin = self.state.copy()
        twin.applied = there | ours
        return twin

    # -- what is done alone

    @torch.no_grad()
    def outputs(self, features: Any) -> Any:
        """The model's outputs in evaluation mode, on the CPU."""
        prepared = self._rows.prepare(features)
        self._rows.attach(prepared, self._pull(prepared).rows, "", train=False)
        self.model.eval()
        return to_device(self.model(to_device(features, self._device)), torch.device("cpu"))


class _Pusher:
    """Pushes a round's spans to some shards, to none maybe, one after the other, in a thread."""

    def __init__(self, ps: PsClient, shards: Sequence[int], patience_s: float) -> None:
        self._ps = ps
        self._shards = shards
        self._patience_s = patience_s
        self._waiting: deque[tuple[Span, Callable[[], Rows], Sequence[int]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: Exception | None = None
        self.servers_version = ps.servers_version  # of those that have acknowledged the last span
        threading.Thread(target=self._run, name="push-rows", daemon=True).start()

    def push(self, span: Span, rows: Callable[[], Rows], versions: Sequence[int]) -> None:
        """After all that were handed over before. `rows` waits for them."""
        with self._changed:
            self._waiting.append((span, rows, versions))
            self._changed.notify_all()

    def wait(self, most: int) -> None:
        """Until so many are not acknowledged. Raises RoundOver where one was refused, Unreachable."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._waiting) <= most)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """What is under way is left to its end, and refused where the round's leases are over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                span, rows, versions = self._waiting[0]
            try:
                servers_version = self._push(span, rows(), versions)
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits for it
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self.servers_version = servers_version
                self._waiting.popleft()
                self._changed.notify_all()

    def _push(self, span: Span, rows: Rows, versions: Sequence[int]) -> int:
        """The version of the servers that have it."""
        if not self._shards:
            return self._ps.servers_version
        result = self._ps.push(
            span, versions, tables=rows, shards=self._shards, timeout_s=self._patience_s
        )
        if result.outcome != PushOutcome.APPLIED:
            raise RoundOver(f"{span}: {result.outcome.value} on the servers")
        return result.servers_version
