"""The loop of a member of an all-reduce group: join a round, train in it, join the next one.

Its books are the state's own (group_state.py): a step moves parameters and positions together, or
neither. In a round all members take the same minibatches in the same order; orders of the master
(a cut of the state) are carried out between two steps.

What ends a round here:
  the step says so   a member wished it: somebody comes or goes. All stop after the same step.
  nothing to do      the master leases this round no more tasks: the same.
  broken             the master says that a member is gone, or the connections do: the step under way
                     is given up and computed again in the next round. What others have applied of it
                     that this member has not, it gets as a latecomer does.
  failure            the content of this member's slice fails: reported, and as above.

A latecomer has no slice of the minibatches of its first round: it takes part with the weight 0, keeps
what the steps came to while the state is on its way, and applies them to it when it is here. Nobody
waits for it. Then it wishes for a round in which it counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...common import faults
from ...common.clock import Clock
from ...common.errors import EdlError, Fenced
from ...common.storage import FileRecord
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from .. import pulse
from ..batches import SpanError
from ..servers.loop import Tasks, _Rate
from ..task_stream import BadSpan, Batch, EndOfTask, Lease, Woken
from .allreduce import Reduced
from .batch_rule import BatchRule
from .peers import Fetch, StateServicer
from .process_group import ProcessGroup, RoundOver
from .slices import RoundLeases, Slice, SliceStream
from .state import GroupState

if TYPE_CHECKING:
    from .adaptive_batch import Follower

log = logging.getLogger(__name__)

_WAIT_S = 10.0  # of a long poll
_JOIN_WAIT_S = 2.0  # between two looks whether this worker is to leave
_IDLE_S = 1.0  # without a task, before a worker that is to leave does so without a step
_KEPT_STEPS = 64  # of a latecomer, at most; then the group waits for it


class _Broken(Exception):
    """The round is over, in the midst of something."""


class GroupWorker:
    """One incarnation. `run` returns when all is done or the worker was drained; raises Fenced."""

    def __init__(
        self,
        master: MasterClient,
        trainer: Any,
        tasks: Tasks,
        make_stream: Callable[[RoundLeases, int, int, int], SliceStream],
        batch_rule: BatchRule,
        *,
        first_values: str,
        address: str,
        states: StateServicer,
        token: str,
        backend: str,
        clock: Clock,
        log_loss_steps: int,
        on_step: Callable[[float, int], None] = lambda loss, records: None,
        follower: Follower | None = None,
    ) -> None:
        """`first_values`: the checkpoint that gives them to a new job, if one does. `address`: where
        `states` is served. `make_stream(leases, rank, shares, minibatch)`. `follower`: of a minibatch that
        follows the goodput."""
        self._master = master
        self._trainer = trainer
        self._tasks = tasks
        self._make_stream = make_stream
        self._batch_rule = batch_rule
        self._first_values = first_values
        self._address = address
        self._states = states
        self._token = token
        self._backend = backend
        self._log_loss_steps = log_loss_steps
        self._on_step = on_step
        self._rate = _Rate(clock)
        self._follower = follower
        self._draining = threading.Event()
        self._fenced = threading.Event()
        self._round: _Round | None = None
        self._cuts: dict[str, GroupState] = {}
        self._orders = _Orders()
        self.number = 0  # of the round
        self.loss: float | None = None
        self.state = "starting"

    # -- for the heartbeat thread and signal handlers

    def drain(self) -> None:
        """End the round after a step, leave."""
        self._draining.set()
        if (round_ := self._round) is not None:
            round_.stream.wake()

    def fence(self) -> None:
        """The master has declared this incarnation lost."""
        self._fenced.set()
        if (round_ := self._round) is not None:
            round_.break_()

    def progress(self) -> list[pb.Progress]:
        round_ = self._round
        if round_ is None or round_.rank:
            return []
        return [
            pb.Progress(task=h.task.id, attempt=h.task.attempt, position=h.position)
            for h in round_.stream.held()
        ]

    def scalars(self) -> dict[str, float]:
        values = {"records_per_s": self._rate.per_s()}
        if self.loss is not None:
            values["loss"] = self.loss
        if (batch := self._trainer.state.batch) is not None:
            values |= batch.scalars()
        return values

    @property
    def version(self) -> int:
        return int(self._trainer.state.version)

    # -- rounds

    def run(self) -> None:
        """Train, round by round."""
        broken = False
        while (reply := self._join(broken)) is not None:
            self.number = reply.round
            pulse.in_round(reply.round)
            self._trainer.state.retire(reply.low_water)
            broken = self._train(reply)
        self._leave()

    def _leave(self) -> None:
        """Go, and leave the state to the next ones where nobody else has it."""
        state = self._trainer.state
        asked = pb.JoinRequest(version=state.version, round=self.number, leaves=True)
        directory = self._master.join(asked).save
        if directory:
            files = state.write(Path(directory))
            saved = pb.ReportOrderRequest(
                directory=directory,
                version=state.version,
                applied=state.applied,
                files=_told(files),
                model_json=state.spec.to_json(),
            )
            self._master.report_order(saved)
        self._states.offer(self.number + 1, None)

    def _join(self, broken: bool) -> pb.JoinReply | None:
        """The next round; None: leave."""
        self.state = "waiting"
        while not self._draining.is_set():
            reply = self._master.join(self._request(wait_s=_JOIN_WAIT_S, broken=broken))
            match reply.outcome:
                case pb.JoinReply.ROUND:
                    return reply
                case pb.JoinReply.FENCED:
                    raise Fenced("the master has declared this worker lost")
                case pb.JoinReply.LEAVE:
                    return None
        return None

    def _request(self, **more: Any) -> pb.JoinRequest:
        """With what the state is."""
        state = self._trainer.state
        return pb.JoinRequest(
            address=self._address,
            version=state.version,
            applied=state.applied,
            round=self.number,
            **more,
        )

    def _train(self, reply: pb.JoinReply) -> bool:
        """A round, to its end. Whether it broke."""
        faults.point("worker.round", round=reply.round)
        group = ProcessGroup()
        world = len(reply.peers)
        shares = sum(peer.version == reply.peers[0].version for peer in reply.peers)
        minibatch, factor = self._batch_rule(shares)
        stream = self._make_stream(
            RoundLeases(self._master, reply.round), reply.rank, shares, minibatch
        )
        round_ = self._round = _Round(self._master, reply, group, stream, self._orders)
        log.info(
            "round=%d rank=%d of %d minibatch=%d -> begun",
            reply.round,
            reply.rank,
            world,
            minibatch,
        )
        round_.start()
        try:
            if reply.afresh:
                self._begin(reply.restore)
            if reply.rank < shares:  # a latecomer gets it with the state
                self._trainer.follow(factor)
            self._offer_state(reply)
            group.open(self._master, reply.round, reply.rank, world, self._backend)
            self._trainer.enter(world)
            if self._follower is not None:
                self._follower.enter(self._trainer, stream, reply, shares)
            stream.start()
            self._steps(round_).run()
            return False
        except (_Broken, RoundOver) as error:
            log.info("round=%d -> broken reason=%r", reply.round, _line(error.__cause__ or error))
            broken = True
        except RuntimeError as error:  # torch's for a member that is gone, among others
            if not (round_.is_broken or _is_of_group(error)):
                raise
            log.info("round=%d -> broken reason=%r", reply.round, _line(error))
            broken = True
        finally:
            self._round = None
            round_.close()
            self._trainer.leave()
            group.close()
        if self._fenced.is_set():
            raise Fenced("the master has declared this worker lost")
        return broken

    def _steps(self, round_: _Round) -> _Steps:
        return _Steps(self, round_)

    def _begin(self, restore: str) -> None:
        """The state that all begin with, where nobody has one."""
        self._trainer.state.begin()
        if restore or self._first_values:
            self._trainer.state.read(restore or self._first_values, ledger=bool(restore))

    def _offer_state(self, reply: pb.JoinReply) -> None:
        """Where somebody lacks what this member has: hand out a copy of it, as it is now."""
        newest = reply.peers[0].version
        lacking = any(peer.version < newest for peer in reply.peers)
        mine = reply.peers[reply.rank].version == newest
        blob = self._trainer.state.pack() if lacking and mine else None
        self._states.offer(reply.round, blob)

    # -- orders (between two steps)

    def _carry_out(self, order: pb.Order) -> None:
        log.info("order=%d -> %s cut=%s", order.id, pb.Order.Kind.Name(order.kind), order.cut)
        match order.kind:
            case pb.Order.TAKE:
                cut = self._cuts[order.cut] = self._trainer.state.copy()
                taken = pb.ReportOrderRequest(id=order.id, version=cut.version, applied=cut.applied)
                self._master.report_order(taken)
            case pb.Order.TAKE_ALL:
                taken = pb.ReportOrderRequest(id=order.id, version=-1)
                if (both := self._trainer.cut(order.cut)) is not None:
                    self._cuts[order.cut] = both
                    taken = pb.ReportOrderRequest(
                        id=order.id, version=both.version, applied=both.applied
                    )
                self._master.report_order(taken)
            case pb.Order.DROP:
                self._cuts.pop(order.cut, None)
                self._master.report_order(pb.ReportOrderRequest(id=order.id))
            case pb.Order.WRITE:
                name = f"write-{order.cut}"
                threading.Thread(target=self._write, args=(order,), name=name, daemon=True).start()

    def _write(self, order: pb.Order) -> None:
        report = pb.ReportOrderRequest(id=order.id)
        try:
            cut = self._cuts[order.cut]
            files = cut.write(Path(order.directory))
            report.model_json = cut.spec.to_json()
            report.files.extend(_told(files))
        except Exception as error:  # noqa: BLE001 - the master waits, and tells the user
            report.error = f"{order.directory}: {error}"
        with contextlib.suppress(EdlError):  # the job is over, or the loop meets the same silence
            self._master.report_order(report)


class _Orders:
    """The master's orders that are not carried out yet; a round that ends takes none along."""

    def __init__(self) -> None:
        self.known = 0  # the master need not say those up to this one again
        self._waiting: deque[pb.Order] = deque()

    def put(self, order: pb.Order) -> None:
        if order.id > self.known:
            self.known = order.id
            self._waiting.append(order)

    def next(self, settled: bool) -> pb.Order | None:
        """settled: nothing is under way on the servers."""
        if not self._waiting or (self._waiting[0].kind == pb.Order.TAKE_ALL and not settled):
            return None
        return self._waiting.popleft()


