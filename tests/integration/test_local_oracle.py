"""One worker in sync mode equals plain torch in one process, for every optimizer, on 1-3 servers.

The servers are real (on loopback, over the tensor plane); the oracle is torch.optim with every
embedding row a parameter of its own. The model has a table that is pulled ahead, one that is pulled
inside the forward, BatchNorm's running statistics, dropout and a tensor without gradient.
"""

import numpy as np
import pytest
import torch
from tools.servers import serving
from tools.turns import in_turn, some
from torch import nn

from edl.nn import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    Embedding,
    LocalRows,
    attach,
    torch_optimizer,
)
from edl.nn.device import seed_of
from edl.nn.optimizers import learning_rate
from edl.worker.model import Passes, model_spec
from edl.worker.servers.trainer import Exchange, PsTrainer

torch.set_num_threads(1)
STEPS = 200
SEED = 7
OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "momentum": SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(lr=0.05),
    "adam": Adam(lr=Cosine(5e-3, total_steps=STEPS, warmup_steps=20)),
    "amsgrad": Adam(lr=3e-3, amsgrad=True),
    "adamw": AdamW(lr=3e-3, weight_decay=0.05),
    "ftrl": FTRL(lr=0.1, l1=1e-4, l2=1e-3),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Embedding("user", 8, feature="user")
        self.words = Embedding("words", 4, initializer="normal", scale=0.1, combiner="mean")
        self.norm = nn.BatchNorm1d(12)
        self.hidden = nn.Linear(12, 16)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(16, 1)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, features):
        x = torch.cat([self.user(features["user"]), self.words(features["words"])], 1)
        return self.out(self.drop(torch.tanh(self.hidden(self.norm(x))))).squeeze(1)


def make_model():
    torch.manual_seed(SEED)
    return Model()


def loss_of(outputs, labels):
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def batch(step):
    rng = np.random.default_rng([SEED, step])
    user = torch.from_numpy(np.minimum(rng.zipf(1.3, 32), 300).astype(np.int64))
    words = torch.from_numpy(rng.integers(-1, 60, (32, 5)))  # -1 is padding
    flipped = torch.from_numpy(rng.random(32) < 0.1)
    labels = ((user % 3 == 0) ^ flipped).float()
    return {"user": user, "words": words}, labels


