"""Clients and shards over every carrier: exactly once, concurrency, refusals, large tensors."""

from __future__ import annotations

import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tools.turns import in_turn

from edl.common.errors import EdlError, Unauthenticated, Unreachable
from edl.nn import optimizers
from edl.nn.initializers import initial_rows
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.control import PsControl
from edl.ps.worker_client import PsClient, PushOutcome

USERS = TableSpec("users", 4)
SPEC = ModelSpec((DenseSpec("w", (2, 3)), DenseSpec("b", (5,))), (USERS,), optimizers.SGD(lr=1.0))
WAIT = {"timeout_s": 120.0}  # a fresh checkout compiles its kernels meanwhile


def zeros(spec=SPEC):
    return {d.name: np.zeros(d.shape, np.float32) for d in spec.dense}


def ones(ids):
    ids = np.asarray(ids, np.int64)
    return ids, np.ones((len(ids), 4), np.float32)


@pytest.fixture(params=["grpc", "tcp", "unix", "shm"])
def transport(request):
    """Return each carrier in turn: one contract, every test of this file holds for each."""
    return request.param


def ready(start_shards, count=2, spec=SPEC, **policy):
    shards = start_shards(count, spec, Policy(**({"use_async": True} | policy)))
    shards.client.init(spec, zeros(spec), **WAIT)
    return shards


def versions(shards):
    return tuple(store.version for store in shards.stores)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_push_moves_dense_values_and_rows_on_every_shard(start_shards, count):
    shards = ready(start_shards, count)
    ids = np.array([7, -3, 2**62, 11, 5], np.int64)
    dense = zeros()

    result = shards.client.push(
        Span(0, 1, 0, 8),
        (0,) * count,
        dense={"w": np.full((2, 3), 2, np.float32), "b": np.ones(5, np.float32)},
        tables={"users": ones(ids)},
        **WAIT,
    )
    pulled = shards.client.pull({"users": ids[::-1]}, dense=dense, **WAIT)

    assert (PushOutcome.APPLIED, (1,) * count) == (result.outcome, result.versions)
    assert (1,) * count == pulled.versions
    assert {"w", "b"} == pulled.changed
    np.testing.assert_array_equal(dense["w"], -2)
    np.testing.assert_array_equal(dense["b"], -1)
    np.testing.assert_array_equal(pulled.rows["users"], initial_rows(0, USERS, ids[::-1]) - 1)


def test_a_pull_of_unknown_ids_answers_initial_values_and_makes_no_row(start_shards):
    shards = ready(start_shards)
    ids = np.arange(100)

    pulled = shards.client.pull({"users": ids}, **WAIT)

    np.testing.assert_array_equal(pulled.rows["users"], initial_rows(0, USERS, ids))
    assert [0, 0] == [store.sizes()[1]["users"] for store in shards.stores]


def test_a_pull_of_no_ids_has_no_rows(start_shards):
    shards = ready(start_shards)

    pulled = shards.client.pull({"users": np.empty(0, np.int64)}, **WAIT)

    assert (0, 4) == pulled.rows["users"].shape


def test_a_second_pull_sends_only_chunks_that_changed(start_shards):
    shards = ready(start_shards)
    dense = zeros()
    shards.client.pull({}, dense=dense, **WAIT)
    shards.client.push(
        Span(0, 1, 0, 8), versions(shards), dense={"b": np.ones(5, np.float32)}, **WAIT
    )

    changed = shards.client.pull({}, dense=dense, **WAIT).changed

    assert {"b"} == changed
    np.testing.assert_array_equal(dense["b"], -1)


def test_a_pull_of_a_cut_does_not_count_as_a_pull_of_the_present(start_shards):
    shards = ready(start_shards)
    dense = zeros()
    shards.client.push(
        Span(0, 1, 0, 8), versions(shards), dense={"b": np.ones(5, np.float32)}, **WAIT
    )
    shards.control.cuts.take("c", hold_s=5.0, **WAIT)
    shards.client.pull({}, dense=zeros(), cut="c", **WAIT)

    shards.client.pull({}, dense=dense, **WAIT)

    np.testing.assert_array_equal(dense["b"], -1)