class _Round:
    """What a round is to a member: its group and stream, and a thread that hears the master."""

    def __init__(
        self,
        master: MasterClient,
        reply: pb.JoinReply,
        group: ProcessGroup,
        stream: SliceStream,
        orders: _Orders,
    ) -> None:
        self.number, self.rank, self.peers = reply.round, reply.rank, list(reply.peers)
        self.stream = stream
        self.orders = orders
        self.is_to_change = False
        self.is_broken = False
        self._master = master
        self._group = group
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="watch-round", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self.stream.close()

    def break_(self) -> None:
        """Whoever waits for another member, or for a task, is free."""
        self.is_broken = True
        self._group.cut()
        self.stream.wake()

    def _watch(self) -> None:
        try:
            while not self._closed and not self.is_broken:
                self._hear()
        except EdlError as error:  # the loop meets the same silence, and reports it
            log.warning("round=%d -> the master is silent error=%r", self.number, str(error))

    def _hear(self) -> None:
        request = pb.WatchRoundRequest(
            round=self.number,
            told_to_change=self.is_to_change,
            orders=self.orders.known,
            wait_s=_WAIT_S,
        )
        reply = self._master.watch_round(request)
        if self._closed:
            return
        for order in reply.orders:
            self.orders.put(order)
        if reply.signal == pb.WatchRoundReply.CHANGE:
            self.is_to_change = True
        elif reply.signal == pb.WatchRoundReply.BROKEN:
            self.break_()
        if reply.orders:
            self.stream.wake()


