"""The worker's loop against a fake master and fake servers: its reports, pushes and rewinds."""

import itertools
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from edl.common.clock import FakeClock
from edl.common.errors import EdlError, Fenced
from edl.proto import master_pb2 as pb
from edl.ps.worker_client import PushOutcome, PushResult
from edl.worker.phases import Waits
from edl.worker.reports import Status
from edl.worker.servers.loop import Worker
from edl.worker.task_reader import Lease, TaskReader
from edl.worker.task_stream import TaskStream
from edl.worker.trainer import Gradients

MINIBATCH = 4


class Master:
    """A master that leases the given tasks, then says `ending`; remembers what is reported."""

    def __init__(self, tasks, ending=pb.GetTaskReply.FINISHED):
        self.tasks = list(tasks)
        self.ending = ending
        self.fenced = False
        self.reports = []
        self.reported = threading.Event()
        self.asked = []  # for how many tasks

    def get_task(self, wait_s, most):
        self.asked.append(most)
        if self.tasks:
            task, *more = self.tasks[:most]
            del self.tasks[:most]
            return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=task, more=more)
        return pb.GetTaskReply(outcome=self.ending)

    def begins(self, task, attempt, start, end):
        self.reports.append(("begins", task, start, end))

    def heartbeat(self, *, state, patience_s=None):
        self.reports.append(("is", state))
        return pb.HeartbeatReply(fenced=self.fenced)

    def report_later(self, report, told=lambda accepted: None):
        if report.done:
            self.reports.append(
                ("done", report.task, report.attempt, report.records, report.result)
            )
        else:
            self.reports.append(("handed back", report.task, report.handed_back))
        told(True)

    def send_reports(self, state):
        """Do nothing: reports were taken when they were told."""

    def report_failed(self, task, attempt, failure, *, records):
        self.reports.append(("failed", task, failure.start, failure.end, failure.error))
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
        self.withdrawn = []
        self.awaited = []

    def prepare(self, features):
        return {}

    def start_pull(self, prepared, pool, after):
        self.awaited.append((len(self.computed), len(after)))
        future = Future()
        future.set_result("ahead")
        return future

    def begin(self, prepared, ahead):
        return ahead

    def outdated(self):
        self.outdated_calls += 1

    def withdraw(self, gradients):
        self.withdrawn.append(gradients)

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
    definition_file = ""
    follows_steps = False

    def epochs_end(self):
        pass

    def __init__(self):
        self.seen = []

    def evaluate(self, lease, outputs, labels, features):
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


class ReadyStream(TaskStream):
    """A stream that is never behind the worker: what is under way at once is certain."""

    def next(self, timeout_s=None):
        return super().next()

    def peek(self):
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended or self._closed)
            return super().peek()


def reader_of(feed=None):
    readers = dict.fromkeys((pb.TRAIN, pb.EVALUATE), Reader())
    feed = feed or (lambda records, mode: (records, records))
    return TaskReader(readers, feed, minibatch=MINIBATCH, seed=0, shuffle=False)


def status(on_step=lambda *_: None, clock=None):
    return Status(clock or FakeClock(), log_loss_steps=100, on_step=on_step)