def test_a_worker_that_meets_empty_servers_is_told_to_initialize_them(start_shards):
    shards = start_shards(2, SPEC)

    pulled = shards.client.pull({}, dense=zeros(), **WAIT)
    pushed = shards.client.push(Span(0, 1, 0, 8), (0, 0), **WAIT)

    assert (False, PushOutcome.UNINITIALIZED) == (pulled.initialized, pushed.outcome)


def test_the_first_worker_to_initialize_wins(start_shards):
    shards = ready(start_shards)
    dense = zeros()

    shards.client.init(SPEC, {name: values + 9 for name, values in zeros().items()}, **WAIT)

    shards.client.pull({}, dense=dense, **WAIT)
    np.testing.assert_array_equal(dense["w"], 0)


def test_another_model_is_refused_with_the_difference(start_shards):
    shards = ready(start_shards)
    other = ModelSpec(SPEC.dense, (TableSpec("users", 8),), SPEC.optimizer)

    with pytest.raises(EdlError, match="another model.*'users' has dim 8 here, 4 there"):
        shards.client.init(other, zeros(), **WAIT)


def test_a_repeated_push_is_acknowledged_and_not_applied_again(start_shards):
    shards = ready(start_shards)
    push = {"dense": {"b": np.ones(5, np.float32)}, "tables": {"users": ones([1, 2, 3])}}
    dense = zeros()

    for _ in range(3):
        result = shards.client.push(Span(4, 1, 0, 8), (0, 0), **push, **WAIT)

    pulled = shards.client.pull({"users": np.array([2])}, dense=dense, **WAIT)
    assert (PushOutcome.APPLIED, (1, 1)) == (result.outcome, result.versions)
    np.testing.assert_array_equal(dense["b"], -1)
    np.testing.assert_array_equal(pulled.rows["users"], initial_rows(0, USERS, np.array([2])) - 1)
    assert [2, 2] == [r.pushes_duplicate for r in shards.control.describe(**WAIT).values()]


def test_a_zombie_is_fenced_and_the_fence_tells_what_was_applied(start_shards):
    shards = ready(start_shards)
    shards.client.push(Span(4, 1, 0, 8), (0, 0), **WAIT)

    applied = shards.control.fence({4: 2, 9: 2}, **WAIT)
    zombie = shards.client.push(Span(4, 1, 8, 16), (1, 1), **WAIT)
    heir = shards.client.push(Span(4, 2, 8, 16), (1, 1), **WAIT)

    assert {0: {4: 8, 9: 0}, 1: {4: 8, 9: 0}} == applied
    assert (PushOutcome.FENCED, PushOutcome.APPLIED) == (zombie.outcome, heir.outcome)


def test_a_gap_names_the_least_position_that_a_shard_expects(start_shards):
    shards = ready(start_shards)
    shards.client.push(Span(4, 1, 0, 8), (0, 0), **WAIT)

    result = shards.client.push(Span(4, 1, 16, 24), (0, 0), **WAIT)

    assert (PushOutcome.GAP, 8) == (result.outcome, result.position)


def test_shards_at_different_positions_ask_for_the_least(start_shards):
    shards = ready(start_shards)
    for start in (0, 8):
        shards.stores[0].push(Span(4, 1, start, start + 8), 0, Update())

    result = shards.client.push(Span(4, 1, 24, 32), (0, 0), **WAIT)

    assert (PushOutcome.GAP, 0) == (result.outcome, result.position)


def test_a_retired_task_is_fenced_for_ever(start_shards):
    shards = ready(start_shards)
    shards.client.push(Span(4, 1, 0, 8), (0, 0), **WAIT)
    shards.control.retire(5, **WAIT)

    result = shards.client.push(Span(4, 9, 8, 16), (1, 1), **WAIT)

    assert PushOutcome.FENCED == result.outcome
    assert {0: {5: 0}, 1: {5: 0}} == shards.control.fence({4: 10, 5: 1}, **WAIT)