class _Steps:
    """The steps of one round."""

    def __init__(self, worker: GroupWorker, round_: _Round) -> None:
        self._worker, self._round = worker, round_
        self._trainer, self._master = worker._trainer, worker._master
        self._stream, self._tasks = round_.stream, worker._tasks
        self._kept: deque[Reduced] = deque()
        self._settled = True  # no push of this round is under way, of any member
        self._fetch = self._begin_fetch()

    def run(self) -> None:
        """Until the round ends in order. Raises _Broken."""
        try:
            while self._step():
                if self._round.is_broken:
                    raise _Broken
        finally:
            if self._fetch is not None:
                self._fetch.give_up()
        self._catch_up(wait=True)
        self._trainer.finish()

    def _step(self) -> bool:
        """One item of the stream. False: the round ends here."""
        self._do_orders()
        item = self._stream.next(timeout_s=0.0)
        if item is None and not self._stream.ended:
            self._worker.state = "waiting"
            leaves = self._worker._draining.is_set()
            # Who trains leaves with a step, for the others may be in the midst of one.
            item = self._stream.next(timeout_s=_IDLE_S if leaves else None)
        match item:
            case None:
                return False
            case Woken():
                return True
            case BadSpan(lease, error):
                self._fail(lease, error)
            case EndOfTask(lease):
                self._end(lease)
            case Slice():
                return self._train(item)
            case Batch():
                self._evaluate(item)
        return True

    def _do_orders(self) -> None:
        while (order := self._round.orders.next(self._settled)) is not None:
            self._catch_up(wait=True)
            self._worker._carry_out(order)

    # -- train

    def _train(self, piece: Slice) -> bool:
        """One step, with all. False: the last of this round."""
        worker, lease = self._worker, piece.lease
        worker.state = "training"
        self._settled = False
        ends = False
        if piece.total:
            wish = self._round.is_to_change or worker._draining.is_set()
            faults.point("worker.compute", task=lease.task.id, start=piece.start)
            task = lease.task
            try:
                with pulse.section(pulse.STEP, task.id, task.attempt, piece.start, piece.end):
                    step = self._trainer.reduce(piece, wish)
            except (Exception, SystemExit) as error:
                self._unless_broken(lease, piece, error)
                raise
            self._trainer.look_ahead(self._stream.peek())
            faults.point("worker.commit", task=lease.task.id, start=piece.start)
            self._apply(step)
            ends = step.ends_round
            self._count(step.loss, piece)
        else:  # none of its records is used: all members pass over it
            self._catch_up(wait=True)
            self._trainer.pass_over(piece)
        lease.position = piece.end
        lease.used += piece.total
        return not ends

    def _apply(self, step: Reduced) -> None:
        if self._fetch is None:
            self._trainer.commit(step)
            return
        self._kept.append(self._trainer.keep(step))
        self._catch_up(wait=len(self._kept) >= _KEPT_STEPS)

    def _count(self, loss: float, piece: Slice) -> None:
        worker = self._worker
        worker.loss = loss
        worker._rate.add(piece.used)
        worker._on_step(loss, piece.used)
        if worker._log_loss_steps and worker.version % worker._log_loss_steps == 0:
            log.info("step=%d loss=%.6g", worker.version, loss)

    def _unless_broken(self, lease: Lease, piece: Slice, error: BaseException) -> None:
        """Report what failed, if it is the content, and not the group."""
        if self._round.is_broken or _is_of_group(error):
            raise _Broken from error
        if isinstance(error, EdlError):
            return
        self._fail(lease, SpanError(piece.start, piece.end, lease.task.source, error))

    def _fail(self, lease: Lease, failure: SpanError) -> None:
        """The content of a span fails: the master decides, and this round is over."""
        error = failure.error
        told = pb.Failure(
            start=failure.start,
            end=failure.end,
            source=failure.source,
            error=f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
        )
        if failure.record is not None:
            told.record = failure.record
        train = lease.task.kind == pb.TRAIN
        report = pb.ReportTaskRequest(
            task=lease.task.id,
            attempt=lease.task.attempt,
            failed=told,
            records=lease.used,
            round=self._round.number if train else 0,
        )
        log.warning("task=%d -> failed error=%r", lease.task.id, told.error)
        self._master.report_task(report)
        self._stream.forget(lease)
        if train:
            raise _Broken

    # -- the state of a latecomer

    def _begin_fetch(self) -> Fetch | None:
        """None: this member has what the round begins with."""
        peers, rank = self._round.peers, self._round.rank
        newest = peers[0].version
        if peers[rank].version == newest:
            return None
        there = [peer for peer in peers if peer.version == newest]
        source = there[-1 - rank % len(there)]  # not all from the same one
        log.info("round=%d -> fetching step=%d from=%d", self._round.number, newest, source.index)
        fetch = Fetch(source.address, self._worker._token, self._round.number)
        fetch.start()
        return fetch

    def _catch_up(self, *, wait: bool) -> None:
        """Make the state that was fetched this member's, once it is here; apply what was kept."""
        fetch = self._fetch
        if fetch is None:
            return
        while fetch.is_alive() and wait and not self._round.is_broken:
            fetch.join(0.1)
        if fetch.is_alive():
            return
        if fetch.blob is None:
            raise _Broken from fetch.error
        self._trainer.state.unpack(fetch.blob)
        self._fetch = None
        self._round.is_to_change = True
        kept = len(self._kept)
        while self._kept:
            self._trainer.commit(self._kept.popleft())
        version = self._trainer.state.version
        log.info("round=%d -> healed step=%d kept=%d", self._round.number, version, kept)

    # -- what is done alone, on the state of now

    def _evaluate(self, batch: Batch) -> None:
        self._catch_up(wait=True)
        lease = batch.lease
        self._worker.state = "evaluating"
        task = lease.task
        try:
            if batch.used:
                faults.point("worker.evaluate", task=lease.task.id)
                with pulse.section(pulse.EVALUATE, task.id, task.attempt, batch.start, batch.end):
                    outputs = self._trainer.outputs(batch.features)
                    self._tasks.evaluate(lease, outputs, batch.labels)
        except EdlError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, about this span
            self._fail(lease, SpanError(batch.start, batch.end, lease.task.source, error))
            return
        lease.position = batch.end
        lease.used += batch.used

    def _end(self, lease: Lease) -> None:
        """A task is done: the first of the group says so."""
        task, servers_version = lease.task, 0
        if task.kind == pb.TRAIN:
            servers_version = self._trainer.settle()
            self._settled = True
            if self._round.rank:
                self._stream.forget(lease)
                return
        self._catch_up(wait=True)
        if lease.void:
            return
        result = b""
        try:
            with pulse.section(pulse.END, task.id, task.attempt, lease.size, lease.size):
                match task.kind:
                    case pb.EVALUATE:
                        result = self._tasks.evaluated(lease)
                    case pb.EVALUATE_END:
                        result = json.dumps(self._tasks.merge(task.payload)).encode()
                    case pb.TRAIN_END:
                        self._tasks.train_end(self._trainer)
                self._tasks.task_end(lease)
        except EdlError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, and about no record
            self._fail(lease, SpanError(lease.size, lease.size, task.source, error))
            return
        report = pb.ReportTaskRequest(
            task=task.id,
            attempt=task.attempt,
            done=True,
            records=lease.used,
            result=result,
            round=self._round.number if task.kind == pb.TRAIN else 0,
            version=self._worker.version,
            slot_map_version=servers_version,
        )
        self._master.report_task(report)
        self._do_orders()
        self._stream.forget(lease)


def _told(files: list[FileRecord]) -> list[pb.ReportOrderRequest.File]:
    return [
        pb.ReportOrderRequest.File(name=f.name, nbytes=f.nbytes, sha256=f.sha256) for f in files
    ]


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _is_of_group(error: BaseException) -> bool:
    """An operation of the process group failed: a member is gone, whatever the master knows."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)
