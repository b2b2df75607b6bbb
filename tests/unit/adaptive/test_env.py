"""The order in which variables are asked for what a replica is to know."""

import os
import tempfile

import pytest

from edl.adaptive import env
from edl.common.errors import UsageError

pytestmark = pytest.mark.fast


def facts():
    return env.num_replicas(), env.replica_rank(), env.num_nodes(), env.num_restarts()


def told(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_process_that_nobody_told_anything_is_alone(process):
    assert (1, 0, 1, 0) == facts()
    assert (None, None, None) == (
        env.checkpoint_path(),
        env.checkpoint_interval_s(),
        env.init_method(),
    )
    assert ("standalone", os.getcwd()) == (env.job_id(), env.share_path())
    assert ("0.0.0.0", 0) == (env.master_addr(), env.master_port())
    assert (None, None, False) == (
        env.adaptdl_sched_version(),
        env.supervisor_url(),
        env.from_ray(),
    )


def test_a_job_has_a_name_and_a_shared_folder(process, monkeypatch):
    told(
        monkeypatch, ADAPTDL_JOB_ID="ns/old", ADAPTDL_SHARE_PATH="/old", TORCHELASTIC_RUN_ID="none"
    )
    old = env.job_id(), env.share_path()
    told(monkeypatch, EDL_JOB_NAME="new", EDL_SHARE_PATH="~/new")

    assert ("ns/old", "/old") == old
    assert ("new", os.path.expanduser("~/new")) == (env.job_id(), env.share_path())


def test_events_of_rank_0_go_to_the_folder_and_those_of_others_elsewhere(process, monkeypatch):
    told(monkeypatch, ADAPTDL_JOB_ID="job", ADAPTDL_TENSORBOARD_LOGDIR="/events")
    first = env.get_tensorboard_dir()
    told(monkeypatch, EDL_REPLICA_RANK="1")
    other = env.get_tensorboard_dir()
    told(monkeypatch, ADAPTDL_TENSORBOARD_LOGDIR="", EDL_REPLICA_RANK="0")

    assert ("/events/job", f"{tempfile.gettempdir()}/job") == (first, other)
    assert other == env.get_tensorboard_dir()


def test_edl_goes_before_torchrun_and_that_before_the_predecessor(process, monkeypatch):
    told(
        monkeypatch,
        ADAPTDL_NUM_REPLICAS="2",
        ADAPTDL_REPLICA_RANK="1",
        ADAPTDL_NUM_NODES="2",
        ADAPTDL_NUM_RESTARTS="3",
        ADAPTDL_CHECKPOINT_PATH="/old",
    )
    first = facts(), env.checkpoint_path()
    told(monkeypatch, WORLD_SIZE="4", RANK="3", GROUP_WORLD_SIZE="1")
    told(monkeypatch, TORCHELASTIC_RESTART_COUNT="0")
    second = facts()
    told(
        monkeypatch,
        EDL_NUM_REPLICAS="6",
        EDL_REPLICA_RANK="5",
        EDL_NUM_NODES="3",
        EDL_NUM_RESTARTS="9",
        EDL_CHECKPOINT_PATH="/new",
    )

    assert ((2, 1, 2, 3), "/old") == first
    assert (4, 3, 1, 0) == second
    assert ((6, 5, 3, 9), "/new") == (facts(), env.checkpoint_path())


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_what_is_no_number_of_replicas_is_named(process, monkeypatch, value):
    told(monkeypatch, WORLD_SIZE=value)

    with pytest.raises(UsageError, match="WORLD_SIZE"):
        env.num_replicas()


def test_where_replicas_meet(process, monkeypatch):
    told(monkeypatch, ADAPTDL_MASTER_ADDR="10.0.0.1", ADAPTDL_MASTER_PORT="47001")
    old = env.init_method(), env.master_addr(), env.master_port()
    told(monkeypatch, MASTER_ADDR="10.0.0.2", MASTER_PORT="29500")

    assert ("tcp://10.0.0.1:47001", "10.0.0.1", 47001) == old
    assert ("env://", "10.0.0.2", 29500) == (
        env.init_method(),
        env.master_addr(),
        env.master_port(),
    )


def test_the_interval_of_checkpoints(process, monkeypatch):
    told(monkeypatch, EDL_CHECKPOINT_INTERVAL_S="2.5")
    some = env.checkpoint_interval_s()
    told(monkeypatch, EDL_CHECKPOINT_INTERVAL_S="0")
    none = env.checkpoint_interval_s()
    told(monkeypatch, EDL_CHECKPOINT_INTERVAL_S="often")

    assert (2.5, None) == (some, none)
    with pytest.raises(UsageError, match="often"):
        env.checkpoint_interval_s()


def test_checkpoints_at_a_url_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", "s3://bucket/c")

    with pytest.raises(UsageError, match="in a folder, not at a URL"):
        env.checkpoint_path()