def test_an_old_master_cannot_fence(start_shards):
    shards = ready(start_shards)
    masters = [PsControl(shards.addresses, token="secret", master_epoch=e) for e in (3, 2)]
    masters[0].fence({1: 2}, **WAIT)

    with pytest.raises(EdlError, match="epoch 3 has taken over"):
        masters[1].fence({1: 3}, **WAIT)


def test_a_push_that_reached_one_shard_only_is_completed_by_its_repetition(start_shards):
    """Rule 3: shards that are ahead drop what they have, shards behind apply what they lack."""
    shards = ready(start_shards)
    alone = PsClient(shards.addresses[:1], token="secret", spec=SPEC)
    alone.push(Span(0, 1, 0, 8), (0,), **WAIT)
    alone.close()

    applied = shards.control.fence({0: 2}, **WAIT)
    result = shards.client.push(Span(0, 2, 0, 8), (0, 0), **WAIT)

    assert {0: {0: 8}, 1: {0: 0}} == applied
    assert (PushOutcome.APPLIED, (1, 1)) == (result.outcome, result.versions)


def test_a_push_never_reaches_a_server_that_listens_where_another_one_did(start_shards, transport):
    """An empty push fits every shard: it would move the wrong ledger."""
    shards = ready(start_shards)
    strayed = PsClient(shards.addresses[1:], token="secret", spec=SPEC, transport=transport)

    with pytest.raises(Unreachable):
        strayed.push(Span(0, 1, 0, 8), (0,), timeout_s=0.3)
    strayed.close()
    strayed = PsControl(shards.addresses[1:], token="secret")
    with pytest.raises(Unreachable):
        strayed.fence({0: 7}, timeout_s=0.3)
    strayed.close()

    assert {0: {0: 0}, 1: {0: 0}} == shards.control.fence({0: 2}, **WAIT)
    assert [0, 0] == [store.version for store in shards.stores]


def test_sync_mode_makes_a_version_of_exactly_grads_to_wait_pushes(start_shards):
    """A9: "exactly 4 pushes per version; stale push rejected **and** recomputed"."""
    shards = ready(start_shards, use_async=False, grads_to_wait=4, staleness=0)
    push = {"dense": {"b": np.full(5, 4, np.float32)}, "tables": {"users": ones([1])}}

    seen = [
        shards.client.push(Span(task, 1, 0, 8), (0, 0), **push, **WAIT).versions
        for task in range(4)
    ]
    late = shards.client.push(Span(4, 1, 0, 8), (0, 0), **push, **WAIT)
    recomputed = shards.client.push(Span(4, 1, 0, 8), late.versions, **push, **WAIT)

    dense = zeros()
    pulled = shards.client.pull({"users": np.array([1])}, dense=dense, **WAIT)
    assert [(0, 0), (0, 0), (0, 0), (1, 1)] == seen
    assert (PushOutcome.STALE, PushOutcome.APPLIED) == (late.outcome, recomputed.outcome)
    np.testing.assert_array_equal(dense["b"], -4)  # the mean of four, once
    np.testing.assert_array_equal(pulled.rows["users"], initial_rows(0, USERS, np.array([1])) - 1)


def test_a_push_brings_the_values_of_its_version_back(start_shards, transport):
    """In sync mode, one round trip a step; gRPC asks for them in a second one."""
    shards = ready(start_shards, use_async=False, staleness=0)
    gradients = {"w": np.full((2, 3), 2, np.float32), "b": np.ones(5, np.float32)}
    dense = zeros()
    known = shards.client.pull({}, dense=dense, **WAIT).versions
    for start in (0, 8):
        span = Span(0, 1, start, start + 8)
        result = shards.client.push(span, known, dense=gradients, dense_into=dense, **WAIT)
        known = result.versions

    assert (PushOutcome.APPLIED, (2, 2)) == (result.outcome, result.versions)
    changed = shards.client.pull({}, dense=dense, **WAIT).changed
    if transport == "grpc":
        assert (False, set(), {"w", "b"}) == (result.pulled, result.changed, changed)
    else:
        assert (True, {"w", "b"}, set()) == (result.pulled, result.changed, changed)
    np.testing.assert_array_equal(dense["w"], -4)
    np.testing.assert_array_equal(dense["b"], -2)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
