"""`edl.rows`: ids, weights and optimizer state of a table, as arrays and as files."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from tools.servers import restored
from tools.trained import train

import edl
from edl.common.errors import CheckpointError, UsageError
from edl.nn import RowWiseAdagrad
from edl.serve.checkpoint import open_checkpoint
from edl.serve.rows import blocks


def servers_rows(checkpoint, table):
    """Return ids, weight and steps of a table as a server has them that has restored all of it."""
    pins = restored(checkpoint).pins
    pins.freeze("here", 10.0)
    pins.pin("here", {}, 10.0)
    (block,) = pins.rows("here", table, 1 << 20)
    order = np.argsort(block.ids)
    return block.ids[order], block.weight[order], block.state[0][order], block.steps[order]


@pytest.mark.parametrize("table", ["users", "items"])
def test_the_rows_are_those_of_the_servers_by_id(trained, table):
    found = edl.rows(trained.checkpoint, table)

    ids, weight, state, steps = servers_rows(trained.checkpoint, table)
    assert len(ids) == len(found) > 20
    np.testing.assert_array_equal(ids, found.ids)
    np.testing.assert_array_equal(weight, found.weight)
    np.testing.assert_array_equal(steps, found.steps)
    assert ["sum"] == list(found.state)
    np.testing.assert_array_equal(state, found.state["sum"])


def test_rows_of_16_bits_come_as_the_floats_that_they_are(tmp_path):
    trained = train(tmp_path, 2, dtype="bfloat16")

    found = edl.rows(trained.checkpoint, "users")

    ids, bits, *_ = servers_rows(trained.checkpoint, "users")
    np.testing.assert_array_equal(ids, found.ids)
    np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), found.weight)


def test_an_optimizer_may_keep_one_number_a_row(tmp_path):
    """Broken once: a state must be as wide as the weight."""
    trained = train(tmp_path, 2, optimizer=RowWiseAdagrad(lr=0.1))

    found = edl.rows(trained.checkpoint, "users")

    ids, weight, state, _ = servers_rows(trained.checkpoint, "users")
    np.testing.assert_array_equal(weight, found.weight)
    assert (len(ids), 1) == state.shape
    np.testing.assert_array_equal(state, found.state["row_sum"])
    found.to_parquet(tmp_path / "users.parquet")
    read = pq.read_table(tmp_path / "users.parquet")["state.row_sum"].to_pylist()
    assert state.tolist() == read
    none = edl.rows(trained.checkpoint, "users", [-3])
    assert (0, 1) == none.state["row_sum"].shape


def test_ids_choose_rows_and_those_that_are_not_there_are_left_out(trained):
    everything = edl.rows(trained.checkpoint, "users")

    found = edl.rows(trained.checkpoint, "users", [10**12, 3, int(everything.ids[5]), -7])

    assert sorted({int(everything.ids[5]), 3} & {*everything.ids.tolist()}) == found.ids.tolist()
    place = np.searchsorted(everything.ids, found.ids)
    np.testing.assert_array_equal(everything.weight[place], found.weight)


def test_no_row_of_a_table_that_has_some_is_an_empty_answer(trained):
    found = edl.rows(trained.checkpoint, "items", [-5])

    assert (0, (0, 4), (0, 4)) == (len(found), found.weight.shape, found.state["sum"].shape)


def test_a_table_that_is_not_there_is_told_with_those_that_are(trained):
    with pytest.raises(CheckpointError, match="no table 'user': its tables are 'users', 'items'"):
        edl.rows(trained.checkpoint, "user")


def test_parquet_has_the_same_values(trained, tmp_path):
    found = edl.rows(trained.checkpoint, "users")

    found.to_parquet(tmp_path / "users.parquet")

    read = pq.read_table(tmp_path / "users.parquet")
    assert ["id", "steps", "weight", "state.sum"] == read.column_names
    assert found.ids.tolist() == read["id"].to_pylist()
    assert found.weight.tolist() == read["weight"].to_pylist()
    assert found.state["sum"].tolist() == read["state.sum"].to_pylist()
    assert ["users.parquet"] == [path.name for path in tmp_path.iterdir()]


def test_what_is_not_installed_is_named(trained, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = edl.rows(trained.checkpoint, "users")

    with pytest.raises(UsageError, match=r"needs pyarrow: run `pip install '.\[parquet\]'`"):
        found.to_parquet(tmp_path / "users.parquet")
    with pytest.raises(UsageError, match="needs pandas: pip install pandas"):
        found.to_pandas()
    assert [] == list(tmp_path.iterdir())


def test_a_dataframe_is_made_of_columns_by_id(trained, monkeypatch):
    """pandas may not be here: a stand-in takes what it would get."""

    class Pandas:
        Index = staticmethod(lambda values, name: (name, values.tolist()))
        DataFrame = staticmethod(lambda columns, index: (columns, index))

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    found = edl.rows(trained.checkpoint, "users")

    columns, index = found.to_pandas()

    assert ("id", found.ids.tolist()) == index
    names = [f"{what}[{place}]" for what in ("weight", "state.sum") for place in range(3)]
    assert ["steps", *names] == list(columns)
    np.testing.assert_array_equal(found.weight[:, 1], columns["weight[1]"])


def test_blocks_are_the_rows_file_by_file(trained):
    found = list(blocks(open_checkpoint(trained.checkpoint), "users"))

    assert 2 == len(found)
    ids = np.concatenate([block.ids for block in found])
    assert edl.rows(trained.checkpoint, "users").ids.tolist() == sorted(ids.tolist())


def test_rows_say_what_they_are(trained):
    found = edl.rows(trained.checkpoint, "users")

    assert f"<{len(found)} rows of 'users', dim 3, state sum>" == repr(found)
