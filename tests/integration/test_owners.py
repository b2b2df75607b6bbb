"""A folder has one owner: a job, and who goes on with it. Real processes, the command line."""

from __future__ import annotations

import json

import pytest
from tools.jobs import ZOO, write_records
from tools.servers import assert_exact
from tools.stage import edl, kill_jobs
from tools.turns import in_turn
from tools.waiting import until

from edl.chaos import followed
from edl.common import storage
from edl.common.claims import FILE
from edl.common.places import Place
from edl.serve.follow import follow

RECORDS, WAIT_S = 400, 120.0


@pytest.fixture
def homes(tmp_path):
    made = tmp_path / "home", tmp_path / "other"
    yield made
    for home in made:
        kill_jobs(home)


@in_turn(3)
def test_a_job_that_was_killed_is_gone_on_with_as_the_same_owner_and_no_other_comes_in(
    tmp_path, homes
):
    home, other = homes
    deltas, checkpoints = tmp_path / "deltas", tmp_path / "checkpoints"
    flags = [
        *("--model_def", "counting", "--model_zoo", ZOO),
        *("--model_params", f"delay_s=3,until={tmp_path}/quickly"),
        *("--training_data", write_records(tmp_path / "records.npz", RECORDS)),
        *("--minibatch_size", 4, "--num_ps", 1, "--num_workers", 1, "--use_async"),
        *("--delta_dir", deltas, "--delta_s", 0.2),
        *("--checkpoint_dir", checkpoints, "--checkpoint_steps", 1),
    ]
    edl(home, "train", *flags, "--job_name", "first", "--detach")
    seen, told = [], []
    with follow(str(deltas), seen.append, period_s=0.05, tell=told.append) as follower:
        owner = follower.first(WAIT_S).about.job
        until(lambda: storage.find_checkpoints(checkpoints), WAIT_S)

        refused = edl(other, "train", *flags, "--job_name", "second", code=2)
        kill_jobs(home)
        (tmp_path / "quickly").touch()
        edl(other, "train", "--resume", checkpoints)

        newest = followed.newest(Place(deltas))
        until(lambda: follower.current.about.cut == newest.cut, WAIT_S)

    assert "the job 'first', which is running, writes to" in refused.stderr
    assert f"EDL_HOME={home} edl stop first" in refused.stderr
    assert {owner} == {each.about.job for each in seen}
    assert [] == [text for text in told if "another job" in text]
    manifest = storage.latest(checkpoints)
    assert owner == manifest.books["owner"]
    assert_exact(manifest.directory, RECORDS, 1)
    for folder in (deltas, checkpoints):
        there = json.loads((folder / FILE).read_text())
        assert (owner, "first-r1", "given up") == (there["owner"], there["job"], there["state"])