def test_each_push_of_a_version_brings_the_same_values_back(start_shards, transport):
    """The first waits for the second, which makes the version."""
    shards = ready(start_shards, use_async=False, staleness=0, grads_to_wait=2)
    other = PsClient(shards.addresses, token="secret", spec=SPEC, transport=transport)
    clients = [shards.client, other]

    def step(task):
        dense = zeros()
        gradients = {"w": np.full((2, 3), 1 + 2 * task, np.float32)}
        span = Span(task, 1, 0, 8)
        pushed = clients[task].push(span, (0, 0), dense=gradients, dense_into=dense, **WAIT)
        return pushed, dense

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(step, range(2)))
    other.close()

    for pushed, dense in ended:
        assert (PushOutcome.APPLIED, True) == (pushed.outcome, pushed.pulled)
        assert (1, 1) == pushed.versions
        np.testing.assert_array_equal(dense["w"], -2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_16_bits_are_those_of_torch(start_shards, dtype):
    """Pushes, pulls, first values and cuts: all are float32 here, and 16 bits there."""
    table = TableSpec("users", 8, "uniform", 0.5, dtype=dtype)
    shards = ready(start_shards, 2, ModelSpec(SPEC.dense, (table,), SPEC.optimizer))
    ids = np.arange(-4000, 4000, dtype=np.int64)  # too many for a small body
    expected = torch.from_numpy(initial_rows(0, table, ids)).to(getattr(torch, dtype))
    rng = np.random.default_rng(1)

    for start in range(3):
        pulled = shards.client.pull({"users": ids}, **WAIT)
        np.testing.assert_array_equal(pulled.rows["users"], expected.float().numpy())
        grads = rng.standard_normal((len(ids), 8)).astype(np.float32)
        span = Span(0, 1, start, start + 1)
        shards.client.push(span, pulled.versions, tables={"users": (ids, grads)}, **WAIT)
        before = expected
        expected = (expected.float() - torch.from_numpy(grads)).to(expected.dtype)
        if start == 1:
            shards.control.cuts.take("c", hold_s=5.0, **WAIT)

    now = shards.client.pull({"users": ids}, **WAIT).rows["users"]
    cut = shards.client.pull({"users": ids}, cut="c", **WAIT).rows["users"]
    np.testing.assert_array_equal(now, expected.float().numpy())
    np.testing.assert_array_equal(cut, before.float().numpy())


def test_a_flush_steps_with_the_pushes_that_wait(start_shards):
    shards = ready(start_shards, use_async=False, grads_to_wait=4)
    shards.client.push(Span(0, 1, 0, 8), (0, 0), dense={"b": np.full(5, 4, np.float32)}, **WAIT)

    flushed = [shards.control.flush(**WAIT), shards.control.flush(**WAIT)]

    dense = zeros()
    shards.client.pull({}, dense=dense, **WAIT)
    assert [{0: (1, 1), 1: (1, 1)}, {0: (1, 0), 1: (1, 0)}] == flushed
    np.testing.assert_array_equal(dense["b"], -1)


def test_concurrent_pushes_lose_no_update(start_shards, transport):
    """A10: "Concurrent pushes, 8 threads x 500 SGD: final weights exact"."""
    count = 50 if transport == "grpc" else 500  # it takes ten times as long
    spec = ModelSpec((DenseSpec("w", (64,)),), (USERS,), optimizers.SGD(lr=2.0**-10))
    shards = ready(start_shards, 1, spec)

    def worker(task):
        for p in range(count):
            grad = np.full(64, task + 1, np.float32)
            result = shards.client.push(
                Span(task, 1, p, p + 1), (0,), dense={"w": grad}, timeout_s=60.0
            )
            assert PushOutcome.APPLIED == result.outcome

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(worker, range(8)))

    dense = zeros(spec)
    pulled = shards.client.pull({}, dense=dense, **WAIT)
    assert 8 * count == pulled.version
    np.testing.assert_array_equal(dense["w"], -count * 36 * 2.0**-10)


