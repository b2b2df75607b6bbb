"""torch's rendezvous (torch.distributed.elastic) with our rounds behind it: the backend "edl".

Each joining brings a new store server; that of rank 0's agent is the round's, and the workers use
it too (MASTER_ADDR, MASTER_PORT), so that no port is guessed and no round reads what an earlier one
left. While all workers are stopped rank 0's agent looks for the newest checkpoint that is whole and
tells the others: all ranks of a round load the same one, however late each starts.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from ..common.errors import EdlError
from ..common.listen import host_of, joined
from . import devices, state
from .node import Node
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

BACKEND = "edl"
_STORE_S = 20.0  # to reach the store of a round; then it is joined anew
_MOST_TRIES = 5
_PINNED = "edl/checkpoint"


class EdlRendezvous(RendezvousHandler):
    """A node's rendezvous for torch's agent: `node` beats, and `nproc` workers run here.

    `round`: the current round's number, `restarts` the rounds before it, `checkpoint` the version
    that is loaded in it (0: none), `before` the workers of other nodes of this machine that have
    their GPUs first.
    """

    def __init__(self, node: Node, nproc: int) -> None:
        self._node = node
        self._nproc = nproc
        self.round = 0
        self.restarts = 0
        self.num_nodes = 0
        self.checkpoint = 0
        self.before = 0

    @property
    def settings(self) -> LaunchSettings:
        return self._node.settings

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        for _ in range(_MOST_TRIES):
            try:
                return self._join()
            except EdlError as error:
                raise RendezvousConnectionError(str(error)) from error
            except DistError as error:  # the node of rank 0 is gone already: there is a next round
                log.warning("round=%d -> its store is not reached: %s", self.round, error)
        raise RendezvousConnectionError(
            f"in {_MOST_TRIES} rounds the store of rank 0 was not reached: can this machine "
            "connect to any port of the others?"
        )

    def _join(self) -> RendezvousInfo:
        node = self._node
        ours = TCPStore(
            node.host,
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_STORE_S),
        )
        reply = node.join(
            self._nproc,
            joined(node.host, ours.port),
            state.newest_round(node.settings.checkpoint_dir),
        )
        if reply.closed:
            raise RendezvousClosedError(f"the job is over: {reply.closed}")
        self.round, self.restarts, self.num_nodes = reply.round, reply.restarts, reply.num_nodes
        host, port = host_of(reply.store), int(reply.store.rpartition(":")[2])
        if reply.rank == 0:
            store = ours
            pinned = state.newest_whole(node.settings.checkpoint_dir)
            store.set(_PINNED, str(pinned))
        else:
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_STORE_S))
            pinned = int(store.get(_PINNED))
        self.checkpoint = pinned
        in_pod = bool(os.environ.get("EDL_POD"))  # which has its own
        self.before = 0 if in_pod else devices.place(store, self._nproc)
        # Then torch computes the ranks; else it asks each node for its number, over the store.
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = str(int(reply.identical))
        log.info("round=%d rank=%d nodes=%d", reply.round, reply.rank, reply.num_nodes)
        return RendezvousInfo(store, reply.rank, reply.num_nodes, RendezvousStoreInfo(host, port))

    def num_nodes_waiting(self) -> int:
        """Return 1 when the round is over: then torch's agent stops its workers and joins."""
        if self.is_closed():
            raise RendezvousClosedError(f"the job is over: {self._node.closed}")
        try:
            return int(self._node.must_restart())
        except EdlError as error:
            raise RendezvousConnectionError(str(error)) from error

    def is_closed(self) -> bool:
        return bool(self._node.closed)

    def set_closed(self) -> None:
        """Do nothing: only the coordinator ends a job."""

    def get_run_id(self) -> str:
        return self._node.settings.job_name

    def shutdown(self) -> bool:
        self._node.leave()
        return True


def create(parameters: RendezvousParameters) -> EdlRendezvous:
    """Make a rendezvous for torch's registry; `node` and `nproc` are of the parameters' own."""
    return EdlRendezvous(parameters.config["node"], parameters.config["nproc"])


def handler_of(node: Node, nproc: int) -> EdlRendezvous:
    """Return a handler by torch's registry."""
    rendezvous_handler_registry.register(BACKEND, create)
    made = rendezvous_handler_registry.create_handler(
        RendezvousParameters(
            backend=BACKEND,
            endpoint="",
            run_id=node.settings.job_name,
            min_nodes=node.settings.min_nodes,
            max_nodes=node.settings.max_nodes,
            node=node,
            nproc=nproc,
        )
    )
    assert isinstance(made, EdlRendezvous)
    return made
