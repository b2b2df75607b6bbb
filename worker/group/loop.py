"""The loop of a member of an all-reduce group: join a round, train in it, join the next one.

Its account of what was applied is the state's own (state.py): a step moves parameters and positions
together, or neither. In a round all members take the same minibatches in the same order; orders of
the master (a cut of the state) are carried out between two steps.

What ends a round here:
  the step says so   a member wished it: somebody comes or goes. All stop after the same step.
  nothing to do      the master leases this round no more tasks: the same.
  broken             the master says that a member is gone, or the connections do: the step under
                     way is given up and computed again in the next round. What others have applied
                     of it that this member has not, it gets as a latecomer does.
  failure            the content of this member's slice fails: reported, and as above.

A latecomer has no slice of the minibatches of its first round: it takes part with the weight 0,
keeps what the steps came to while the state is on its way, and applies them to it when it is here
(catch_up.py). Nobody waits for it. Then it wishes for a round in which it counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import torch

from ...common import faults
from ...common.errors import Fenced
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from .. import pulse, reports
from ..reports import Status
from ..task_stream import TaskStream
from ..trainer import Beat, GroupTrainer, StepT, Tasks
from .batch_rule import BatchRule
from .process_group import ProcessGroup, RoundOver
from .round import Broken, Round, is_of_group
from .slices import RoundLeases, SliceReader
from .state_keeper import StateKeeper
from .steps import Steps

log = logging.getLogger(__name__)

_JOIN_WAIT_S = 2.0  # between two looks whether this worker is to leave


OnBegin = Callable[[SliceReader, pb.JoinReply, int], None]


def begin_alike(reader: SliceReader, reply: pb.JoinReply, shares: int) -> None:
    """Do nothing: all rounds begin alike."""


@dataclass(frozen=True)
class RoundPlan:
    """The parts that each round of this job is made of.

    `make_reader(rank, shares, minibatch)` reads a member's slices. `device`: the model's.
    `on_begin(reader, reply, shares)`: the process group is there, and nothing was read yet.
    `depth`: minibatches read ahead.
    """

    make_reader: Callable[[int, int, int], SliceReader]
    batch_rule: BatchRule
    device: torch.device
    on_begin: OnBegin = begin_alike
    depth: Callable[[], int] = lambda: 2


class GroupWorker(Generic[StepT]):
    """One incarnation of a worker in a group: a Member (trainer.py).

    `run` returns when all is done or it was drained.
    """

    def __init__(
        self,
        master: MasterClient,
        trainer: GroupTrainer[StepT],
        keeper: StateKeeper,
        tasks: Tasks,
        plan: RoundPlan,
        status: Status,
    ) -> None:
        self.status = status
        self._master = master
        self._trainer = trainer
        self._keeper = keeper
        self._tasks = tasks
        self._plan = plan
        self._draining = threading.Event()
        self._fenced = threading.Event()
        self._round: Round | None = None
        self._number = 0  # of the round

    # -- for the heartbeat thread and signal handlers

    def drain(self) -> None:
        """End the round after a step, leave."""
        self._draining.set()
        if (round_ := self._round) is not None:
            round_.stream.wake()

    def fence(self) -> None:
        """End at once: the master has declared this incarnation lost."""
        self._fenced.set()
        self._keeper.fence()
        if (round_ := self._round) is not None:
            round_.break_()

    def beat(self) -> Beat:
        """Return what the heartbeat tells.

        The progress is that of all members, where this is the first of them.
        """
        round_ = self._round
        held = round_.stream.held() if round_ is not None and not round_.rank else []
        progress = [
            pb.Progress(task=h.task.id, attempt=h.task.attempt, position=h.position) for h in held
        ]
        scalars = self.status.scalars() | self._keeper.scalars()
        if round_ is not None and round_.has_stepped:
            scalars |= {"round": round_.number, "round_minibatch": round_.minibatch}
        return Beat(progress, self._keeper.version, scalars, self._number)

    # -- rounds

    def run(self) -> None:
        """Train, round by round.

        Raises Fenced.
        """
        broken = False
        try:
            while (reply := self._join(broken)) is not None:
                self._number = reply.round
                pulse.in_round(reply.round)
                self._keeper.enter(reply)
                broken = self._train(reply)
            if not self._draining.is_set():
                reports.epochs_end(self._tasks)
            self._keeper.leave(self._number, self.status)
        finally:
            self._keeper.close()

    def _join(self, broken: bool) -> pb.JoinReply | None:
        """Wait for the next round; None: leave."""
        self.status.state = "waiting"
        while not self._draining.is_set():
            request = self._keeper.request()
            request.round, request.broken, request.wait_s = self._number, broken, _JOIN_WAIT_S
            reply = self._master.join(request)
            match reply.outcome:
                case pb.JoinReply.ROUND:
                    return reply
                case pb.JoinReply.FENCED:
                    raise Fenced("the master has declared this worker lost")
                case pb.JoinReply.LEAVE:
                    return None
        return None

    def _train(self, reply: pb.JoinReply) -> bool:
        """Train a round, to its end.

        Returns whether it broke.
        """
        faults.point("worker.round", round=reply.round)
        group = ProcessGroup()
        world = len(reply.peers)
        shares = sum(peer.version == reply.peers[0].version for peer in reply.peers)
        minibatch, factor = self._plan.batch_rule(shares)
        reader = self._plan.make_reader(reply.rank, shares, minibatch)
        stream = TaskStream(RoundLeases(self._master, reply.round), reader, depth=self._plan.depth)
        round_ = self._round = Round(
            self._master, reply, group, stream, self._keeper.orders, self._draining
        )
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
                self._keeper.begin(reply.restore)
            if reply.rank < shares:  # a latecomer gets it with the state
                self._trainer.follow(factor)
            self._keeper.share(reply, lambda: round_.is_broken)
            group.open(self._master, reply.round, reply.rank, world, self._plan.device)
            self._trainer.enter(world)
            self._plan.on_begin(reader, reply, shares)
            round_.minibatch = reader.train_minibatch
            stream.start()
            Steps(self._master, round_, self._trainer, self._keeper, self._tasks, self.status).run()
            group.ends_in_order = True
            return False
        except (Broken, RoundOver) as error:
            log.info("round=%d -> broken reason=%r", reply.round, _line(error.__cause__ or error))
        except RuntimeError as error:  # torch's for a member that is gone, among others
            if not (round_.is_broken or is_of_group(error)):
                raise
            log.info("round=%d -> broken reason=%r", reply.round, _line(error))
        finally:
            self._round = None
            round_.close()
            self._trainer.leave()
            group.close()
        if self._fenced.is_set():
            raise Fenced("the master has declared this worker lost")
        return True


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
