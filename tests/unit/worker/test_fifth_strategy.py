"""A strategy of one's own is a trainer and a keeper of its state: here one that adds up records.

The real loop runs it, in a process group of one, against a fake master.
"""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from edl.common.clock import FakeClock
from edl.proto import master_pb2 as pb
from edl.worker.group.loop import GroupWorker, RoundPlan
from edl.worker.group.orders import Orders
from edl.worker.group.slices import SliceReader
from edl.worker.reports import Status
from edl.worker.task_reader import TaskReader
from edl.worker.trainer import GroupTrainer


@dataclass
class Sum:
    """A step, which adds up records."""

    records: int
    loss: float
    ends_round: bool


class CountingTrainer(GroupTrainer[Sum]):
    """The model is a number: the sum of all records."""

    def __init__(self, fails_at=None):
        self.model = nn.Module()
        self.total = self.version = 0
        self.log = []
        self.fails_at = fails_at

    def follow(self, factor):
        self.log.append(("follow", factor))

    def enter(self, world):
        self.log.append(("enter", world))

    def leave(self):
        self.log.append(("leave",))

    def reduce(self, piece, wish):
        if piece.start == self.fails_at:
            self.fails_at = None
            raise ValueError("boom")
        records = [int(r) for features, _, _, _ in piece.parts for r in features]
        return Sum(sum(records), float(len(records)), wish)

    def commit(self, step):
        self.total += step.records
        self.version += 1

    def pass_over(self, piece):
        pass

    def outputs(self, features):
        return self.total

    def refresh(self):
        self.log.append(("refresh",))

    def state_dict(self):
        return {}


class CountKeeper:
    """Keeps the number, which nobody else wants."""

    def __init__(self, trainer):
        self.orders = Orders()
        self.done = []
        self._trainer = trainer

    @property
    def version(self):
        return self._trainer.version

    def scalars(self):
        return {"total": float(self._trainer.total)}

    def request(self):
        return pb.JoinRequest(version=self.version)

    def next_order(self, settled, idle):
        return self.orders.next(settled)

    def carry_out(self, order):
        self.done.append((order.id, self.version))

    def fetch(self, round_):
        return None

    def enter(self, reply):
        pass

    def begin(self, restore):
        pass

    def share(self, reply, over):
        pass

    def leave(self, round_, status):
        self.done.append(("left", round_))

    def fence(self):
        pass

    def close(self):
        pass


class GroupMaster:
    """Leases its tasks to whatever round there is, then lets the member leave."""

    def __init__(self, tasks, orders=()):
        self.tasks = tasks
        self.orders = list(orders)
        self.joined, self.reports = [], []
        self._keys = {}
        self._heard, self._reported = threading.Event(), threading.Event()

    def join(self, request):
        self.joined.append((request.round, request.broken))
        if all(task is None for task in self.tasks):
            return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        peers = [pb.Peer(version=request.version)]
        return pb.JoinReply(round=request.round + 1, peers=peers, afresh=not request.round)

    def watch_round(self, request):
        orders, self.orders = self.orders, []
        if not orders:  # those of the call before are known by now
            self._heard.set()
            self._reported.wait(request.wait_s)
        return pb.WatchRoundReply(orders=orders)

    def get_task_of_round(self, round_, number, wait_s):
        assert self._heard.wait(30.0)
        there = [task for task in self.tasks if task is not None]
        if len(there) < number:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FINISHED)
        return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=there[number - 1])

    def report_task(self, report):
        self.reports.append(report)
        self._reported.set()
        if report.done:
            self.tasks = [None if t and t.id == report.task else t for t in self.tasks]
        return True

    def put_key(self, round_, key, value):
        self._keys[round_, key] = value

    def get_key(self, round_, key, wait_s):
        value = self._keys.get((round_, key))
        return pb.GetKeyReply(found=value is not None, value=value or b"")


class Reader:
    def read(self, source, start, end, skip=()):
        return [r for r in range(start, end) if r not in skip]


class Tasks:
    definition_file = ""
    follows_steps = False

    def epochs_end(self):
        pass

    def task_end(self, lease):
        pass


class Followed(Tasks):
    """The tasks of a definition that wants to be told of steps, and once fails."""

    follows_steps = True

    def __init__(self, fails_at=None):
        self.told, self.fails_at = [], fails_at

    def step_begin(self, epoch, version):
        self.told.append(("begin", epoch, version))

    def step_end(self, version, loss, logs):
        self.told.append(("end", version))
        if version == self.fails_at:
            self.fails_at = None
            raise ValueError("mine")

    def epochs_end(self):
        self.told.append("epochs end")


def run(master, trainer, tasks=None):
    keeper = CountKeeper(trainer)

    def make_reader(rank, shares, minibatch):
        feed = lambda records, mode: (np.array(records), None)
        whole = TaskReader({pb.TRAIN: Reader()}, feed, minibatch=minibatch, seed=0, shuffle=False)
        return SliceReader(whole, rank=rank, shares=shares, most=0)

    plan = RoundPlan(make_reader, lambda workers: (4, 1.0), torch.device("cpu"))
    worker = GroupWorker(master, trainer, keeper, tasks or Tasks(), plan, Status(FakeClock()))
    worker.run()
    return worker, keeper


def task(number, size=10):
    return pb.Task(id=number, attempt=1, kind=pb.TRAIN, source="s", end=size)


def test_each_record_is_counted_once_and_each_task_reported_with_its_round_and_version():
    master, trainer = GroupMaster([task(1), task(2)]), CountingTrainer()

    worker, keeper = run(master, trainer)

    assert 2 * sum(range(10)) == trainer.total
    assert [("follow", 1.0), ("enter", 1), ("leave",)] == trainer.log
    assert [(1, 1, 3, 10), (2, 1, 6, 10)] == [
        (each.task, each.round, each.version, each.records) for each in master.reports
    ]
    assert [("left", 1)] == keeper.done
    beat = worker.beat()
    assert (1, 6, 90.0) == (beat.round, beat.version, beat.scalars["total"])


def test_content_that_fails_is_reported_and_the_next_round_begins_anew():
    master, trainer = GroupMaster([task(1, size=4)]), CountingTrainer(fails_at=0)

    run(master, trainer)

    failed, done = master.reports
    assert ("ValueError: boom", 0, 4) == (
        failed.failed.error,
        failed.failed.start,
        failed.failed.end,
    )
    assert done.done
    assert done.round == 2
    assert [(0, False), (1, True), (2, False)] == master.joined
    assert sum(range(4)) == trainer.total


def test_a_definition_is_told_of_each_step_of_the_group_and_what_it_raises_is_about_no_record():
    tasks = Followed(fails_at=2)
    master, trainer = GroupMaster([task(1, size=10)]), CountingTrainer()

    run(master, trainer, tasks)

    failed, _ = master.reports
    assert ("ValueError: mine", 10, 10) == (
        failed.failed.error,
        failed.failed.start,
        failed.failed.end,
    )
    begun, ended = (("begin", 0, v) for v in (0, 1)), (("end", v) for v in (1, 2))
    assert [each for pair in zip(begun, ended, strict=True) for each in pair] == tasks.told[:4]
    assert "epochs end" == tasks.told[-1]


@pytest.mark.parametrize("kind", [pb.Order.TAKE, pb.Order.TAKE_ALL])
def test_orders_are_carried_out_between_two_steps(kind):
    master, trainer = GroupMaster([task(1)], [pb.Order(id=7, kind=kind)]), CountingTrainer()

    _, keeper = run(master, trainer)

    (number, version), left = keeper.done
    assert 7 == number
    assert version in range(4)
    assert ("left", 1) == left
