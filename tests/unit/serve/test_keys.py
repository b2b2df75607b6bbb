"""Rows by their raw keys: as they stand in the data, whatever makes ids of them."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from tools.trained import train

import edl
from edl.cli import main as cli
from edl.common.errors import DefinitionError, UsageError
from edl.data.schema import Schema
from edl.nn import hash64
from edl.serve.checkpoint import open_checkpoint
from edl.serve.keys import as_values

DEFINITION = """
import numpy as np
import torch
from torch import nn
from edl.nn import Adagrad, Embedding, hash64

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", 2, feature="users")
        self.out = nn.Linear(2, 1)
    def forward(self, features):
        return self.out(self.users(features["users"])).squeeze(1)
def model():
    return Model()
def loss(outputs, labels):
    return ((outputs - labels) ** 2).mean()
def optimizer():
    return Adagrad(lr=0.1)
def names(records):
    return np.char.add("i", records["record"].astype(str))
def feed(records, mode):
    ids = hash64("user", names(records))
    return {"users": torch.from_numpy(ids)}, torch.as_tensor(records["label"], dtype=torch.float32)
"""


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Return a function that trains a definition with these lines besides, once for each."""
    made = {}

    def make(lines=""):
        if lines not in made:
            folder = tmp_path_factory.mktemp("keys")
            path = folder / f"keyed_{len(made)}.py"
            path.write_text(DEFINITION + lines)
            made[lines] = train(folder, 2, model_def=str(path)).checkpoint
        return made[lines]

    return make


def row_of(checkpoint, key):
    return edl.rows(checkpoint, "users", hash64("user", [key]).tolist()).weight[0].tolist()


def test_rows_come_in_the_order_of_their_keys_and_those_that_are_not_there_are_left_out(make):
    """Fault S12: nobody could look up the row of "i1"."""
    found = edl.rows(make(), "users", keys=["i3", "nobody", "i1"], column="user")

    assert ["i3", "i1"] == found.keys.tolist()
    assert [row_of(make(), "i3"), row_of(make(), "i1")] == found.weight.tolist()
    assert hash64("user", ["i3", "i1"]).tolist() == found.ids.tolist()


@pytest.mark.parametrize(
    "lines",
    [
        'def raw_keys():\n    return {"users": "user"}\n',
        'def raw_keys():\n    return {"users": ("name", "user")}\n',
        'def raw_keys():\n    return {"users": ("name", lambda v: hash64("user", v))}\n',
    ],
    ids=["column", "field", "function"],
)
def test_a_definition_says_how_ids_are_made(make, lines):
    found = edl.rows(make(lines), "users", keys=["i1"])

    assert [row_of(make(lines), "i1")] == found.weight.tolist()


def test_a_guess_that_finds_nothing_says_that_it_is_one(make):
    with pytest.raises(UsageError, match="hash64.'users', key., which is a guess: say which col"):
        edl.rows(make(), "users", keys=["i1"])


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('{"users": 7}', "says 7 of 'users', and neither COLUMN"),
        ('{"users": ("a", lambda v: v[:0])}', "'users' makes object.0. of 1 values"),
        ('{"users": ("a", lambda v: 1 / len("") )}', "'users' fails: ZeroDivision"),
    ],
)
def test_what_a_definition_says_wrongly_is_one_sentence(make, said, sentence):
    checkpoint = make(f"def raw_keys():\n    return {said}\n")

    with pytest.raises(DefinitionError, match=sentence):
        edl.rows(checkpoint, "users", keys=["i1"])


def test_a_key_has_the_type_of_its_column(make):
    """In a column of whole numbers "7" is 7, in one of texts it is a text."""
    schema = Schema.from_json(
        {"columns": {"n": "int64", "t": "text", "l": "list of int64", "b": "bool", "d": "date"}}
    )

    assert [7, -3, 8] == as_values(schema, "n", ["7", "-3", 8]).tolist()
    assert ["7"] == as_values(schema, "t", ["7"]).tolist()
    assert [7] == as_values(schema, "l", ["7"]).tolist()
    assert [True] == as_values(schema, "b", ["true"]).tolist()
    assert ["2026-11-29"] == as_values(schema, "d", ["2026-11-29"]).astype(str).tolist()
    assert ["7", 7] == as_values(schema, "other", ["7", 7]).tolist()
    for column, key in (
        ("n", "07"),
        ("n", "1.5"),
        ("b", "2"),
        ("d", "today"),
        ("n", 1.5),
        ("t", 7),
    ):
        with pytest.raises(UsageError, match=f"{key!r}"):
            as_values(schema, column, [key])


def test_a_checkpoints_schema_says_the_type_of_keys(make):
    opened = open_checkpoint(make())
    opened.manifest.books["settings"]["schema"] = {"columns": {"user": "int64"}}

    with pytest.raises(UsageError, match="'user' is int64, and the key 'i1' is none"):
        edl.rows(opened, "users", keys=["i1"], column="user")
    assert 0 == len(edl.rows(opened, "users", keys=["1"], column="user"))


def test_ids_and_keys_are_not_given_both(make):
    with pytest.raises(UsageError, match="ids and keys"):
        edl.rows(make(), "users", [1], keys=["i1"])
    with pytest.raises(UsageError, match="give keys"):
        edl.rows(make(), "users", [1], column="user")
    with pytest.raises(UsageError, match="not the text 'i1'"):
        edl.rows(make(), "users", keys="i1")


def test_the_command_shows_and_writes_rows_by_their_keys(make, tmp_path, capsys):
    def run(*arguments):
        code = cli.run(["checkpoint", "rows", str(make()), "users", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    by = ("--key_column", "name", "--key_field", "user")
    code, out, err = run("--keys", "i3,nobody", *by)
    assert 0 == code
    assert "i3" in out
    assert "Not in the table: nobody." in err
    (tmp_path / "keys").write_text("i3\ni1\n")
    for name in ("r.parquet", "r.npz"):
        assert 0 == run("--keys_file", tmp_path / "keys", "--out", tmp_path / name, *by)[0]
    assert ["i3", "i1"] == pq.read_table(tmp_path / "r.parquet")["key"].to_pylist()
    assert sorted(hash64("user", ["i3", "i1"])) == np.load(tmp_path / "r.npz")["ids"].tolist()
    code, _, err = run("--keys", "i1", "--keys_file", tmp_path / "keys")
    assert (2, True) == (code, "leave out one" in err)
