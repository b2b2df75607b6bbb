"""A piece whose checksum is right may be a stranger's: kernels work on nothing unlooked at."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edl.common.errors import CheckpointError
from edl.common.pieces import encode
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.slots import SlotMap
from edl.ps.books.state import ShardBooks
from edl.ps.books.store import Store
from edl.ps.rows.optimizers import make_rule
from edl.ps.snapshots import cut as snapshot
from edl.ps.snapshots.chain import Folder, _sealed

SPEC = ModelSpec(
    (DenseSpec("w", (3,)), DenseSpec("mean", (2,), "buffer")),
    (TableSpec("t", 2),),
    optimizers.Adagrad(lr=1.0),
)
STATE = next(iter(make_rule(SPEC.optimizer).state))


def floats(*shape):
    return np.ones(shape, np.float32)


def rows(**changed):
    tensors = {
        "ids": np.arange(4), "weight": floats(4, 2), f"state.{STATE}": floats(4, 2),
        "steps": np.ones(4, np.int64),
    }  # fmt: skip
    return encode({**tensors, **changed}, {"rows": "t"})


def chunk(about=("w", 0, 1, 1), **changed):
    tensors = {"0.value": floats(3), f"0.state.{STATE}": floats(3)}
    return encode({**tensors, **changed}, {"chunks": [list(about)]})


def header(text):
    return [len(text).to_bytes(8, "little") + text]


def load(parts):
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy())
    store.restorer.begin(SPEC, ShardBooks(), new_job=False)
    snapshot.Parts(0, store.slot_map, SPEC).load(
        store, b"".join(bytes(part) for part in parts), store.restorer.insert_rows, "the file"
    )
    return store


def test_what_a_server_writes_is_loaded():
    assert 4 == load(rows()).sizes()[1]["t"]
    assert 24 == load(chunk()).sizes()[0]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (lambda: rows(weight=floats(4, 3)), r"weight is float32\[4, 3\], not float32\[4, 2\]"),
        (lambda: rows(weight=floats(3, 2)), r"weight is float32\[3, 2\]"),
        (lambda: rows(weight=np.ones((4, 2), np.int64)), r"weight is int64\[4, 2\]"),
        (lambda: rows(ids=floats(4)), "ids is float32"),
        (lambda: rows(ids=np.zeros(4, np.int64)), "not unique"),
        (lambda: rows(steps=np.ones(1, np.int64)), r"steps is int64\[1\]"),
        (lambda: rows(steps=np.full(4, -1)), "a row of 't' has had -1 updates"),
        (lambda: rows(**{f"state.{STATE}": floats(4)}), r"state\.\w+ is float32\[4\]"),
        (lambda: encode({"ids": np.arange(4)}, {"rows": "t"}), "it has no 'weight'"),
        (lambda: encode({"ids": np.arange(4)}, {"rows": "other"}), "no table 'other'"),
        (lambda: encode({"ids": np.arange(4)}, {"rows": [1]}), "no table"),
        (lambda: chunk(**{"0.value": floats(2)}), r"0\.value is float32\[2\], not float32\[3\]"),
        (lambda: chunk(**{f"0.state.{STATE}": floats(9)}), r"0\.state\.\w+ is float32\[9\]"),
        (lambda: chunk(("w", 1, 1, 1)), "no chunk 1 of 'w'"),
        (lambda: chunk(("v", 0, 1, 1)), "no chunk 0 of 'v'"),
        (lambda: chunk(("w", 0, 1)), r"chunks\[0\] has 3 values instead of 4"),
        (lambda: chunk((5, 0, 1, 1)), r"chunks\[0\]\[0\] is 5, not a text"),
        (lambda: chunk(("w", 0, -1, 1)), r"chunks\[0\]\[2\] is -1"),
        (lambda: [b"\xff" * 8], "Expecting value"),
        (lambda: header(b"{}"), "it has no '__metadata__'"),
        (lambda: header(b"[" * 100_000), "it is too deep"),
        (lambda: header(b'{"__metadata__": {"edl": "7"}}'), "it is 7, not an object"),
        (
            lambda: header(
                b'{"__metadata__": {"edl": "{}"}, '
                b'"ids": {"dtype": "I64", "shape": [1099511627776], "data_offsets": [0, 8]}}'
            ),
            "the file is no piece of a shard",
        ),
    ],
)
def test_what_no_server_writes_is_one_sentence(parts, why):
    with pytest.raises(CheckpointError, match=rf"the file is no piece of a shard: .*{why}|{why}"):
        load(parts())


@pytest.mark.parametrize(
    "change",
    [
        {"dense": [{"name": "w", "shape": [1 << 30, 1 << 30], "kind": "parameter"}]},
        {"dense": [{"name": "w", "shape": [-1], "kind": "parameter"}]},
        {"dense": [{"name": "w", "shape": "3", "kind": "parameter"}]},
        {"tables": [{"name": "t", "dim": 1 << 40}]},
        {"tables": [{"name": "t", "dim": 2, "dtype": "float64"}]},
        {"tables": [{"name": "t", "dim": 2, "more": 1}]},
        {"tables": [{"name": "t", "dim": 2}] * 2},
        {"optimizer": {"name": "none", "lr": 1.0}},
        {"optimizer": 7},
        {"seed": "x"},
    ],
)
def test_a_model_that_no_server_can_hold_is_one_sentence(change):
    model = {**json.loads(SPEC.to_json()), **change}

    with pytest.raises(CheckpointError, match="here has no model that servers can hold: "):
        snapshot.spec_of(model, "here")


LINK = {
    "number": 1, "base": 1, "previous": 0, "version": 1, "low_water": 0, "ledger": [], "pushes": 0,
    "model": {}, "files": [], "parent": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": [{"name": "../../x", "nbytes": 1, "sha256": ""}]}, "no name of a file"),
        ({"files": [{"name": 5, "nbytes": 1, "sha256": ""}]}, r"files\[0\]\.name is 5"),
        ({"ledger": [{"task": 1}]}, r"ledger\[0\] has no 'attempt'"),
        ({"parent": {"incarnation": "../x", "number": 1}}, "no name of an incarnation"),
        ({"parent": {"incarnation": "x", "number": "1"}}, "number is '1'"),
        ({"number": None}, "number is None"),
        ({"more": 1}, "'more'"),
    ],
)
def test_a_link_of_a_snapshot_that_no_server_writes_is_named(tmp_path, change, why):
    folder = Folder(str(tmp_path), "job", 0)
    folder.write("old", "000000000001.link", _sealed({**LINK, **change}))

    links, wrong = folder.links("old", None)

    assert [] == links
    assert why.replace("\\", "") in wrong[0]
