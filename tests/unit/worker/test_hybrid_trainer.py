"""The rows that a hybrid step may lack, in a group of one, before servers as slow as may be."""

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from edl.nn import SGD, Embedding
from edl.proto import master_pb2 as pb
from edl.ps.worker_client import Pulled, PushOutcome, PushResult
from edl.worker.group.hybrid import HybridTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.task_reader import Lease

STEPS = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Embedding("rows", 2, feature="ids")
        self.out = nn.Linear(2, 1)

    def forward(self, features):
        return self.out(self.rows(features["ids"])).squeeze(1)


class LateServers:
    """A push is applied once two pulls more have been made, or after a while without."""

    num_shards = 1
    servers_version = 1

    def __init__(self):
        self.lacked = []  # by step, as each pulls once: those before it that are not applied
        self._pulled = threading.Condition()
        self._applied = 0

    def agree(self, spec, *, rows_given, timeout_s):
        pass

    def pull(self, tables, *, timeout_s):
        with self._pulled:
            self.lacked.append(len(self.lacked) - self._applied)
            self._pulled.notify_all()
        rows = {name: np.ones((len(ids), 2), np.float32) for name, ids in tables.items()}
        return Pulled(True, (self._applied,), rows, frozenset())

    def push(self, span, versions, *, tables, shards, timeout_s):
        with self._pulled:
            seen = len(self.lacked)
            self._pulled.wait_for(lambda: len(self.lacked) >= seen + 2, 0.05)
            self._applied += 1
        return PushResult(PushOutcome.APPLIED, (self._applied,))


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def piece(number, trainer):
    features, labels = {"ids": torch.tensor([number, number + 1])}, torch.ones(2)
    lease = Lease(pb.Task(id=1, attempt=1, kind=pb.TRAIN, end=2 * STEPS))
    parts = [(features, labels, 2, trainer.prepare(features))]
    return Slice(lease, 2 * number, 2 * number + 2, 2, total=2, parts=parts)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_the_rows_of_a_step_lack_the_newest_pushes_and_no_more(staleness):
    servers = LateServers()
    trainer = HybridTrainer(
        Model,
        nn.functional.mse_loss,
        servers,
        model_spec(Model(), SGD(lr=0.1), 7),
        staleness=staleness,
        patience_s=10.0,
        device=torch.device("cpu"),
    )
    trainer.state.begin()
    trainer.enter(1)
    pieces = [piece(number, trainer) for number in range(STEPS)]

    for own, following in zip(pieces, [*pieces[1:], None], strict=True):
        step = trainer.reduce(own, False)
        trainer.look_ahead(following)
        trainer.commit(step)
    trainer.finish()
    trainer.leave()

    assert STEPS == len(servers.lacked)  # what was pulled ahead was used
    assert max(servers.lacked) <= staleness