def run(
    master,
    servers,
    *,
    pull_ahead=0,
    push_window=1,
    feed=None,
    tasks=None,
    on_step=lambda *_: None,
):
    stream = (ReadyStream if push_window > 1 else TaskStream)(master, reader_of(feed))
    worker = Worker(
        master,
        stream,
        servers,
        tasks or Tasks(),
        status(on_step),
        pull_ahead=pull_ahead,
        push_window=push_window,
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


class Followed(Tasks):
    """The tasks of a definition that wants to be told of steps; it fails where `fails` says."""

    follows_steps = True

    def __init__(self, fails=None):
        super().__init__()
        self.told, self.fails = [], fails

    def step_begin(self, epoch, version):
        self.told.append(("begin", epoch))

    def step_end(self, version, loss, logs):
        self.told.append(("end", loss))
        if len(self.told) == self.fails:
            raise ValueError("mine")

    def epochs_end(self):
        self.told.append("epochs end")


def test_each_step_is_told_before_it_is_computed_and_once_it_is_applied():
    servers, tasks = Servers({(1, 4): [(PushOutcome.STALE, None)]}), Followed()
    run(Master([task(1, epoch=2)]), servers, tasks=tasks)

    begin, end = ("begin", 2), ("end", 1.0)
    assert [begin, end, begin, begin, end, begin, end, "epochs end"] == tasks.told


def test_a_callback_that_fails_is_about_no_record_and_what_was_applied_counts():
    master, servers = Master([task(1)]), Servers()
    run(master, servers, tasks=Followed(fails=2))

    assert SPANS[:1] == servers.applied
    assert [("failed", 1, 10, 10, "ValueError: mine")] == master.reports


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
    assert servers.applied == [(1, 2, 5), (1, 5, 10)]  # the last one is not alone
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

    stream = TaskStream(master, reader_of())
    worker = Worker(master, stream, servers, Tasks(), status(on_step), pull_ahead=pull_ahead)
    stop.append(worker.drain)
    worker.run()
    last = max(end for number, _, end in servers.applied if number == 1)
    # That it leaves comes first: the master may have leased what no reply has brought.
    assert ("is", "draining") == master.reports[0]
    assert ("handed back", 1, last) in master.reports
    assert [report for report in master.reports if report[0] == "done"] == []


@pytest.mark.parametrize("stream", [TaskStream, ReadyStream])
def test_a_wait_for_data_is_counted_once_there_is_work_and_none_where_all_is_ready(stream):
    asked = threading.Event()

    class Stream(stream):
        def next(self, timeout_s=None):
            if timeout_s != 0:
                asked.set()  # it has nothing, and waits
            return super().next(timeout_s)

    def feed(records, mode):
        if stream is TaskStream:
            assert asked.wait(60)
            asked.clear()
        return records, records

    master, shown = Master([task(1, size=12)]), status()
    shown.waits = Waits(itertools.count().__next__)  # each wait takes 1
    Worker(master, Stream(master, reader_of(feed)), Servers(), Tasks(), shown, pull_ahead=0).run()

    waited = shown.scalars()["waited_data_s"]
    assert waited >= 2 if stream is TaskStream else waited == 0  # of the second and third
    assert "waited_servers_s" in shown.scalars()


def test_as_many_tasks_are_leased_at_once_as_last_two_seconds():
    master, servers, clock = Master([task(n) for n in range(1, 60)]), Servers(), FakeClock()
    took_s = iter([0.25] + 8 * [0.01] + 200 * [0.0])

    def feed(records, mode):
        if records[0] == 0:  # a task's first minibatch
            clock.advance(next(took_s))
        return records, records

    stream = TaskStream(master, reader_of(feed), several=True, clock=clock)
    worker = Worker(master, stream, servers, Tasks(), status(clock=clock), pull_ahead=0)
    worker.run()

    assert [1, 8, 32, 32, 32] == master.asked
    assert [n for n in range(1, 60) for _ in range(3)] == [t for t, _, _ in servers.applied]
    assert [("done", n, 1, 10, b"") for n in range(1, 60)] == master.reports


def test_of_tasks_that_were_leased_at_once_those_not_begun_are_handed_back_too():
    master, servers = Master([task(n) for n in range(1, 5)], pb.GetTaskReply.WAIT), Servers()
    get_task = master.get_task
    master.get_task = lambda wait_s, most: get_task(wait_s, 4)

    def on_step(loss, records):
        if servers.applied[-1] == (2, 0, 4):
            worker.drain()

    stream = TaskStream(master, reader_of())
    worker = Worker(master, stream, servers, Tasks(), status(on_step), pull_ahead=0)
    worker.run()

    ends = [report for report in master.reports if report[0] != "is"]
    assert [("done", 1, 1, 10, b""), ("handed back", 3, 0), ("handed back", 4, 0)] == [
        *ends[:1],
        *ends[2:],
    ]
    assert ("handed back", 2) == ends[1][:2]


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
    stream = TaskStream(Master([]), reader_of())
    old, new = Lease(task(1)), Lease(task(1))
    stream.leases[1] = new  # leased again before the report of the old one was answered

    stream.forget(old)

    assert [new] == stream.held()


@pytest.mark.parametrize(("lost", "expected"), [(True, Fenced), (False, EdlError)])
def test_an_error_of_a_worker_that_was_declared_lost_is_no_failure(lost, expected):
    """The worker slept: the evaluation has ended, and the servers have let go of its cut."""
    master, servers = Master([task(1, pb.EVALUATE)]), Servers()
    master.fenced = lost

    def outputs(features, prepared, cut):
        raise EdlError("INVALID_ARGUMENT: cut 'cut-1' is not pinned on server 0")

    servers.outputs = outputs

    with pytest.raises(EdlError) as raised:
        run(master, servers)

    assert expected is type(raised.value)


class Shards:
    """Two servers with a ledger each behind a window of pushes.

    Pushes are held back until `window` of them have come (or no more can come), then are answered
    in the order that `arrive` makes of them. `refuse` maps (shard, task, start) to outcomes that
    the shard answers before it looks at its ledger. The trainer's other calls are those of
    `Servers`.
    """

    def __init__(self, window, arrive=lambda pushes: pushes, refuse=None):
        self.window = window
        self.arrive = arrive
        self.refuse = refuse or {}
        self.ledgers = [{}, {}]
        self.applied = [[], []]
        self.most_waiting = 0
        self.lock = threading.Condition()
        self.waiting = []

    def push(self, task, attempt, start, end, gradients):
        answer = []
        with self.lock:
            self.waiting.append((task, start, end, answer))
            self.most_waiting = max(self.most_waiting, len(self.waiting))
            if len(self.waiting) == self.window or threading.current_thread().name == "MainThread":
                self.answer()
            while not answer:
                # Nobody else comes: the worker waits for this one.
                if not self.lock.wait(0.05) and not answer:
                    self.answer()
        return answer[0]

    def answer(self):
        for task, start, end, answer in self.arrive(self.waiting):
            answer.append(self.offer(task, start, end))
        self.waiting = []
        self.lock.notify_all()

    def offer(self, task, start, end):
        answers = []
        for number, ledger in enumerate(self.ledgers):
            at = ledger.get(task, 0)
            script = self.refuse.get((number, task, start))
            if script:
                answers.append((script.pop(0), at))
            elif end <= at:
                answers.append((PushOutcome.APPLIED, at))
            elif start == at:
                ledger[task] = end
                self.applied[number].append((task, start, end))
                answers.append((PushOutcome.APPLIED, end))
            else:
                answers.append((PushOutcome.GAP, at))
        for worst in PushOutcome:
            positions = [at for outcome, at in answers if outcome == worst]
            if positions:
                return PushResult(worst, (0, 0), min(positions) if worst.name == "GAP" else None)
        raise AssertionError


class WindowedServers(Servers):
    def __init__(self, shards, **options):
        super().__init__(**options)
        self.push = shards.push


ALL_SPANS = [(n, a, b) for n in (1, 2) for _, a, b in SPANS]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    "refuse",
    [
        {},
        {(0, 1, 0): [PushOutcome.STALE]},
        {(1, 1, 4): [PushOutcome.STALE, PushOutcome.STALE]},
        {(0, 1, 4): [PushOutcome.UNINITIALIZED], (1, 1, 8): [PushOutcome.STALE]},
    ],
)
def test_a_window_of_pushes_applies_every_span_once_in_order(refuse, backwards):
    """A shard may refuse anything, and pushes under way together arrive the wrong way round."""
    shards = Shards(
        2, arrive=lambda p: list(reversed(p)) if backwards else list(p), refuse=dict(refuse)
    )
    master = Master([task(1), task(2)])
    run(master, WindowedServers(shards), pull_ahead=1, push_window=2)

    assert [ALL_SPANS, ALL_SPANS] == shards.applied
    assert [("done", 1, 1, 10, b""), ("done", 2, 1, 10, b"")] == master.reports
    assert 2 == shards.most_waiting


