"""`edl export`, and `edl train --export`: what is told, and one sentence for what is wrong."""

import json
import shutil

import numpy as np
import pytest
from tools.jobs import ZOO
from tools.trained import records_of, train
from tools.turns import in_turn

from edl.cli.export_after import After
from edl.common import paths
from edl.common.errors import UsageError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), 1)


@pytest.fixture
def data(trained, tmp_path):
    np.savez(tmp_path / "data.npz", **records_of(trained.definition, np.arange(16)))
    return str(tmp_path / "data.npz")


@in_turn(0)
def test_an_export_is_told_with_how_far_it_is_off(trained, data, tmp_path, run):
    out = tmp_path / "out"

    code, told, _ = run(
        *("export", str(trained.checkpoint), str(out), "--data", data),
        *("--to", "rows", "--to", "embedding", "--rows-dtype", "float16"),
    )

    assert code == 0
    lines = told.splitlines()
    assert lines[0].startswith(f"wrote {out} (")
    assert "embedding: embedding.pt2; rows: dense.safetensors, rows-users.parquet" in lines[0]
    assert "weights of users are off by " in told
    assert "outputs of embedding are off by " in told
    assert "an id that is not in the table has zeros" in lines[-1]


def test_a_model_that_cannot_be_traced_is_a_sentence(trained, data, tmp_path, run):
    """Broken once: torch's error is a traceback."""
    branches = tmp_path / "branches.py"
    source = (ZOO / "ranker.py").read_text()
    changed = source.replace("self.out(rows)", "self.out(rows * 2 if rows.sum() > 0 else rows)")
    assert changed != source
    branches.write_text(changed)

    code, _, told = run(
        "export", str(trained.checkpoint), str(tmp_path / "out"), "--data", data,
        "--model_def", str(branches),
    )  # fmt: skip

    assert code == 2
    assert told.startswith("edl: error: torch.export cannot trace the model: ")
    assert "Could not guard on data-dependent expression" in told
    assert told.strip().endswith("(rows and dense values alone are exported by --to rows)")
    assert told.count("\n") == 1
    assert ["branches.py", "data.npz"] == sorted(
        each.name for each in tmp_path.iterdir() if each.is_file()
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{c}", "{here}"], "is there already: name a new folder"),
        (["{c}", "{here}/new"], "name a file with some (--data)"),
        (["{here}/nothing", "{here}/new"], "there is no complete checkpoint"),
        (["{c}", "{here}/new", "--to", "paper"], "'paper' is not one of 'torch', 'onnx'"),
        (["{c}", "{here}/new", "--data", "{here}/no.npz"], "no.npz"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_exit_2(trained, tmp_path, run, arguments, said):
    (tmp_path / "file").touch()
    given = [each.format(c=trained.checkpoint, here=tmp_path) for each in arguments]

    code, _, told = run("export", *given)

    assert (2, 1) == (code, told.count("\n"))
    assert said in told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--export", "out", "--detach"], "and --detach does not: leave it out, and run"),
        (["--export", "out", "--queue"], "and --queue does not: leave it out, and run"),
        (["--export", "out", "--runtime", "kubernetes"], "and the job in a cluster"),
        (["--export", "out", "--no_keep_last"], "leave out --no_keep_last"),
        (["--export_to", "onnx"], "add --export OUT, or leave it out"),
        (["--export", "."], "is there already"),
    ],
)
def test_an_export_that_cannot_follow_is_refused_before_the_job(
    data, tmp_path, run, monkeypatch, flags, said
):
    """Broken once: the folder is looked at in the end."""
    monkeypatch.chdir(tmp_path)
    cluster = ["--image_name", "i", "--volume", "a=b"] if "kubernetes" in flags else []

    code, _, told = run(
        "train", "--model_def", "ranker", "--model_zoo", str(ZOO), "--training_data", data,
        *flags, *cluster,
    )  # fmt: skip

    assert code == 2
    assert said in told
    assert not paths.jobs_folder().exists() or not list(paths.jobs_folder().iterdir())


@pytest.fixture
def job(trained, data, tmp_path):
    """The folder of a job that is done."""
    folder = tmp_path / "jobs" / "ranker"
    shutil.copytree(trained.checkpoint.parent, folder / "checkpoints")
    (folder / "settings.json").write_text(json.dumps({"checkpoint_dir": ""}))
    return folder


def test_an_export_follows_a_job_that_has_trained_and_no_other(job, tmp_path, capsys):
    """Broken once: a job that has failed is exported."""
    after = After(str(tmp_path / "out"), ("rows",))

    assert [1, 130] == [after.follow(code, job) for code in (1, 130)]
    assert not (tmp_path / "out").exists()
    assert after.follow(3, job) == 3
    assert "rows-users.parquet" in capsys.readouterr().out


def test_an_export_that_fails_says_that_the_job_is_done(job, tmp_path):
    after = After(str(tmp_path / "out"), ("torch",))

    with pytest.raises(UsageError, match=r"ranker is done, but not exported: .*--data.*edl export"):
        after.follow(0, job)
