"""The processes of benchmarks/crowd.py: a server, holders of connections, a worker that joins."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.parameters import DEADLINE_S, POLICY, TOKEN
from edl.common.errors import Unreachable
from edl.common.identity import Identity
from edl.kernels.malloc import keep_freed_memory
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import Adagrad
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.plane import Plane
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.ps.worker_client import PsClient

ROWS, DIM, KNOWN_ROWS, DENSE = 200, 16, 100_000, 7_000
SPEC = ModelSpec((DenseSpec("w", (DENSE,)),), (TableSpec("t", DIM),), Adagrad())
WIDE_ROWS = 20_000  # of a large pull
AGAIN_S = 0.05, 1.0  # until a connection is tried again, as workers do
Line = Connection


def serve(line: Line, identity: Identity, count: int) -> None:
    """Serve an async store, and a plane of its own for the steps of `count` workers."""
    keep_freed_memory()
    servicer = ParameterServerServicer(0, Store(index=0, slot_map=SlotMap(1), policy=POLICY))
    listeners = Listeners(servicer, identity)
    policy = Policy(use_async=False, grads_to_wait=count, staleness=1 << 30)
    steps = Store(index=0, slot_map=SlotMap(1), policy=policy)
    steps.init(SPEC, {("w", 0): np.zeros(DENSE, np.float32)}, True)
    plane = Plane(lambda: steps, Metrics(0).calls, index=0, identity=identity)
    line.send((listeners.address, servicer.listening, plane.listening))
    line.recv()
    plane.close()
    listeners.close()


def hold(line: Line, identity: Identity) -> None:
    """Hold connections, and ask by them what is asked for."""
    keep_freed_memory()
    while (what := line.recv()) is not None:
        match what:
            case "open", told, of_steps, carrier, count, task:
                endpoints = [
                    PlaneEndpoint("127.0.0.1", to.tcp_port, to.unix_name, to.host_id)
                    for to in (told, of_steps)
                ]
                with ThreadPoolExecutor(count) as pool:
                    begun = [
                        pool.submit(Asking, endpoints, identity, carrier, task + n)
                        for n in range(count)
                    ]
                    held = [one.result() for one in begun]
                turn = itertools.cycle(held)
                line.send(sum(one.tries for one in held))
            case ("wide",):
                for one in held:
                    one.pull_wide()
                line.send(((), ()))
            case "busy", seconds, rate, few:
                chosen = turn if few is None else itertools.cycle(held[:few])
                line.send(_busy(chosen, seconds, rate))
            case "burst", ask:
                waits = [ask(one) for one in held]
                line.send(len(held))
                for wait in waits:
                    wait()
                line.send(None)


class Asking:
    """A connection that asks."""

    def __init__(
        self, endpoints: Sequence[PlaneEndpoint], identity: Identity, carrier: str, task: int
    ) -> None:
        rng = np.random.default_rng(task)
        self._connection, self._of_steps = (
            PlaneShardConnection(to, identity, 1, transport=carrier) for to in endpoints
        )
        self._task, self._at, self._steps = task, 0, 0
        self._ids = rng.choice(KNOWN_ROWS, ROWS, replace=False)
        self._into = np.empty(DENSE, np.float32)
        self.tries = 1
        while not self._served():
            self.tries += 1
            time.sleep(min(AGAIN_S[0] * 2**self.tries, AGAIN_S[1]) * rng.random())

    def _served(self) -> bool:
        try:
            self.pull()
            self.push()
            return True
        except Unreachable:
            return False

    def pull_wide(self) -> None:
        pull = ShardPull(False, None, {"t": np.arange(WIDE_ROWS)})
        self._connection.start_pull(pull, DEADLINE_S)()

    def start_pull(self) -> Callable[[], Any]:
        pull = ShardPull(True, None, {"t": self._ids}, into=lambda _tensor, _number: self._into)
        return self._connection.start_pull(pull, DEADLINE_S)

    def pull(self) -> None:
        self.start_pull()()

    def start_push(self) -> Callable[[], Any]:
        self._at += 1
        return self._connection.start_push(self._push(self._at), DEADLINE_S)

    def start_step(self) -> Callable[[], Any]:
        then = ShardPull(True, None, into=lambda _tensor, _number: self._into)
        self._steps += 1
        wait = self._of_steps.start_push(self._push(self._steps, then), DEADLINE_S)

        def stepped() -> None:
            assert wait().pulled

        return stepped

    def _push(self, end: int, then: ShardPull | None = None) -> ShardPush:
        span = Span(self._task, 1, end - 1, end)
        return ShardPush(span, 0, [("w", 0, _DENSE_GRADS)], {"t": (self._ids, _GRADS)}, then=then)

    def push(self) -> None:
        assert self.start_push()().applied == self._at


_GRADS, _DENSE_GRADS = np.zeros((ROWS, DIM), np.float32), np.zeros(DENSE, np.float32)


def _busy(turn: Iterator[Asking], seconds: float, rate: float) -> tuple[list[float], list[float]]:
    """Return of all cycles how long the pull and the push took, from when it was sent."""
    pulls, pushes = [], []
    began = time.perf_counter()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        one = next(turn)
        for took, ask in (pulls, one.pull), (pushes, one.push):
            sent = time.perf_counter()
            ask()
            took.append(time.perf_counter() - sent)
    return pulls, pushes


def join(line: Line, address: str, carrier: str, identity: Identity) -> None:
    """Join as a worker: agree on the model, and pull."""
    keep_freed_memory()
    began = time.perf_counter()
    client = PsClient([address], token=TOKEN, identity=identity, spec=SPEC, transport=carrier)
    client.agree(SPEC, timeout_s=DEADLINE_S)
    into = {"w": np.empty(DENSE, np.float32)}
    client.pull({"t": np.arange(ROWS)}, dense=into, full=True, timeout_s=DEADLINE_S)
    line.send(time.perf_counter() - began)
    signal.pause()  # until it is killed
