"""When the trainer asks the servers for dense values, and on which versions it says it computed."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch
from torch import nn

from edl.common.errors import EdlError
from edl.nn import Adagrad, ByName, Embedding
from edl.nn.buffers import NonFinite
from edl.nn.embedding import PADDING, attach
from edl.nn.optimizers import SGD
from edl.ps.worker_client import Pulled, PushOutcome, PushResult
from edl.worker.model import PLAIN, Passes, compiled, model_spec
from edl.worker.servers.ids import Unique
from edl.worker.servers.trainer import Exchange, PsTrainer

PREPARED = {"t": Unique(np.array([1]), ())}


class Servers:
    """One shard whose version rises with each pull; remembers which pulls were dense."""

    def __init__(self):
        self.dense = []

    def agree(self, spec, *, rows_given, timeout_s):
        """Agree on any model."""

    def pull(self, tables, *, dense=None, cut="", full=False, timeout_s):
        self.dense.append(dense is not None)
        for values in (dense or {}).values():
            values[...] = 7.0 if cut else 1.0
        return Pulled(True, (len(self.dense),), {}, frozenset(dense or ()))


def trainer(servers, **options):
    make = lambda: torch.nn.Linear(1, 1)
    return PsTrainer(
        make,
        lambda outputs, labels: outputs.sum(),
        servers,
        model_spec(make(), SGD(), 0),
        device=torch.device("cpu"),
        exchange=Exchange(**options),
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_dense_values_pulled_ahead_are_as_new_as_those_that_are_not(steps):
    """In both cases every `steps`-th minibatch computes on values of its own pull."""
    servers = Servers()
    made = trainer(servers, get_model_steps=steps, ahead=True)
    features = torch.ones(1, 1)
    ahead = None
    with ThreadPoolExecutor(1) as pool:
        for _ in range(6):
            pull = made.begin(PREPARED, ahead.result() if ahead else None)
            ahead = made.start_pull(PREPARED, pool)
            made.gradients(features, None, PREPARED, pull, ())

    assert [n % steps == 0 for n in range(7)] == servers.dense


def test_parameters_that_the_servers_call_stale_are_pulled_again():
    servers = Servers()
    made = trainer(servers, get_model_steps=100)
    made.begin({}, None)
    before = made.empty().versions

    made.outdated()
    made.begin({}, None)

    assert (before, [1], [2]) == ([1], before, made.empty().versions)


def test_a_pull_of_the_present_that_comes_late_does_not_change_an_evaluation(monkeypatch):
    """The pull was started ahead for a batch whose lease was lost meanwhile."""
    made = trainer(Servers(), ahead=True)
    made.begin({}, None)
    install = made._install

    def late(pull):
        thread = threading.Thread(target=made._pull, args=({}, "", True))
        thread.start()
        thread.join(0.3)
        install(pull)

    monkeypatch.setattr(made, "_install", late)

    assert 14.0 == float(made.outputs(torch.ones(1, 1), {}, "cut"))


class Tables:
    """One shard of rows that are a function of table and id; remembers what it was told."""

    def __init__(self, brings=True):
        self.asked = []
        self.pushed = []
        self.brings = brings

    def agree(self, spec, *, rows_given, timeout_s):
        self.dims = {table.name: table.dim for table in spec.tables}

    def row(self, table, ids):
        columns = np.arange(self.dims[table])
        return np.sin(np.asarray(ids)[:, None] * 0.7 + columns + len(table)).astype(np.float32)

    def pull(self, tables, *, dense=None, cut="", full=False, timeout_s):
        self.asked.append({name: ids.tolist() for name, ids in tables.items()})
        rows = {name: self.row(name, ids) for name, ids in tables.items()}
        return Pulled(True, (1,), rows, frozenset())

    def push(self, span, versions, *, dense, tables, wire, dense_into, timeout_s):
        self.pushed.append((versions, {n: v.copy() for n, v in dense.items()}))
        if dense_into is None or not self.brings:
            return PushResult(PushOutcome.APPLIED, (len(self.pushed) + 1,))
        for values in dense_into.values():
            values[...] = len(self.pushed)
        return PushResult(
            PushOutcome.APPLIED, (len(self.pushed) + 1,), None, True, frozenset(dense_into)
        )


class TwoTowers(nn.Module):
    """A table of two features, one of the same two, and one that names none."""

    def __init__(self):
        super().__init__()
        self.user = Embedding("who", 5, feature="user")
        self.friends = Embedding("who", 5, feature="friends")
        self.wide_user = Embedding("wide", 1, feature="user")
        self.wide_friends = Embedding("wide", 1, feature="friends", combiner="sum")
        self.late = Embedding("late", 3)
        self.out = nn.Linear(5, 1)
        self.use_friends = True

    def forward(self, features):
        x = self.user(features["user"])
        if self.use_friends:
            x = x + self.friends(features["friends"]).sum(1)
        late = self.late(features["user"]) * self.late(features["friends"][:, 0])
        wide = self.wide_user(features["user"]) + self.wide_friends(features["friends"])
        return (self.out(torch.tanh(x)) + wide).sum(1) + late.sum(1)


def towers(servers, use_friends=True, passes=PLAIN, optimizer=None, **options):
    def make():
        torch.manual_seed(3)
        model = TwoTowers()
        model.use_friends = use_friends
        return model

    return PsTrainer(
        make,
        lambda outputs, labels: (outputs**2).mean(),
        servers,
        model_spec(make(), optimizer or SGD(), 0),
        device=torch.device("cpu"),
        passes=passes,
        exchange=Exchange(**options),
    )


FEATURES = {
    "user": torch.tensor([3, 9, 3, 4]),
    "friends": torch.tensor([[9, 1], [PADDING, 3], [7, 7], [2, PADDING]]),
}


def oracle(servers, use_friends):
    """Return gradients by table and id, by torch's own embedding of the whole table."""
    model = TwoTowers()
    torch.manual_seed(3)
    model = TwoTowers()
    model.use_friends = use_friends
    weights = {
        name: torch.from_numpy(servers.row(name, np.arange(12))).requires_grad_()
        for name in servers.dims
    }

    class Whole:
        def rows(self, table, ids):
            return nn.functional.embedding(ids, weights[table.name])

    attach(model, Whole())
    loss = (model(FEATURES) ** 2).mean()
    loss.backward()
    return weights, dict(model.named_parameters()), float(loss.detach())


