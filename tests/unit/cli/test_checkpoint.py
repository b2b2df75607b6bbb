"""`edl checkpoint`: what is printed, what is written, and one sentence for what is wrong."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from click.testing import CliRunner
from tools.trained import train

import edl
from edl.cli import main as cli
from edl.serve.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), 2)


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """The same model a step later, on three servers."""
    return train(tmp_path_factory.mktemp("later"), 3, steps=5)


def run(capsys, *arguments, code=0):
    """Run `edl checkpoint ...` and return what it prints, and says of errors."""
    found = cli.run(["checkpoint", *map(str, arguments)])
    told = capsys.readouterr()
    assert code == found, told
    return told.out, told.err


def test_show_tells_what_is_in_it(trained, capsys):
    out, _ = run(capsys, "show", trained.checkpoint)

    users = len(edl.rows(trained.checkpoint, "users"))
    for word in ("ranker", "ps, 2 shards", "Adagrad(lr=0.5", "users", "out.0.weight", f" {users} "):
        assert word in out
    assert "version     4, written" in out


def test_show_is_data_for_programs(trained, capsys):
    out, _ = run(capsys, "show", trained.checkpoint, "--verify", "-o", "json")

    found = json.loads(out)
    assert (4, "ranker", "ps", 2) == tuple(
        found[name] for name in ("version", "definition", "strategy", "shards")
    )
    (users, items) = found["tables"]
    count = len(edl.rows(trained.checkpoint, "users"))
    assert (count, 12 * count, 24 * count) == (
        users["rows"], users["nbytes"], users["nbytes_with_state"],
    )  # fmt: skip
    assert ("normal", ["sum"]) == (items["initializer"], items["state"])


def test_rows_shows_those_that_are_asked_for_and_names_the_others(trained, capsys):
    known = edl.rows(trained.checkpoint, "users")
    first = int(known.ids[0])

    out, err = run(
        capsys, "rows", trained.checkpoint, "users", "--ids", f"{first},-9", "-o", "json"
    )
    _, told = run(capsys, "rows", trained.checkpoint, "users", f"--ids=-9,{first}")

    (row,) = json.loads(out)
    assert (first, known.weight[0].tolist()) == (row["id"], row["weight"])
    assert ("", True) == (err, told.startswith("Not in the table: -9."))


def test_rows_of_a_large_table_say_that_there_are_more(trained, capsys):
    out, _ = run(capsys, "rows", trained.checkpoint, "items")

    count = len(edl.rows(trained.checkpoint, "items"))
    assert count > 20
    assert f"{count} rows in all: --out FILE writes them" in out
    assert 20 + 2 == len(out.splitlines())


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".safetensors"])
def test_rows_are_written_to_a_file(trained, tmp_path, capsys, suffix):
    path = tmp_path / f"users{suffix}"

    run(capsys, "rows", trained.checkpoint, "users", "--out", path)

    known = edl.rows(trained.checkpoint, "users")
    if suffix == ".parquet":
        found = pq.read_table(path)["weight"].to_pylist()
    else:
        read = np.load if suffix == ".npz" else safetensors.numpy.load_file
        found = read(path)["weight"].tolist()
    assert known.weight.tolist() == found


def test_diff_of_the_same_state_on_other_servers_finds_nothing(trained, tmp_path, capsys):
    again = train(tmp_path, 3)  # the same steps

    out, _ = run(capsys, "diff", trained.checkpoint, again.checkpoint)

    assert "All dense values and all rows are the same." in out


def test_diff_counts_what_a_step_has_changed(trained, later, capsys):
    """Broken once: _rows compares with the rows of the same checkpoint."""
    out, _ = run(capsys, "diff", trained.checkpoint, later.checkpoint, "-o", "json", code=1)

    found = json.loads(out)
    assert not found["same"]
    one, other = (edl.rows(each.checkpoint, "items") for each in (trained, later))
    both = np.intersect1d(one.ids, other.ids)
    mine = one.weight[np.searchsorted(one.ids, both)]
    theirs = other.weight[np.searchsorted(other.ids, both)]
    items = next(each for each in found["tables"] if each["name"] == "items")
    assert {
        "name": "items",
        "rows": len(both),
        "rows_only_in_a": len(one) - len(both),
        "rows_only_in_b": len(other) - len(both),
        "rows_that_differ": int((mine != theirs).any(axis=1).sum()),
        "values_that_differ": int((mine != theirs).sum()),
        "largest": pytest.approx(float(np.abs(mine - theirs).max())),
        "mean": pytest.approx(float(np.abs(mine - theirs)[mine != theirs].mean()), rel=1e-5),
    } == items
    assert 0 < items["rows_that_differ"] < len(both)
    dense = {each["name"]: each for each in found["dense"]}
    assert 0 < dense["out.0.weight"]["values_that_differ"] <= 54

    drawn, _ = run(capsys, "diff", trained.checkpoint, later.checkpoint, code=1)
    assert "out.0.weight" in drawn
    assert "only in b" in drawn


def test_diff_of_two_models_names_what_only_one_has(trained, tmp_path, capsys):
    wider = train(tmp_path, 1, width=7)

    out, _ = run(capsys, "diff", trained.checkpoint, wider.checkpoint, code=1)

    assert "[6, 9] in a, [7, 9] in b" in out


@pytest.mark.parametrize("form", ["parquet", "safetensors"])
def test_a_converted_checkpoint_is_read_without_edl(trained, tmp_path, capsys, form):
    out = tmp_path / "new" / "folder"

    run(capsys, "convert", trained.checkpoint, out, "--rows", form, "--state")

    dense = safetensors.numpy.load_file(out / "dense.safetensors")
    expected = open_checkpoint(trained.checkpoint)
    for name, values in expected.dense().items():
        np.testing.assert_array_equal(values, dense[name], strict=True)
    state = safetensors.numpy.load_file(out / "dense-state.safetensors")
    assert dense["out.0.weight"].shape == state["out.0.weight/sum"].shape
    assert (state["out.0.weight/sum"] > 0).any()
    users = edl.rows(trained.checkpoint, "users")
    if form == "parquet":
        read = pq.read_table(out / "users.parquet").sort_by("id")
        found = np.array(read["weight"].to_pylist(), np.float32)
        assert users.ids.tolist() == read["id"].to_pylist()
    else:
        found = safetensors.numpy.load_file(out / "users.safetensors")["weight"]
    np.testing.assert_array_equal(users.weight, found)
    about = json.loads((out / "about.json").read_text())
    assert [4, 4] == [about["version"], len(about["written"])]
    assert ["folder"] == [path.name for path in out.parent.iterdir()]


def test_without_state_there_is_none(trained, tmp_path, capsys):
    run(capsys, "convert", trained.checkpoint, tmp_path / "out")

    assert ["id", "steps", "weight"] == pq.read_table(tmp_path / "out/items.parquet").column_names
    assert not (tmp_path / "out/dense-state.safetensors").exists()


# -- what is wrong


def torn(path):
    file = next(iter(path.glob("*table*")))
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("command", ["show", "rows", "diff", "convert"])
def test_a_torn_checkpoint_is_one_sentence(trained, tmp_path, capsys, command):
    path = shutil.copytree(trained.checkpoint, tmp_path / trained.checkpoint.name)
    torn(path)
    more = {"rows": ["users"], "diff": [trained.checkpoint], "convert": [tmp_path / "o"]}

    _, err = run(capsys, command, path, *more.get(command, ()), code=2)

    assert ("edl: error: ", 1) == (err[:12], len(err.splitlines()))
    assert "is torn" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "nowhere"], "there is no complete checkpoint in nowhere"),
        (["rows", "{}", "user"], "has no table 'user': its tables are 'users', 'items'"),
        (["rows", "{}", "users", "--ids", "1,x"], "--ids 1,x: write whole numbers"),
        (["rows", "{}", "users", "--ids", str(2**63)], "an id has 64 bits"),
        (["rows", "{}", "users", "--out", "users.csv"], "ends with .parquet, .safetensors or .npz"),
        (["rows", "{}", "users", "--out", "/proc/u.npz"], "--out: /proc cannot be written"),
        (["convert", "{}", "/proc/new"], "/proc cannot be written"),
        (["convert", "{}", "{}"], "is there already: name a new folder"),
        (["diff", "{}", "nowhere"], "there is no complete checkpoint in nowhere"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(trained, capsys, arguments, told):
    path = str(trained.checkpoint)

    _, err = run(capsys, *(each.replace("{}", path) for each in arguments), code=2)

    assert ("edl: error: ", 1) == (err[:12], len(err.splitlines()))
    assert told in err


def test_help_tells_of_each_command():
    found = CliRunner().invoke(cli.cli, ["checkpoint", "--help"])

    assert [True] * 4 == [word in found.output for word in ("show", "rows", "diff", "convert")]
