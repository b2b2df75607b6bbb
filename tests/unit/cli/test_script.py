"""`edl submit SCRIPT`: what a cluster is given, and what is refused before it is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

Run = Callable[..., tuple[int, str, str]]
CLUSTER = ("--image_name", "train:1", "--job_volume", "claim_name=jobs", "--job_name", "demo")


def test_a_script_and_its_flags_become_an_edljob(run: Run) -> None:
    code, out, _ = run(
        *("submit", "/code/train.py", "--nodes", "1:8", "--nproc_per_node", "2"),
        *(*CLUSTER, "--as", "edljob", "--yaml", "--", "20", "--lr", "0.1"),
    )

    spec = yaml.safe_load(out)["spec"]
    assert (code, spec["command"], spec["image"]) == (0, "launch", "train:1")
    assert spec["settings"] == {
        "script": "/code/train.py",
        "arguments": ["20", "--lr", "0.1"],
        "nproc_per_node": 2,
    }
    worker = {key: spec["worker"][key] for key in ("replicas", "minReplicas", "maxReplicas")}
    assert worker == {"replicas": 8, "minReplicas": 1, "maxReplicas": 8}
    assert "ps" not in spec


def test_a_job_file_may_say_what_a_script_is_run_with(run: Run, tmp_path) -> None:
    (tmp_path / "job.yaml").write_text("nodes: 2:4\nstop_timeout: 1m\nimage: other:1\n")

    code, out, err = run(
        *("submit", "train.py", "--config", str(tmp_path / "job.yaml")),
        *(*CLUSTER, "--as", "edljob", "--yaml"),
    )

    spec = yaml.safe_load(out)["spec"]
    assert (code, err, spec["worker"]["minReplicas"]) == (0, "", 2)
    assert (spec["image"], spec["settings"]["stop_timeout"]) == ("train:1", "1m")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--nodes", "1:8"), "--nodes is of a script: name it (`edl submit SCRIPT`)."),
        (("x.py", "--command", "train"), "--command train runs no script: leave out one of them."),
        (("x.py", "--model_def", "iris"), "--model_def is not of a script's job: leave it out."),
        (("x.py", "--nodes", "8:1"), "--nodes 8:1: MIN is above MAX; did you mean 1:8?"),
        (("x.py", "--lease", "1s"), "--lease 1s: at least 4s."),
        (("x.py", "--job_volume", ""), "--job_volume: a script keeps its state in"),
    ],
)
def test_flags_that_cannot_be_are_one_sentence(run: Run, flags, said) -> None:
    code, _, err = run("submit", *CLUSTER, *flags, "--yaml")

    assert code == 2
    assert err.startswith(f"edl: error: {said}")


@pytest.mark.parametrize("flags", [(), ("3", "--num_workers", "4")])
def test_how_many_are_wanted_is_said_once(run: Run, flags) -> None:
    code, _, err = run("scale", "demo", *flags)

    assert (code, "How many? Say it once: `edl scale JOB N`" in err) == (2, True)
