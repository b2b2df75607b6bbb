"""`edl checkpoint make`: values that were trained elsewhere, by name, for a job to begin from."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tools.jobs import ZOO
from tools.servers import empty
from tools.trained import KNOWN, features_of, predicted, train
from torch import nn

import edl
from edl.cli import main as cli
from edl.common import storage
from edl.nn import Adam, Embedding
from edl.nn.optimizers import SGD
from edl.ps.snapshots import cut as snapshot


def run(capsys, *arguments, code=0):
    found = cli.run(["checkpoint", *map(str, arguments)])
    told = capsys.readouterr()
    assert code == found, told
    return told.out, told.err


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "out"
    assert 0 == cli.run(["checkpoint", "convert", str(trained.checkpoint), str(folder)])
    return folder


def made_of(converted, out, *more):
    return [
        *("make", "ranker", out, "--model_zoo", ZOO, "--dense", converted / "dense.safetensors"),
        *("--rows", f"users={converted}/users.parquet"),
        *("--rows", f"items={converted}/items.parquet", "--seed", 7, *more),
    ]


def test_what_was_converted_and_made_again_is_the_same_model(trained, converted, tmp_path, capsys):
    """Broken once: rows of the second table are written as those of the first."""
    out, _ = run(capsys, *made_of(converted, tmp_path / "new"))

    assert f"edl train --checkpoint_dir_for_init {tmp_path}/new" in out
    features = features_of(trained.definition, 0, 2 * KNOWN)
    with torch.no_grad():
        found = edl.load(tmp_path / "new", trained.make_model)(features)
    torch.testing.assert_close(found, trained.predicted(features), rtol=1e-6, atol=1e-6)


def test_servers_of_a_new_job_take_it_whatever_its_optimizer(trained, converted, tmp_path, capsys):
    run(capsys, *made_of(converted, tmp_path / "new"))
    features = features_of(trained.definition, 0, KNOWN)
    path = storage.load(tmp_path / "new").directory

    found = predicted(path, trained.make_model, SGD(lr=0.0), features, shards=2)

    torch.testing.assert_close(found, trained.predicted(features), rtol=1e-6, atol=1e-6)
    for optimizer in (Adam(lr=0.1), trained.definition.optimizer()):
        (store,) = empty(1)
        snapshot.restore(store, storage.load(path), new_job=True)
        spec = store.spec
        store.init(type(spec)(spec.dense, spec.tables, optimizer, spec.seed), {}, True)
        assert len(edl.rows(trained.checkpoint, "users")) == store.sizes()[1]["users"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_16_bits_are_rounded_to_the_nearest(tmp_path, capsys, dtype):
    trained = train(tmp_path / "trained", 1)
    edl.rows(trained.checkpoint, "users").to_parquet(tmp_path / "users.parquet")
    arguments = ["--model_zoo", ZOO, "--model_params", f"dtype={dtype}"]

    run(
        capsys,
        *("make", "ranker", tmp_path / "new", *arguments),
        *("--rows", f"users={tmp_path}/users.parquet"),
    )

    given = torch.from_numpy(edl.rows(trained.checkpoint, "users").weight)
    expected = given.to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(expected, edl.rows(tmp_path / "new", "users").weight)


def test_a_large_embedding_of_a_state_dict_becomes_a_table(tmp_path, capsys):
    (tmp_path / "big.py").write_text(
        "from torch import nn\nfrom edl.nn import SGD\n"
        "def model():\n    return nn.Sequential(nn.Embedding(3000, 2), nn.Linear(2, 1))\n"
        "def loss(outputs, labels):\n    return outputs.mean()\n"
        "def optimizer():\n    return SGD(lr=0.1)\n"
        "def feed(records, mode):\n    return records, None\n"
    )
    elsewhere = nn.Sequential(nn.Embedding(3000, 2), nn.Linear(2, 1))
    safetensors.torch.save_file(elsewhere.state_dict(), tmp_path / "dense.safetensors")

    run(
        capsys,
        *("make", tmp_path / "big.py", tmp_path / "new", "--ps_embedding_threshold", 1000),
        *("--dense", tmp_path / "dense.safetensors"),
    )

    model = edl.load(tmp_path / "new", tmp_path / "big.py")
    assert isinstance(model[0], Embedding)
    ids = torch.tensor([0, 2999, 17])
    with torch.no_grad():
        torch.testing.assert_close(elsewhere(ids), model(ids))


def test_partial_values_leave_the_rest_at_the_definitions_first(trained, tmp_path, capsys):
    values = {"out.2.bias": np.array([0.5], np.float32)}
    safetensors.numpy.save_file(values, tmp_path / "dense.safetensors")
    arguments = ["make", "ranker", tmp_path / "new", "--model_zoo", ZOO, "--seed", 7]

    run(capsys, *arguments, "--dense", tmp_path / "dense.safetensors", "--partial")

    model, first = edl.load(tmp_path / "new", trained.make_model), trained.make_model()
    assert [0.5] == model.out[2].bias.tolist()
    assert torch.equal(first.out[0].weight, model.out[0].weight)


# -- what does not fit


def changed(path, **values):
    """Write the dense values with some changed; None: left out."""
    found = safetensors.numpy.load_file(path) | values
    there = {name: value for name, value in found.items() if value is not None}
    safetensors.numpy.save_file(there, path)


F = np.float32


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"out.0.bias": np.zeros(7, F)}, "'out.0.bias' has the shape [7], and [6] in the model"),
        ({"out.0.bias": None}, "lacks 'out.0.bias': add what is lacking, or --partial"),
        ({"out.0.bia": np.zeros(6, F)}, "no tensor 'out.0.bia' (did you mean 'out.0.bias'?)"),
        ({"out.0.bias": np.full(6, np.nan, F)}, "'out.0.bias' has values that are not finite"),
    ],
)
def test_dense_values_that_do_not_fit_are_named(converted, tmp_path, capsys, values, told):
    path = tmp_path / "dense.safetensors"
    path.write_bytes((converted / "dense.safetensors").read_bytes())
    changed(path, **values)

    _, err = run(
        capsys, *("make", "ranker", tmp_path / "new", "--model_zoo", ZOO, "--dense", path), code=2
    )

    assert told in err
    assert not (tmp_path / "new").exists()


def columns(**values):
    return {"id": [1, 2], "weight": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], **values}


@pytest.mark.parametrize(
    ("table", "values", "told"),
    [
        ("user", columns(), "has no table 'user' (did you mean 'users'?)"),
        ("users", columns(id=[1, 1]), "has the id 1 more than once"),
        ("users", columns(id=[1.0, 2.0]), "has ids of float64[2], not int64[n]"),
        ("users", columns(id=[1, None]), "1 values of 'id' are null"),
        ("users", {"id": [1]}, "has no 'weight'"),
        ("users", columns(weight=[[1.0], [2.0]]), "float64[2, 1] instead of float32[2, 3]"),
        ("users", columns(weight=[[1.0], [2.0, 3.0]]), "its weights are of 1 to 2 values"),
        ("users", columns(weight=[[1.0, 2.0, 3.0], [0.0, np.inf, 0.0]]), "the row 2 has values"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_left(tmp_path, capsys, table, values, told):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(values), path)
    arguments = ["make", "ranker", tmp_path / "new", "--model_zoo", ZOO]

    _, err = run(capsys, *arguments, "--rows", f"{table}={path}", code=2)

    assert ("edl: error: ", 1) == (err[:12], len(err.splitlines()))
    assert told in err
    assert [] == list(tmp_path.glob("new/*"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "There is nothing to begin from"),
        (["--rows", "users"], "--rows users: write TABLE=FILE"),
        (["--rows", "users=x.csv"], "rows come from a file .parquet, .safetensors or .npz"),
        (["--rows", "users=nowhere.npz"], "nowhere.npz cannot be read as rows"),
        (["--dense", "nowhere.safetensors"], "nowhere.safetensors cannot be read as safetensors"),
    ],
)
def test_what_is_asked_for_wrongly_is_one_sentence(tmp_path, capsys, arguments, told):
    _, err = run(
        capsys, *("make", "ranker", tmp_path / "new", "--model_zoo", ZOO, *arguments), code=2
    )

    assert ("edl: error: ", 1) == (err[:12], len(err.splitlines()))
    assert told in err


def test_the_checkpoint_says_that_it_is_at_its_begin(converted, tmp_path, capsys):
    run(capsys, *made_of(converted, tmp_path / "new"))

    out, _ = run(capsys, "show", tmp_path / "new", "--verify", "-o", "json")
    assert [0, "SGD"] == [json.loads(out)["version"], json.loads(out)["optimizer"]["name"]]


def test_rows_that_are_the_definitions_own_are_in_what_is_made(tmp_path, capsys):
    own = torch.randn(3000, 2, generator=torch.Generator().manual_seed(5))
    torch.save(own, tmp_path / "own.pt")
    (tmp_path / "big.py").write_text(
        "import torch\nfrom torch import nn\nfrom edl.nn import SGD\n"
        f"OWN = torch.load({str(tmp_path / 'own.pt')!r})\n"
        "def model():\n    return nn.Sequential(nn.Embedding.from_pretrained(OWN, freeze=False))\n"
        "def loss(outputs, labels):\n    return outputs.mean()\n"
        "def optimizer():\n    return SGD(lr=0.1)\n"
        "def feed(records, mode):\n    return records, None\n"
    )
    np.savez(tmp_path / "rows.npz", ids=np.array([7]), weight=np.array([[8, 9]], np.float32))

    run(
        capsys,
        *("make", tmp_path / "big.py", tmp_path / "new", "--ps_embedding_threshold", 1000),
        *("--rows", f"0={tmp_path}/rows.npz"),
    )

    expected = own.numpy().copy()
    expected[7] = 8, 9
    found = edl.rows(tmp_path / "new", "0")
    np.testing.assert_array_equal(expected[found.ids], found.weight)
    assert sorted(found.ids.tolist()) == [*range(3000)]
    ids = torch.tensor([7, 2999])
    model = edl.load(tmp_path / "new", tmp_path / "big.py")
    assert torch.from_numpy(expected)[ids].tolist() == model(ids).tolist()