@pytest.mark.parametrize("use_friends", [True, False])
@pytest.mark.parametrize("compile", [False, True])
def test_gradients_of_shared_tables_are_those_of_torch(use_friends, compile, monkeypatch):
    """Compiling is without machine code here, which takes long: the oracle test makes some."""
    traced = []

    def backend(graph, inputs):
        traced.append({node.target for node in graph.graph.nodes if node.op == "call_function"})
        return graph.forward

    compile_with = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, options: compile_with(model, backend=backend)
    )
    servers = Tables()
    made = towers(servers, use_friends, Passes(compile=compile))
    prepared = made.prepare(FEATURES)
    found = made.gradients(FEATURES, None, prepared, made.begin(prepared, None), (0,))

    weights, parameters, loss = oracle(servers, use_friends)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    for name, parameter in parameters.items():
        np.testing.assert_allclose(found.dense[name], parameter.grad, rtol=1e-5, atol=1e-6)
    for name, weight in weights.items():
        ids, sums = found.rows[name]
        expected = weight.grad[torch.from_numpy(ids)]
        np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    assert compile == bool(traced)
    assert not any("embedding" in str(call).lower() for calls in traced for call in calls)
    untouched = [] if use_friends else [1, 7, 2]  # a row without gradient is not pushed
    assert sorted({3, 9, 4, 1, 7, 2} - set(untouched)) == sorted(found.rows["who"][0].tolist())


@pytest.mark.parametrize("most", [0.05, 1e6])
@pytest.mark.parametrize("several", [False, True])
def test_all_gradients_of_a_push_are_clipped_by_one_norm(most, several):
    """Broken once: the gradients of rows are not counted; each tensor by its own norm."""
    optimizer = SGD(clip_norm=most)
    if several:
        optimizer = ByName(optimizer, {"who": Adagrad()})
    servers = Tables()
    made = towers(servers, optimizer=optimizer)
    prepared = made.prepare(FEATURES)
    found = made.gradients(FEATURES, None, prepared, made.begin(prepared, None), (0,))

    weights, parameters, _ = oracle(servers, True)
    norm = nn.utils.clip_grad_norm_([*weights.values(), *parameters.values()], most)
    assert 0.05 < float(norm) < 1e6
    for name, parameter in parameters.items():
        np.testing.assert_allclose(found.dense[name], parameter.grad, rtol=1e-5, atol=1e-7)
    for name, weight in weights.items():
        ids, sums = found.rows[name]
        expected = weight.grad[torch.from_numpy(ids)]
        np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-7)