def test_a_push_behind_a_refused_one_is_sent_again_and_not_computed_again():
    shards = Shards(2, refuse={(0, 1, 0): [PushOutcome.STALE]})
    servers = WindowedServers(shards)
    run(Master([task(1)]), servers, pull_ahead=1, push_window=2)

    assert [(1, 0), (1, 4), (1, 8)] == sorted(set(servers.computed))
    assert {(1, 0): 2, (1, 4): 1, (1, 8): 1} == {
        s: servers.computed.count(s) for s in servers.computed
    }


def test_a_push_behind_one_that_is_fenced_is_dropped_with_it():
    shards = Shards(2, refuse={(0, 1, 0): [PushOutcome.FENCED], (1, 1, 0): [PushOutcome.FENCED]})
    master, servers = Master([task(1), task(2)]), WindowedServers(shards)
    run(master, servers, pull_ahead=1, push_window=2)

    assert [span for span in ALL_SPANS if span[0] == 2] == shards.applied[0]
    assert [("done", 2, 1, 10, b"")] == master.reports
    assert 2 <= len(servers.withdrawn)  # the fenced one, and the one behind it


def test_a_gap_that_is_there_when_a_push_is_alone_rewinds():
    """A server that was restored lacks spans that had been acknowledged."""
    shards = Shards(2)
    servers = WindowedServers(shards)

    def compute(stream):
        if stream[1:] == (1, 8) and servers.computed.count((1, 8)) == 1:
            with shards.lock:
                while shards.ledgers[1].get(1, 0) < 4:
                    shards.answer() or shards.lock.wait(0.05)
                shards.ledgers[1][1] = 0  # its snapshot was older

    servers.compute = compute
    master = Master([task(1)])
    run(master, servers, pull_ahead=1, push_window=2)

    assert SPANS == shards.applied[0]
    assert SPANS == shards.applied[1][-3:]
    assert [("done", 1, 1, 10, b"")] == master.reports


