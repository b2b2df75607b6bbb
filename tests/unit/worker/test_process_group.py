"""A round's process group finds its backend by its members' GPUs, and keeps its store alive."""

import gc

import pytest
import torch
import torch.distributed as dist

from edl.proto import master_pb2 as pb
from edl.worker.group import process_group
from edl.worker.group.process_group import ProcessGroup, RoundOver, backend_of

CPU = torch.device("cpu")
NCCL = "cpu:gloo,cuda:nccl"


class Keys:
    """A master that keeps keys, of one round."""

    def __init__(self, keys=()):
        self.keys = dict(keys)

    def put_key(self, _round, key, value):
        self.keys[key] = value

    def get_key(self, _round, key, _wait_s):
        return pb.GetKeyReply(found=key in self.keys, value=self.keys.get(key, b""))


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["a"], NCCL),
        (["a", "b", "c"], NCCL),
        (["a", "b", "a"], "gloo"),
        (["a", ""], "gloo"),
        (["", ""], "gloo"),
    ],
)
def test_nccl_needs_a_gpu_of_its_own_for_each_member(gpus, backend):
    assert backend == backend_of(gpus)


def test_members_use_what_the_first_one_chose(monkeypatch):
    others = {"edl/gpu/1": b"b", "edl/gpu/2": b"a"}
    monkeypatch.setattr(process_group, "gpu_of", lambda _device: "a")
    asked = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", lambda _timeout: None)
    master = Keys(others)

    ProcessGroup().open(master, 1, 0, 3, torch.device("cuda:0"))
    ProcessGroup().open(master, 1, 2, 3, torch.device("cuda:0"))
    ProcessGroup().open(Keys(others | {"edl/gpu/2": b"c"}), 1, 0, 3, torch.device("cuda:0"))

    assert asked == ["gloo", "gloo", NCCL]


def test_the_store_is_there_for_as_long_as_the_group():
    """nccl asks it at the first operation. Broken once: kept by nobody, its methods were gone."""
    group, master = ProcessGroup(), Keys()
    group.open(master, 1, 0, 1, CPU)
    try:
        gc.collect()
        dist.distributed_c10d._get_default_store().set("late", b"here")
        group.confirm()  # of gloo's operations there is nothing to confirm
    finally:
        group.close()

    assert b"here" in master.keys.values()


@pytest.fixture
def like_nccl(monkeypatch):
    """Yield a group on gloo that takes its operations for those of nccl."""
    group = ProcessGroup()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    group.open(Keys(), 1, 0, 1, CPU)
    group._nccl = group.ends_in_order = True
    yield group
    group.close()


def test_all_members_confirm_a_step(like_nccl, monkeypatch):
    like_nccl.confirm()

    monkeypatch.setattr(dist, "all_reduce", lambda votes: votes.zero_())
    with pytest.raises(dist.DistError):  # another member was given up before it had the step
        like_nccl.confirm()


def test_a_step_whose_operations_were_given_up_is_not_confirmed(like_nccl, monkeypatch):
    """They end without an error, and what they leave may be anything."""
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: None)
    like_nccl.abort()

    with pytest.raises(RoundOver):
        like_nccl.confirm()