def test_tables_of_the_same_features_are_numbered_once_and_pulled_together():
    servers = Tables()
    made = towers(servers)
    prepared = made.prepare(FEATURES)
    made.begin(prepared, None)

    assert prepared["who"] is prepared["wide"]
    assert [{"who": [3, 9, 4, 1, 7, 2], "wide": [3, 9, 4, 1, 7, 2]}] == servers.asked


def test_ids_that_the_table_will_refuse_are_not_prepared():
    made = towers(Tables())

    assert {} == made.prepare({"user": torch.ones(2), "friends": None})


@pytest.mark.parametrize("where", ["dense", "rows"])
def test_a_gradient_that_is_not_finite_is_named(where):
    made = towers(Tables())

    class Overflow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("inf")

    module = made.model.out if where == "dense" else made.model.user
    module.register_forward_hook(lambda module, args, out: Overflow.apply(out))
    prepared = made.prepare(FEATURES)

    with pytest.raises(NonFinite, match="'out.weight'" if where == "dense" else "'who'"):
        made.gradients(FEATURES, None, prepared, made.begin(prepared, None), ())


def steps(made, servers, count):
    features = torch.ones(2, 1)
    for step in range(count):
        gradients = made.gradients(features, None, {}, made.begin({}, None), ())
        result = made.push(1, 1, step, step + 1, gradients)
    return result


@pytest.mark.parametrize("brings", [True, False])
def test_a_dense_step_is_one_round_trip_where_the_push_brings_the_values(brings):
    servers = Tables(brings)
    made = trainer(servers, push_pull=True)
    steps(made, servers, 4)

    assert (1 if brings else 4) == len(servers.asked)
    expected = [[1], [2], [3], [4]] if brings else [[1]] * 4
    assert expected == [versions for versions, _ in servers.pushed]
    if brings:
        made.begin({}, None)
        assert 4.0 == float(made.model.weight.detach())


def test_a_trainer_that_computes_while_it_pushes_takes_no_values_from_the_push():
    with pytest.raises(ValueError, match="push_pull"):
        trainer(Tables(), push_pull=True, ahead=True)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_what_the_code_lost_is_sent_later_unless_the_push_was_withdrawn(wire):
    servers = Tables()
    made = towers(servers, wire=wire)
    prepared = made.prepare(FEATURES)
    exact = towers(Tables())
    pull = made.begin(prepared, None)
    truth = exact.gradients(FEATURES, None, prepared, exact.begin(prepared, None), ())

    sent = {name: np.zeros_like(values) for name, values in truth.dense.items()}
    for step in range(30):
        gradients = made.gradients(FEATURES, None, prepared, pull, (step,))
        if step % 3 == 0:
            made.withdraw(gradients)
        else:
            for name, values in gradients.dense.items():
                sent[name] += values

    for name, values in truth.dense.items():
        bound = np.abs(values).max() * (2.0**-10 if wire == "float16" else 1 / 127)
        np.testing.assert_allclose(sent[name], 20 * values, rtol=0, atol=bound * 1.1 + 1e-6)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_rows_of_a_span_computed_again_are_the_same(wire):
    made = towers(Tables(), wire=wire)
    prepared = made.prepare(FEATURES)
    pull = made.begin(prepared, None)

    first, again, other = (
        made.gradients(FEATURES, None, prepared, pull, stream).rows["who"][1].copy()
        for stream in ((0, 1, 2), (0, 1, 2), (0, 1, 3))
    )

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_compiling_without_a_compiler_is_said_and_left_out(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = nn.Linear(1, 1)

    assert compiled(model) is model
    assert "no C++ compiler no-such-compiler" in caplog.text


def test_a_pull_ahead_waits_for_the_pushes_that_it_shall_see():
    servers = Servers()
    made = trainer(servers, ahead=True)
    push = Future()
    with ThreadPoolExecutor(1) as pool:
        ahead = made.start_pull({}, pool, [push])
        done, _ = wait([ahead], timeout=0.1)
        before = list(servers.dense)
        push.set_exception(EdlError("the servers are gone"))  # the loop will see to that
        ahead.result()

    assert (set(), [], [True]) == (done, before, servers.dense)
