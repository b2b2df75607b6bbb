"""First values of rows that are a model's own come to the servers exactly, before anything else."""

import numpy as np
import pytest

from edl.nn import optimizers
from edl.nn.initializers import initial_rows
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps import worker_client
from edl.ps.books.ledger import Span
from edl.ps.books.parameters import Invalid

WORDS = TableSpec("words", 4, "normal", 1.0)
TABLE_ONLY = ModelSpec((), (WORDS,), optimizers.Adam(lr=0.0))
SPEC = ModelSpec((DenseSpec("b", (5,)),), (WORDS,), optimizers.Adam(lr=0.0))
ROWS = np.random.default_rng(3).uniform(-1, 1, (3000, 4)).astype(np.float32)
IDS = np.arange(3000)
WAIT = {"timeout_s": 120.0}


def dense_of(spec):
    return {d.name: np.zeros(d.shape, np.float32) for d in spec.dense}


def asked(client, ids=IDS):
    return client.pull({"words": ids}, **WAIT).rows["words"]


@pytest.mark.parametrize("spec", [SPEC, TABLE_ONLY], ids=["dense too", "tables only"])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_those_that_the_model_gave(start_shards, monkeypatch, count, spec):
    monkeypatch.setattr(worker_client, "_INIT_NBYTES", 10_000)  # several runs
    shards = start_shards(count, spec)
    shards.client.agree(spec, rows_given={"words": 3000}, **WAIT)
    assert not shards.client.pull({"words": IDS}, **WAIT).initialized

    shards.client.init(spec, dense_of(spec), {"words": ROWS}, **WAIT)

    np.testing.assert_array_equal(ROWS, asked(shards.client))
    beyond = np.array([3000, -7])
    np.testing.assert_array_equal(initial_rows(0, WORDS, beyond), asked(shards.client, beyond))


def test_rows_that_were_trained_are_left_alone_by_a_second_worker(start_shards):
    spec = ModelSpec(SPEC.dense, SPEC.tables, optimizers.SGD(lr=1.0))
    shards = start_shards(2, spec)
    shards.client.init(spec, dense_of(spec), {"words": ROWS}, **WAIT)
    step = {"words": (np.array([5]), np.ones((1, 4), np.float32))}
    shards.client.push(Span(0, 1, 0, 8), (0, 0), tables=step, **WAIT)

    shards.client.agree(spec, rows_given={"words": 3000}, **WAIT)
    shards.client.init(spec, dense_of(spec), {"words": ROWS + 9}, **WAIT)

    expected = ROWS.copy()
    expected[5] -= 1
    np.testing.assert_array_equal(expected, asked(shards.client))


def test_a_server_that_lacks_some_of_the_rows_is_told_them_all_again(start_shards):
    """It was replaced between two runs of rows: what it was told before is gone."""
    shards = start_shards(1, TABLE_ONLY)
    half = pb.Rows(table="words", ids=IDS[1500:].tobytes(), values=ROWS[1500:].tobytes())
    request = pb.InitRequest(
        model_json=TABLE_ONLY.to_json(),
        complete=True,
        rows_given={"words": 3000},
        tables=[half],
    )

    shards.call("Init", request)

    assert not shards.client.pull({"words": IDS}, **WAIT).initialized
    shards.client.init(TABLE_ONLY, {}, {"words": ROWS}, **WAIT)
    np.testing.assert_array_equal(ROWS, asked(shards.client))


@pytest.mark.parametrize(
    ("given", "ids", "dim", "sentence"),
    [
        ({"wards": 3}, [0, 1], 4, "unknown table 'wards'"),
        ({"words": 3}, [0, 0], 4, "not unique"),
        ({"words": 3}, [0, 1], 5, r"not \(2, 4\)"),
    ],
)
def test_rows_that_cannot_be_are_refused(start_shards, given, ids, dim, sentence):
    (store,) = start_shards(1, TABLE_ONLY).stores
    rows = {"words": (np.array(ids), np.ones((2, dim), np.float32))}

    with pytest.raises(Invalid, match=sentence):
        store.init(TABLE_ONLY, {}, True, rows, given)

    assert store.sizes()[1].get("words", 0) == 0
