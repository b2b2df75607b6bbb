"""A member of a hybrid job: dense parameters by all-reduce, rows of tables from the servers.

After the backward pass each member has the gradients of its slice's rows. They are exchanged so
that each shard's rows meet at one member, the shard's pusher in this round, which adds them up and
pushes the span of the whole minibatch, one span after the other. So a shard sees each span once,
whole and in order, as from a worker of its own (ps/books/ledger.py), and the dense parameters'
ledger is the group's.

A step's rows are those of all spans but the newest `staleness` (Ho et al. 2013, SSP; Lian et al.
2022, "Persia", section 3.2 for this division). With 0 all wait for the servers after each step.
Else a pusher takes part in a step's all-reduce only when all of its pushes but the newest
`staleness - 1` are acknowledged, and so tells the others: a push has the next forward pass for its
way, and rows of the next step are pulled from the end of the all-reduce on, while this step's own
are exchanged and applied.

A span that the group has applied, but some server has not, comes again: its dense gradient is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.errors import DefinitionError
from ...nn.embedding import tables
from ...nn.model_spec import ModelSpec
from ...nn.moved import take_first_rows
from ...ps.books.ledger import Span
from ...ps.worker_client import PsClient
from ..model import PLAIN, Passes
from ..servers.ids import Unique
from ..task_stream import Item
from ..trainer import GroupTrainer
from .allreduce import AllReduceTrainer, Reduced
from .pusher import Pusher, Rows
from .row_exchange import RowExchange
from .slices import Slice
from .state import GroupState

_NEVER_STALE = 1 << 40  # the version of a push that has no gradients
_CUT_HOLD_S = 2.0


class HybridTrainer(GroupTrainer[Reduced]):
    """A trainer of both sides: an AllReduceTrainer for dense parameters, two other parts for rows.

    The rows are those of a RowExchange, and a Pusher brings them to the servers.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        ps: PsClient,
        spec: ModelSpec,
        *,
        device: torch.device,
        passes: Passes = PLAIN,
        staleness: int,
        patience_s: float,
    ) -> None:
        """Make the model, and agree with the servers on it.

        `staleness`: how many spans a step's rows may lack. `patience_s` bounds every wait for the
        servers. Raises DefinitionError for a model without tables.
        """
        model = make_model().to(device)
        if not tables(model):
            raise DefinitionError(
                "the model has no tables that live on parameter servers: use --strategy allreduce"
            )
        self._rows = RowExchange(
            model,
            ps,
            spec.of_servers,
            device,
            first_rows=lambda: take_first_rows(make_model()),
            patience_s=patience_s,
            before_reduce=self._wait_for_pushes,
        )
        self._dense = AllReduceTrainer(
            lambda: model, loss, spec, device=device, passes=passes, hooks=self._rows
        )
        self.model = self._dense.model
        self.state: GroupState = self._dense.state
        self._ps = ps
        self._staleness = staleness
        self._patience_s = patience_s
        self._world = 1
        self._pusher: Pusher | None = None
        given = {name: len(rows) for name, rows in take_first_rows(model).items()}
        ps.agree(spec.of_servers, rows_given=given, timeout_s=patience_s)

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Return the distinct ids of a part; runs in the stream's thread."""
        return self._rows.prepare(features)

    def follow(self, factor: float) -> None:
        """Let the learning rate of the dense parameters go to so many times what it was."""
        self._dense.follow(factor)

    def enter(self, world: int) -> None:
        """Begin a round, in which this member pushes to its share of the shards."""
        self._world = world
        self._rows.enter(world)
        self._dense.enter(world)
        rank = dist.get_rank()
        shards = [s for s in range(self._ps.num_shards) if s % world == rank]
        self._pusher = Pusher(self._ps, shards, self._patience_s)

    def leave(self) -> None:
        """End the round, and push nothing more."""
        self._dense.leave()
        if self._pusher is not None:
            self._pusher.close()
        self._pusher = None
        self._rows.leave()

    # -- a step

    def reduce(self, piece: Slice, wish: bool) -> Reduced:
        """Compute a step, and begin to push its rows.

        Raises RoundOver where servers refuse one.
        """
        self._rows.begin()
        step = self._dense.reduce(piece, wish)
        self._push(piece, self._rows.exchange(), self._rows.versions)
        return step

    def _push(self, piece: Slice, rows: Callable[[], Rows], versions: Sequence[int]) -> None:
        assert self._pusher is not None
        task = piece.lease.task
        span = Span(task.id, task.attempt, piece.start, piece.end)
        self._pusher.push(span, rows, versions or [_NEVER_STALE] * self._ps.num_shards)
        if not self._staleness:
            self.settle()

    def _wait_for_pushes(self) -> None:
        """Wait for pushes before an all-reduce, which says that no more are under way."""
        assert self._pusher is not None, "a step needs its round"
        if self._staleness:
            self._pusher.wait(self._staleness - 1)

    def look_ahead(self, item: Item | None) -> None:
        """Begin to pull what the next step begins with, where that is known and may be stale."""
        if self._staleness and isinstance(item, Slice) and item.parts:
            self._rows.pull_ahead(item.parts[0][-1])

    def commit(self, step: Reduced) -> None:
        """Apply a step, if that is not done already."""
        if self.state.applied.get(step.task, 0) < step.end:
            self._dense.commit(step)

    def keep(self, step: Reduced) -> Reduced:
        """Return the step with copies, untouched by the steps that follow."""
        return self._dense.keep(step)

    def pass_over(self, piece: Slice) -> None:
        """Push an empty span, so that the servers count it too."""
        self._push(piece, dict, ())
        task = piece.lease.task.id
        self.state.applied[task] = max(self.state.applied.get(task, 0), piece.end)

    def finish(self) -> None:
        """Wait until all of this member's pushes are acknowledged."""
        assert self._pusher is not None
        self._pusher.wait(0)

    def settle(self) -> int:
        """Wait until all pushes of all members are acknowledged.

        Returns the version of the servers that have them.
        """
        assert self._pusher is not None
        self.finish()
        least = torch.tensor([self._pusher.servers_version])
        if self._world > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return int(least)

    def take_cut(self, name: str) -> GroupState | None:
        """Take a cut of the servers and a copy of the group's state, when all is settled.

        None where they do not stand together: the master asks again.
        """
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

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs in evaluation mode, on the CPU."""
        self._rows.attach(features)
        return self._dense.outputs(features)

    def refresh(self) -> None:
        """Do nothing: the values are those of now already."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's dense values, on the CPU."""
        return self._dense.state_dict()