@in_turn(3)
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_tensor_of_300_mb_trains_spread_over_servers(start_shards):
    """A20: "One dense tensor > 256 MB: trained, spread over PSs"."""
    spec = ModelSpec((DenseSpec("big", (75, 1 << 20)),), (), optimizers.SGD(lr=0.5))
    shards = start_shards(2, spec)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shards.client.init(spec, zeros(spec), timeout_s=60.0)
    weight = zeros(spec)

    shards.client.push(
        Span(0, 1, 0, 1), (0, 0), dense={"big": np.ones((75, 1 << 20), np.float32)}, timeout_s=60.0
    )
    shards.client.pull({}, dense=weight, timeout_s=60.0)

    assert (-0.5, -0.5) == (weight["big"].min(), weight["big"].max())
    held = [store.sizes()[0] / 2**20 for store in shards.stores]
    assert 300 == sum(held)
    assert all(abs(mib - 150) <= 8 for mib in held), held
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    assert grown < 4096  # MiB, both ends: about five copies each of values or gradients


def test_a_client_without_the_job_token_is_refused(start_shards):
    """A19: "Unauthenticated client pushes: refused"."""
    shards = ready(start_shards)
    stranger = PsClient(shards.addresses, token="guess", spec=SPEC)

    with pytest.raises(Unauthenticated):
        stranger.push(Span(0, 1, 0, 8), (0, 0), **WAIT)

    stranger.close()
    assert (0, 0) == versions(shards)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.PushRequest(span=pb.Span(task=0, attempt=1, start=8, end=8)), "positions must rise"),
        (pb.PushRequest(span=pb.Span(task=0, attempt=0, start=0, end=8)), "attempts from 1"),
        (
            pb.PushRequest(tables=[pb.Rows(table="nope", ids=bytes(8), values=bytes(16))]),
            "unknown table 'nope': the model has users",
        ),
        (
            pb.PushRequest(tables=[pb.Rows(table="users", ids=bytes(8), values=bytes(12))]),
            r"shape \(1, 3\), not \(1, 4\)",
        ),
        (pb.PushRequest(tables=[pb.Rows(table="users", ids=bytes(9))]), "9 bytes"),
        (
            pb.PushRequest(tables=[pb.Rows(table="users", ids=bytes(16), values=bytes(32))]),
            "not unique",
        ),
        (
            pb.PushRequest(tables=[pb.Rows(table="users", values=bytes(32))]),
            "8 values do not fill 0 rows",
        ),
        (
            pb.PushRequest(dense=[pb.DenseChunk(tensor="b", data=bytes(16))]),
            "has 5 elements, not 4",
        ),
        (pb.PushRequest(dense=[pb.DenseChunk(tensor="b", chunk=1)]), "chunk 1 of tensor 'b'"),
        (
            pb.PushRequest(dense=[pb.DenseChunk(tensor="b", data=bytes(20))] * 2),
            "comes twice",
        ),
    ],
)
def test_a_malformed_push_is_refused_by_name_and_changes_nothing(start_shards, request_, message):
    shards = ready(start_shards, 1)
    if not request_.HasField("span"):
        request_.span.CopyFrom(pb.Span(task=0, attempt=1, start=0, end=8))

    with pytest.raises(EdlError, match=f"INVALID_ARGUMENT.*{message}"):
        shards.call("Push", request_)

    assert (0, ()) == (shards.stores[0].version, shards.stores[0].ledger())