def plain_torch(spec):
    """Return state dict, rows by table, and the losses of plain torch."""
    model, rows, losses = make_model(), LocalRows(SEED), []
    attach(model, rows)
    optimizer = torch_optimizer(spec, model.parameters())
    for step in range(STEPS):
        features, labels = batch(step)
        torch.manual_seed(seed_of(SEED, 0, 1, step))
        model.train()
        loss = loss_of(model(features), labels)
        optimizer.param_groups[0]["params"].extend(rows.new_parameters())
        optimizer.param_groups[0]["lr"] = learning_rate(spec, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    tables = {
        name: {i: row.detach().numpy() for i, row in rows.table(name).items()}
        for name in ("user", "words")
    }
    return model.state_dict(), tables, losses


@pytest.fixture(scope="module", params=some(OPTIMIZERS))
def oracle(request):
    return OPTIMIZERS[request.param], plain_torch(OPTIMIZERS[request.param])


def run(trainer, steps):
    """Train on the first `steps` batches, end with the servers' values; return the losses."""
    losses = []
    for step in range(steps):
        features, labels = batch(step)
        prepared = trainer.prepare(features)
        pulled = trainer.begin(prepared, None)
        gradients = trainer.gradients(features, labels, prepared, pulled, (0, 1, step))
        trainer.push(1, 1, step, step + 1, gradients)
        losses.append(gradients.loss)
    trainer.refresh()
    return losses


@pytest.mark.parametrize("num_servers", some([1, 2, 3], 3))
def test_one_sync_worker_equals_plain_torch(oracle, num_servers):
    optimizer, (state, tables, losses) = oracle
    spec = model_spec(make_model(), optimizer, SEED)

    with serving(num_servers, spec) as client:
        trainer = PsTrainer(make_model, loss_of, client, spec, device=torch.device("cpu"))
        found = run(trainer, STEPS)
        final = trainer.state_dict()
        rows = {
            name: client.pull({name: np.array(sorted(ids))}, timeout_s=10).rows[name]
            for name, ids in tables.items()
        }

    np.testing.assert_allclose(found, losses, rtol=1e-3, atol=1e-4)
    for name, tensor in final.items():
        if name != "norm.num_batches_tracked":
            np.testing.assert_allclose(tensor, state[name], rtol=1e-3, atol=2e-5, err_msg=name)
    for name, expected in tables.items():
        stacked = np.stack([expected[i] for i in sorted(expected)])
        np.testing.assert_allclose(rows[name], stacked, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_gradients_in_fewer_bytes_learn_nearly_the_same(wire):
    spec = model_spec(make_model(), Adagrad(lr=0.05), SEED)
    found = {}
    for coded in ("float32", wire):
        with serving(2, spec) as client:
            trainer = PsTrainer(
                make_model,
                loss_of,
                client,
                spec,
                device=torch.device("cpu"),
                exchange=Exchange(wire=coded),
            )
            found[coded] = np.mean(run(trainer, 100)[50:])

    assert found[wire] == pytest.approx(found["float32"], rel=0.02)


@in_turn(3)
def test_a_compiled_model_learns_the_same(monkeypatch):
    """Dropout masks are the same too: they are a function of the span's seed alone."""
    # Else two more processes import torch for a few small kernels.
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    spec = model_spec(make_model(), Adagrad(lr=0.05), SEED)
    found = []
    for compiled in (False, True):
        with serving(1, spec) as client:
            trainer = PsTrainer(
                make_model,
                loss_of,
                client,
                spec,
                device=torch.device("cpu"),
                passes=Passes(compile=compiled),
            )
            found.append(run(trainer, 20))

    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_values_that_a_push_brings_back_are_those_of_a_pull(oracle, monkeypatch):
    """Only the tensor plane brings values with a push: over gRPC each step would pull them."""
    optimizer, (_, _, losses) = oracle
    spec = model_spec(make_model(), optimizer, SEED)
    dense_pulls = 0

    with serving(2, spec) as client:
        pull = client.pull

        def counted(*args, dense=None, **kwargs):
            nonlocal dense_pulls
            dense_pulls += dense is not None
            return pull(*args, dense=dense, **kwargs)

        monkeypatch.setattr(client, "pull", counted)
        trainer = PsTrainer(
            make_model,
            loss_of,
            client,
            spec,
            device=torch.device("cpu"),
            exchange=Exchange(push_pull=True),
        )
        found = run(trainer, 40)

    np.testing.assert_allclose(found, losses[:40], rtol=1e-3, atol=1e-4)
    assert 3 == dense_pulls  # before and after the servers are told the model, and at the end


def trained(device, steps=50):
    """Return state dict and losses of a worker on `device`, without dropout: masks are its own."""

    def without_dropout():
        model = make_model()
        model.drop.p = 0.0
        return model

    spec = model_spec(without_dropout(), Adagrad(lr=0.05), SEED)
    with serving(2, spec) as client:
        ahead = Exchange(ahead=True)
        trainer = PsTrainer(without_dropout, loss_of, client, spec, device=device, exchange=ahead)
        losses = run(trainer, steps)
    return trainer.state_dict(), losses


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_worker_on_cuda_learns_what_one_on_the_cpu_learns():
    expected, expected_losses = trained(torch.device("cpu"))
    state, losses = trained(torch.device("cuda"))

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-2, atol=1e-3)
    for name, tensor in expected.items():
        np.testing.assert_allclose(state[name], tensor, rtol=1e-2, atol=1e-3, err_msg=name)