@pytest.mark.parametrize("outcome", [PushOutcome.STALE, PushOutcome.FENCED, PushOutcome.GAP])
def test_gradients_that_are_not_applied_are_withdrawn(outcome):
    servers = Servers({(1, 4): [(outcome, 4)]})
    run(Master([task(1)]), servers)

    assert 1 == len(servers.withdrawn)


@pytest.mark.parametrize("push_window", [2, 3, 4])
def test_a_pull_ahead_sees_all_pushes_but_the_newest_of_the_window(push_window):
    servers = WindowedServers(Shards(push_window))
    run(Master([task(1, size=40)]), servers, pull_ahead=1, push_window=push_window)

    assert [(k, int(k >= push_window)) for k in range(9)] == servers.awaited


def test_of_a_careful_task_each_span_is_told_before_it_is_read_and_after_the_last_is_applied():
    """Broken once: TaskStream._begin does not wait for the consumer."""
    master, log = Master([task(1, careful=True), task(2, size=4)]), []
    master.reports = log

    class Recorded(Servers):
        def push(self, number, attempt, start, end, gradients):
            log.append(("push", number, start, end))
            return super().push(number, attempt, start, end, gradients)

    def feed(records, mode):
        log.append(("feed", len(records)))
        return records, records

    servers = Recorded()
    run(master, servers, feed=feed)

    spans = [(0, 4), (4, 8), (8, 10)]
    expected = [
        step
        for start, end in spans
        for step in (
            ("begins", 1, start, end),
            ("feed", end - start),
            ("push", 1, start, end),
        )
    ]
    end = [("begins", 1, 10, 10), ("done", 1, 1, 10, b"")]
    assert [*expected, *end] == log[: len(expected) + 2]
    assert servers.applied == [*SPANS, (2, 0, 4)]


def test_a_feed_that_calls_sys_exit_is_content_that_fails():
    def feed(records, mode):
        raise SystemExit(0)

    master = Master([task(1, size=4)])
    run(master, Servers(), feed=feed)

    assert [("failed", 1, 0, 4, "SystemExit: 0")] == master.reports


def test_a_worker_that_ends_by_an_error_of_ours_hands_back_so_that_no_record_is_blamed():
    def compute(stream):
        raise EdlError("the servers are gone")

    master = Master([task(1, size=4)])
    with pytest.raises(EdlError, match="the servers are gone"):
        run(master, Servers(compute=compute))

    assert ("handed back", 1, 0) == master.reports[-1]