def test_rows_of_another_shard_are_refused(start_shards):
    shards = ready(start_shards, 2)
    ids = np.arange(100, dtype=np.int64)
    rows = pb.Rows(table="users", ids=ids.tobytes(), values=bytes(1600))
    request = pb.PushRequest(span=pb.Span(task=0, attempt=1, end=8), tables=[rows])

    with pytest.raises(EdlError, match="live on another server"):
        shards.call("Push", request)


def test_an_unknown_cut_is_refused(start_shards):
    shards = ready(start_shards)

    with pytest.raises(EdlError, match="cut 'x' is not pinned"):
        shards.client.pull({}, dense=zeros(), cut="x", **WAIT)


def test_another_slot_map_is_refused(start_shards):
    shards = ready(start_shards, 1)

    reply = shards.call("Pull", pb.PullRequest(slot_map_version=7))

    assert pb.PullReply.MOVED == reply.outcome


def test_a_push_is_repeated_until_its_server_is_back(start_shards):
    shards = ready(start_shards)
    shards.servers[1].close(0)
    again = start_shards(2, SPEC)
    again.client.init(SPEC, zeros(), **WAIT)
    timer = threading.Timer(
        0.3, lambda: shards.client.update([shards.addresses[0], again.addresses[1]], 2)
    )
    timer.start()

    result = shards.client.push(Span(0, 1, 0, 8), (0, 0), **WAIT)

    timer.join()
    assert PushOutcome.APPLIED == result.outcome
    assert [1, 1] == [shards.stores[0].version, again.stores[1].version]


def test_a_push_to_a_dead_server_ends_at_its_deadline_with_its_address(start_shards):
    shards = ready(start_shards)
    shards.servers[1].close(0)

    with pytest.raises(Unreachable, match=f"server 1 at {shards.addresses[1]}"):
        shards.client.push(Span(0, 1, 0, 8), (0, 0), timeout_s=0.3)


def test_buffers_add_what_is_pushed(start_shards):
    spec = ModelSpec((DenseSpec("mean", (3,), "buffer"),), (), optimizers.Adam())
    shards = ready(start_shards, 2, spec)
    shards.client.push(Span(0, 1, 0, 8), (0, 0), dense={"mean": np.full(3, 2, np.float32)}, **WAIT)
    dense = zeros(spec)

    shards.client.pull({}, dense=dense, **WAIT)

    np.testing.assert_array_equal(dense["mean"], 2)


def test_closing_the_client_ends_a_call_that_waits_for_a_dead_server(start_shards):
    shards = ready(start_shards)
    shards.servers[1].close(0)
    began = time.monotonic()
    threading.Timer(0.2, shards.control.close).start()

    with pytest.raises(Unreachable):
        shards.control.retire(1, timeout_s=60.0)

    assert time.monotonic() - began < 20.0


def test_a_shard_that_fails_in_the_midst_of_a_step_applies_and_keeps_nothing_more(
    start_shards, monkeypatch
):
    """A repetition would apply the first half twice; a cut would keep a half."""
    shards = ready(start_shards, 1)
    store = shards.stores[0]
    monkeypatch.setattr(
        type(store._state.parameters.tables["users"]),
        "apply",
        lambda *_: (_ for _ in ()).throw(MemoryError),
    )
    span, grads = Span(0, 1, 0, 8), {"dense": {"b": np.ones(5, np.float32)}}
    with pytest.raises(EdlError, match="out of memory"):
        shards.client.push(span, (0,), tables={"users": ones([1])}, **grads, **WAIT)
    monkeypatch.undo()

    with pytest.raises(EdlError, match="in the midst of a step"):
        shards.client.push(span, (0,), tables={"users": ones([1])}, **grads, **WAIT)
    with pytest.raises(EdlError, match="in the midst of a step"):
        shards.control.cuts.take("x", hold_s=1.0, **WAIT)
    with pytest.raises(EdlError, match="in the midst of a step"):
        shards.client.pull({}, dense=zeros(), **WAIT)
