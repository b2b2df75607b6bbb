"""Ours: one worker and one server process, or the same store inside the worker.

    python -m benchmarks.peers.ours FILE [--in_process] [--growing]
        [--transport auto|shm|unix|tcp|grpc] [--pull_ahead 0|1] [--gradient_wire WIRE] [--compile]

The server is `python -m edl.ps`, as a job starts it. The worker is the project's trainer in a loop
like that of worker/servers/loop.py: the next minibatch is prepared in another thread, the next pull
and the last push run while this one computes (`--pull_ahead 0`: the pull waits for the push). The
flags are those of a job, and so are their defaults.

All rows are there before the first minibatch, as they are in the peers' tables, made by pushes of
zeros, which change nothing else. `--growing`: rows are made as their ids come, as in a job.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.peers import work as w
from benchmarks.peers.torch_model import DeepFM
from edl.common import rpc
from edl.common.identity import job_identity
from edl.common.settings import JobSettings
from edl.kernels.malloc import keep_freed_memory
from edl.nn.embedding import Embedding
from edl.nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from edl.nn.optimizers import Adagrad
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.worker_client import PsClient, Pulled, PushOutcome, PushResult
from edl.worker.model import Passes, model_spec
from edl.worker.servers.trainer import Exchange, PsTrainer

SETTINGS = JobSettings(num_ps=1, use_async=True, log_level="warning")
START_S = 60.0


class Model(DeepFM):
    """A model as a definition's `model()` returns it."""

    def __init__(self, work: w.Work) -> None:
        super().__init__(work)
        self.rows = Embedding("rows", w.DIM, scale=w.SCALE, feature="ids")

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(self.rows(features["ids"]), features["x"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.ours")
    parser.add_argument("file")
    parser.add_argument("--in_process", action="store_true")
    parser.add_argument("--growing", action="store_true")
    parser.add_argument("--transport", default=SETTINGS.transport)
    parser.add_argument("--pull_ahead", type=int, default=SETTINGS.pull_ahead)
    parser.add_argument("--gradient_wire", default=SETTINGS.gradient_wire)
    parser.add_argument("--compile", action="store_true", default=SETTINGS.compile)
    given = vars(parser.parse_args())
    keep_freed_memory()
    torch.set_num_threads(1)
    work, in_process = w.load(given.pop("file")), given.pop("in_process")
    growing = given.pop("growing")
    settings = dataclasses.replace(SETTINGS, **given)
    optimizer = Adagrad(lr=w.LR, initial_accumulator_value=w.ACCUMULATOR)
    spec = model_spec(Model(work), optimizer, seed=0)
    with contextlib.nullcontext(Inside()) if in_process else serving(spec, settings) as ps:
        train(work, ps, spec, settings, growing)


def train(work: w.Work, ps: Any, spec: ModelSpec, settings: JobSettings, growing: bool) -> None:
    pull_ahead = bool(settings.pull_ahead)
    trainer = PsTrainer(
        lambda: Model(work),
        functional.binary_cross_entropy_with_logits,
        ps,
        spec,
        device=torch.device("cpu"),
        passes=Passes.of(settings),
        exchange=Exchange(
            ahead=pull_ahead,
            push_pull=settings.push_brings_dense,
            wire=settings.gradient_wire,
        ),
    )
    if not growing:
        trainer.refresh()
        fill(ps)
    stream, pool = ThreadPoolExecutor(1), ThreadPoolExecutor(2)

    def prepare(step: int) -> tuple[dict[str, Tensor], Tensor, Any]:
        features = {"ids": torch.from_numpy(work.ids[step]), "x": torch.from_numpy(work.x[step])}
        return features, torch.from_numpy(work.y[step]), trainer.prepare(features)

    meter, losses = w.Meter(work.steps), []
    coming = stream.submit(prepare, 0)
    pulled: Future[Any] | None = None
    pushed: Future[PushResult] | None = None
    for step in range(work.steps):
        features, labels, unique = coming.result()
        last = step + 1 == work.steps
        if not last:
            coming = stream.submit(prepare, step + 1)
        if not pull_ahead:
            _acknowledged(pushed)
            pushed = None
        pull = trainer.begin(unique, pulled.result() if pulled else None)
        if pull_ahead and not last:
            pulled = trainer.start_pull(coming.result()[2], pool)
        gradients = trainer.gradients(features, labels, unique, pull, (0, 0, step))
        losses.append(gradients.loss or 0.0)
        _acknowledged(pushed)
        span = (0, 1, step * w.BATCH, (step + 1) * w.BATCH)
        pushed = pool.submit(trainer.push, *span, gradients)
        meter.step()
    _acknowledged(pushed)
    meter.report(losses)


def fill(ps: Any) -> None:
    """Make all rows of the table, in no order."""
    everything = np.random.default_rng(1).permutation(w.ROWS)
    zeros = np.zeros((w.VOCABULARY, w.DIM), np.float32)
    for number, ids in enumerate(everything.reshape(w.FIELDS, w.VOCABULARY)):
        span, tables = Span(1, 1, number, number + 1), {"rows": (ids, zeros)}
        result = ps.push(span, (0,), dense={}, tables=tables, timeout_s=START_S)
        assert result.outcome is PushOutcome.APPLIED, result


def _acknowledged(pushed: Future[PushResult] | None) -> None:
    if pushed:
        result = pushed.result()
        assert result.outcome is PushOutcome.APPLIED, result


# -- A server process, and as much of a master as it needs


@contextlib.contextmanager
def serving(spec: ModelSpec, settings: JobSettings) -> Iterator[PsClient]:
    """Start one `python -m edl.ps`; yield its client."""
    token = secrets.token_hex(16)
    master = _Master()
    control = rpc.Server(
        lambda server: master_pb2_grpc.add_MasterServicer_to_server(master, server), token=token
    )
    command = [sys.executable, "-m", "edl.ps", "--index=0", "--incarnation=0"]
    process = subprocess.Popen(
        [*command, f"--master={control.address}"], env={**os.environ, "EDL_TOKEN": token}
    )
    try:
        client = PsClient(
            [master.server()],
            token=token,
            spec=spec,
            transport=settings.transport,
            identity=job_identity(token),
        )
        try:
            yield client
        finally:
            client.close()
    finally:
        process.terminate()
        process.wait()
        control.stop()


class _Master(master_pb2_grpc.MasterServicer):
    """A master that takes the server's name and address, and hears its heart beat."""

    def __init__(self) -> None:
        self._registered = threading.Event()
        self._address = ""

    def server(self) -> str:
        """Return the server's address. Raises TimeoutError."""
        if not self._registered.wait(START_S):
            raise TimeoutError(f"the server did not register in {START_S:g} s")
        return self._address

    def Register(self, request: Any, _context: grpc.ServicerContext) -> Any:
        self._address = request.address
        self._registered.set()
        return pb.RegisterReply(settings_json=SETTINGS.to_json())

    def Heartbeat(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return pb.HeartbeatReply()


# -- The store in this process


class Inside:
    """A store that answers as a PsClient, in this process: the limit of the design.

    Every dense tensor of this model is one chunk.
    """

    num_shards = 1

    def __init__(self) -> None:
        self._store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
        self._known: int | None = None

    def agree(self, spec: ModelSpec, **_: Any) -> None:
        assert all(math.prod(d.shape) <= CHUNK_ELEMENTS for d in spec.dense)
        self._store.init(spec, {}, False)

    def init(
        self, spec: ModelSpec, dense: Mapping[str, w.Floats], *_rows: Any, **_: Any
    ) -> tuple[int, ...]:
        chunks = {(name, 0): values.reshape(-1) for name, values in dense.items()}
        return (self._store.init(spec, chunks, True),)

    def pull(
        self,
        tables: Mapping[str, w.Ids],
        *,
        dense: Mapping[str, w.Floats] | None = None,
        cut: str = "",
        full: bool = False,
        **_: Any,
    ) -> Pulled:
        known = None if full else self._known
        found = self._store.pull(
            dense=dense is not None, known_version=known, tables=list(tables.items()), cut=cut
        )
        if found is None:
            return Pulled(False, (0,), {}, frozenset())
        version, chunks, rows = found
        if dense is not None:
            self._known = version
            for (name, _), values in chunks:
                dense[name].reshape(-1)[:] = np.frombuffer(values, np.float32)
        changed = frozenset(name for (name, _), _ in chunks)
        return Pulled(True, (version,), dict(zip(tables, rows, strict=True)), changed)

    def push(
        self,
        span: Span,
        versions: Sequence[int],
        *,
        dense: Mapping[str, w.Floats],
        tables: Mapping[str, tuple[w.Ids, w.Floats]],
        **_: Any,
    ) -> PushResult:
        chunks = {(name, 0): values.reshape(-1) for name, values in dense.items()}
        pushed = self._store.push(span, versions[0], Update(chunks, dict(tables)))
        assert pushed.outcome is Outcome.APPLIED, pushed
        return PushResult(PushOutcome.APPLIED, (pushed.version,))


if __name__ == "__main__":
    main()
