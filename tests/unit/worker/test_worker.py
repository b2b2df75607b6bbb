"""The worker's loop against a fake master and fake servers: what it reports, pushes and recomputes."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from edl.common.clock import FakeClock
from edl.common.errors import EdlError, Fenced
from edl.proto import master_pb2 as pb
from edl.ps.client import PushOutcome, PushResult
from edl.worker.ps_trainer import Gradients
from edl.worker.task_stream import Lease, TaskStream
from edl.worker.worker import Worker

MINIBATCH = 4


class Master:
    """Leases the given tasks, then says `ending`; remembers what is reported."""

    def __init__(self, tasks, ending=pb.GetTaskReply.FINISHED):
        self.tasks = list(tasks)
        self.ending = ending
        self.fenced = False
        self.reports = []
        self.reported = threading.Event()

    def get_task(self, wait_s):
        if self.tasks:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=self.tasks.pop(0))
        return pb.GetTaskReply(outcome=self.ending)

    def heartbeat(self, *, state, patience_s):
        return pb.HeartbeatReply(fenced=self.fenced)

    def report_done(self, task, attempt, *, records, result=b""):
        self.reports.append(("done", task, attempt, records, result))
        return True

    def report_failed(self, task, attempt, failure, *, records):
        self.reports.append(("failed", task, failure.start, failure.end, failure.error))
        return True

    def hand_back(self, task, attempt, position, *, records):
        self.reports.append(("handed back", task, position))
        return True


class Reader:
    def read(self, source, start, end, skip=()):
        return [r for r in range(start, end) if r not in skip]


class Servers:
    """A trainer whose pushes meet a script of outcomes by (task, start), then are applied."""

    version = 0

    def __init__(self, script=None, compute=None):
        self.script = script or {}
        self.compute = compute
        self.applied = []
        self.computed = []
        self.outdated_calls = 0

    def prepare(self, features):
        return {}

    def start_pull(self, prepared, pool):
        future = Future()
        future.set_result("ahead")
        return future

    def begin(self, prepared, ahead):
        return ahead

    def outdated(self):
        self.outdated_calls += 1

    def gradients(self, features, labels, prepared, pulled, stream):
        self.computed.append(stream[1:])
        if self.compute:
            self.compute(stream)
        return Gradients([0], loss=1.0)

    def empty(self):
        return Gradients([0])

    def outputs(self, features, prepared, cut):
        return np.array(features)

    def push(self, task, attempt, start, end, gradients):
        script = self.script.get((task, start))
        if script:
            outcome, position = script.pop(0)
            return PushResult(outcome, (0,), position)
        self.applied.append((task, start, end))
        return PushResult(PushOutcome.APPLIED, (0,))


class Tasks:
    def __init__(self):
        self.seen = []

    def evaluate(self, lease, outputs, labels):
        self.seen.extend(outputs)

    def evaluated(self, lease):
        return b"states"

    def merge(self, payload):
        return {"payload": len(payload)}

    def task_end(self, lease):
        pass

    def train_end(self, trainer):
        pass


def task(number, kind=pb.TRAIN, size=10, **fields):
    return pb.Task(id=number, attempt=1, kind=kind, source="s", start=0, end=size, **fields)


def run(master, servers, *, pull_ahead=0, feed=None, tasks=None, on_step=lambda *_: None):
    stream = TaskStream(
        master,
        dict.fromkeys((pb.TRAIN, pb.EVALUATE), Reader()),
        feed or (lambda records, mode: (records, records)),
        minibatch=MINIBATCH,
        seed=0,
        shuffle=False,
    )
    worker = Worker(
        master,
        stream,
        servers,
        tasks or Tasks(),
        clock=FakeClock(),
        pull_ahead=pull_ahead,
        log_loss_steps=100,
        on_step=on_step,
    )
    worker.run()
    return SimpleNamespace(worker=worker, stream=stream)


SPANS = [(1, 0, 4), (1, 4, 8), (1, 8, 10)]


@pytest.mark.parametrize("pull_ahead", [0, 1])
def test_a_task_is_pushed_in_order_and_reported_after_its_last_acknowledgement(pull_ahead):
    master, servers = Master([task(1), task(2)]), Servers()
    run(master, servers, pull_ahead=pull_ahead)
    assert servers.applied == [*SPANS, *((2, a, b) for _, a, b in SPANS)]
    assert master.reports == [("done", 1, 1, 10, b""), ("done", 2, 1, 10, b"")]


@pytest.mark.parametrize("pull_ahead", [0, 1])
def test_a_stale_push_is_computed_again_before_the_next_span(pull_ahead):
    master = Master([task(1)])
    servers = Servers({(1, 4): [(PushOutcome.STALE, None), (PushOutcome.STALE, None)]})
    run(master, servers, pull_ahead=pull_ahead)
    assert servers.applied == SPANS
    assert servers.computed.count((1, 4)) == 3
    assert servers.outdated_calls == 2


@pytest.mark.parametrize("pull_ahead", [0, 1])
def test_a_gap_rewinds_to_where_the_server_stands(pull_ahead):
    master = Master([task(1)])
    servers = Servers({(1, 8): [(PushOutcome.GAP, 0)]})
    run(master, servers, pull_ahead=pull_ahead)
    assert servers.applied == [(1, 0, 4), (1, 4, 8), (1, 0, 4), (1, 4, 8), (1, 8, 10)]
    assert master.reports == [("done", 1, 1, 10, b"")]


@pytest.mark.parametrize("pull_ahead", [0, 1])
def test_a_fenced_task_is_dropped_without_a_report_and_the_next_one_goes_on(pull_ahead):
    master = Master([task(1), task(2)])
    servers = Servers({(1, 4): [(PushOutcome.FENCED, None)]})
    run(master, servers, pull_ahead=pull_ahead)
    assert [span for span in servers.applied if span[0] == 1] == [(1, 0, 4)]
    assert master.reports == [("done", 2, 1, 10, b"")]


def test_an_exception_of_the_model_is_reported_with_its_span():
    def compute(stream):
        if stream[2] == 4:
            raise ValueError("boom")

    master = Master([task(1), task(2, size=4)])
    run(master, Servers(compute=compute))
    assert master.reports == [
        ("failed", 1, 4, 8, "ValueError: boom"),
        ("done", 2, 1, 4, b""),
    ]


def test_an_exception_of_feed_is_reported_with_its_span_after_the_spans_before_it():
    def feed(records, mode):
        if 5 in records:
            raise KeyError("colour")
        return records, records

    master, servers = Master([task(1)]), Servers()
    run(master, servers, feed=feed)
    assert servers.applied == [(1, 0, 4)]
    assert master.reports == [("failed", 1, 4, 8, "KeyError: 'colour'")]


def test_a_lease_from_the_middle_starts_there_and_keeps_the_boundaries():
    master, servers = Master([task(1, position=2, boundaries=[5])]), Servers()
    run(master, servers)
    assert servers.applied == [(1, 2, 5), (1, 5, 9), (1, 9, 10)]
    assert master.reports == [("done", 1, 1, 8, b"")]


def test_a_span_of_skipped_positions_is_pushed_empty():
    master, servers = Master([task(1, skips=[4, 5, 6, 7])]), Servers()
    run(master, servers)
    assert servers.applied == SPANS
    assert servers.computed == [(1, 0), (1, 8)]
    assert master.reports == [("done", 1, 1, 6, b"")]


@pytest.mark.parametrize("pull_ahead", [0, 1])
def test_a_draining_worker_hands_back_at_the_acknowledged_position(pull_ahead):
    master, servers = Master([task(1), task(2)], pb.GetTaskReply.WAIT), Servers()
    stop = []

    def on_step(loss, records):
        if servers.applied[-1] == (1, 4, 8):
            stop[0]()

    stream = TaskStream(
        master,
        {pb.TRAIN: Reader()},
        lambda records, mode: (records, records),
        minibatch=MINIBATCH,
        seed=0,
        shuffle=False,
    )
    worker = Worker(
        master,
        stream,
        servers,
        Tasks(),
        clock=FakeClock(),
        pull_ahead=pull_ahead,
        log_loss_steps=100,
        on_step=on_step,
    )
    stop.append(worker.drain)
    worker.run()
    last = max(end for number, _, end in servers.applied if number == 1)
    assert ("handed back", 1, last) in master.reports
    assert [report for report in master.reports if report[0] == "done"] == []


def test_a_worker_that_the_master_fences_raises():
    with pytest.raises(Fenced):
        run(Master([task(1)], pb.GetTaskReply.FENCED), Servers())


def test_an_evaluation_reports_its_states_and_pushes_nothing():
    master, servers, tasks = Master([task(1, pb.EVALUATE)]), Servers(), Tasks()
    run(master, servers, tasks=tasks)
    assert tasks.seen == list(range(10))
    assert servers.applied == []
    assert master.reports == [("done", 1, 1, 10, b"states")]


def test_the_end_of_an_evaluation_reports_the_merged_values_as_json():
    master = Master([pb.Task(id=1, attempt=1, kind=pb.EVALUATE_END, payload=b"abc")])
    run(master, Servers())
    assert master.reports == [("done", 1, 1, 0, b'{"payload": 3}')]


def test_forgetting_a_lease_keeps_a_newer_one_of_the_same_task():
    stream = TaskStream(Master([]), {}, None, minibatch=1, seed=0, shuffle=False)
    old, new = Lease(task(1)), Lease(task(1))
    stream.leases[1] = new  # leased again before the report of the old one was answered

    stream.forget(old)

    assert [new] == stream.held()


@pytest.mark.parametrize(("lost", "expected"), [(True, Fenced), (False, EdlError)])
def test_an_error_of_a_worker_that_was_declared_lost_is_no_failure(lost, expected):
    """It slept: the evaluation has ended without it, and the servers have let go of its cut."""
    master, servers = Master([task(1, pb.EVALUATE)]), Servers()
    master.fenced = lost

    def outputs(features, prepared, cut):
        raise EdlError("INVALID_ARGUMENT: cut 'cut-1' is not pinned on server 0")

    servers.outputs = outputs

    with pytest.raises(EdlError) as raised:
        run(master, servers)

    assert expected is type(raised.value)
