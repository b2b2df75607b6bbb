"""Generations of replicas: real processes that meet over loopback, with one folder of checkpoints.

    def body(say):                       # of a test module: a replica finds it by its name
        init_process_group("gloo")
        say(what the test is to know)
        return the number of replicas of the next generation, 0 to end

    generations = elastic(body, tmp_path, replicas=1)
    generations[0][rank].said == [...]

`generation` runs one; its replicas may also be killed or leave with exit code 143. The processes
are forked from one that has imported torch, once for a test session: an import costs 3 s.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

Body = Callable[[Callable[[Any], None]], int]
TIMEOUT_S = 300.0


@dataclass
class Replica:
    """The end of a replica: `code` as of multiprocessing, -9 for SIGKILL; `said`: what it told."""

    code: int | None = None
    next: int = 0
    said: list[Any] = field(default_factory=list)


def begin() -> None:
    """Start the process that replicas are forked from; it ends with this one."""
    _context()
    forkserver.ensure_running()
    _store()  # the first one of a process makes a pipe for signals, which libuv keeps


def elastic(body: Body, checkpoints: Path, replicas: int = 1) -> list[list[Replica]]:
    """Run generations until rank 0 gives 0; return all replicas of all of them, by rank."""
    generations: list[list[Replica]] = []
    while replicas:
        ended = generation(body, checkpoints, replicas, restarts=len(generations))
        assert [0] * replicas == [replica.code for replica in ended], ended
        generations.append(ended)
        replicas = ended[0].next
    return generations


def generation(
    body: Body, checkpoints: Path, replicas: int, restarts: int = 0, **environment: str
) -> list[Replica]:
    """Run one generation to its end."""
    store = _store()
    environment |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "EDL_NUM_REPLICAS": str(replicas),
        "EDL_NUM_RESTARTS": str(restarts),
        "EDL_CHECKPOINT_PATH": str(checkpoints),
    }
    started = []
    for rank in range(replicas):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        own = environment | {"EDL_REPLICA_RANK": str(rank)}
        process = _context().Process(target=_replica, args=(body, theirs, own), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours, Replica()))
    try:
        _listen({ours: replica for _, ours, replica in started})
        for process, _, replica in started:
            process.join(TIMEOUT_S)
            replica.code = process.exitcode
    finally:
        for process, ours, _ in started:
            process.kill()
            process.join()
            ours.close()
    return [replica for _, _, replica in started]


def _store() -> TCPStore:
    """Open a store as torchrun does: the port is there before anybody is told of it."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _listen(replicas: dict[Connection, Replica]) -> None:
    """Note what the replicas say, until all have closed their ends."""
    deadline = time.monotonic() + TIMEOUT_S
    while replicas:
        ready = multiprocessing.connection.wait(list(replicas), deadline - time.monotonic())
        assert ready, f"{len(replicas)} replicas have not ended: {list(replicas.values())}"
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                kind, value = connection.recv()
            except EOFError:
                del replicas[connection]
                continue
            if kind == "next":
                replicas[connection].next = value
            else:
                replicas[connection].said.append(value)


def _replica(body: Body, connection: Connection, environment: dict[str, str]) -> None:
    import torch

    os.environ.update(environment)
    torch.set_num_threads(1)
    connection.send(("next", body(lambda value: connection.send(("said", value))) or 0))


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    # pytest too: a replica imports the module of the test. The first optimizer imports dynamo.
    context.set_forkserver_preload(
        ["pytest", "torch", "torch._dynamo", "edl.adaptive.process_group", "edl.goodput.fit"]
    )
    return context
