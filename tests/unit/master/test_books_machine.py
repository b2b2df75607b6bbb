"""The task queue and the shards' ledgers under any storm: every position applied exactly once.

Messages are lost, repeated and reordered; workers are killed, drain, sleep past their lease and go
on as zombies; some records are broken. Shards die, at any time, and are replaced by ones that stand
where their last snapshot does. The ledgers are the servers' own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edl.master.books import audit
from edl.master.books.plan import Kind, Plan
from edl.master.books.task import Failure, Task
from edl.master.books.task_queue import TaskQueue
from edl.ps.books.ledger import Ledger, Span, Verdict

pytestmark = pytest.mark.fast

MINIBATCH = 2
STATES = ("applied", "leased", "todo", "quarantined")  # each record is in one of them


@dataclass
class Held:
    """A lease, as its worker sees it."""

    worker: str
    task: Task
    attempt: int
    position: int
    boundaries: tuple[int, ...]
    skips: frozenset[int]
    acked: set[int] = field(default_factory=set)  # shards that acknowledged the current span
    void: bool = False
    servers: int = 0  # the map of servers that the current span was first sent by

    @property
    def span(self) -> Span | None:
        if self.position == self.task.size:
            return None
        stops = [b for b in (*self.boundaries, self.task.size) if b > self.position]
        end = min(self.position + MINIBATCH, *stops)
        return Span(self.task.id, self.attempt, self.position, end)


class Storm(RuleBasedStateMachine):
    steps = 0

    @initialize(
        shards=st.integers(1, 3),
        workers=st.integers(1, 3),
        epochs=st.integers(1, 2),
        broken=st.frozensets(st.integers(0, 10), max_size=2),
        overlap=st.booleans(),
    )
    def begin(
        self, shards: int, workers: int, epochs: int, broken: frozenset[int], overlap: bool
    ) -> None:
        plan = Plan(
            Kind.TRAIN,
            (("a", 7), ("b", 4)),
            MINIBATCH,
            2,
            num_epochs=epochs,
            shuffle=False,
            overlap_epochs=overlap,
        )
        self.queue = TaskQueue(plan, tolerance=2)
        self.queue.proven.add(Kind.TRAIN)  # or the few broken records may look like all of them
        self.ledgers = [Ledger() for _ in range(shards)]
        self.applied: list[Counter[tuple[int, int]]] = [Counter() for _ in range(shards)]
        self.sizes: dict[int, int] = {}
        self.broken = {("a", r) if r < 7 else ("b", r - 7) for r in broken}
        self.lives = workers
        self.workers = [f"w{n}" for n in range(workers)]
        self.requests = 0
        self.unanswered: dict[str, str] = {}  # worker: request whose reply was lost
        self.held: list[Held] = []
        self.bag: list[tuple] = []  # messages on their way; taken in any order
        # fence and the map of servers that it was sent by: shard: position
        self.answers: dict[tuple[int, int, int], dict[int, int]] = {}
        self.servers = 1  # version of the map of servers
        self.replaced = [1] * shards  # by which version
        self.saved = [self.state_of(shard) for shard in range(shards)]
        self.open()

    def state_of(self, shard: int) -> tuple[Ledger, Counter[tuple[int, int]]]:
        ledger = self.ledgers[shard]
        return Ledger(ledger.entries(), ledger.low_water), self.applied[shard].copy()

    def open(self) -> None:
        queue = self.queue
        while not queue.all_epochs_opened and (
            queue.epochs_done(queue.opened) or (queue.plan.overlap_epochs and not queue.todo)
        ):
            first = queue.plan.first_id_of(queue.open_epoch())
            for number in range(first, queue.plan.first_id_of(queue.opened)):
                self.sizes[number] = queue.find(number).size

    # -- workers

    @rule(who=st.integers(0), reply_lost=st.booleans(), most=st.integers(1, 3))
    def ask(self, who: int, reply_lost: bool, most: int) -> None:
        worker = self.workers[who % len(self.workers)]
        self.requests += 1
        request = self.unanswered.pop(worker, f"r{self.requests}")
        tasks = self.queue.lease_some(worker, request, most)
        for task in tasks:
            earlier = [t for t in self.queue.tasks.values() if t.epoch < task.epoch]
            if not self.queue.plan.overlap_epochs and self.servers == 1:
                assert [] == [t for t in earlier if t.state.value != "done"]
        if reply_lost and tasks:
            self.unanswered[worker] = request
            return
        self.held += [
            Held(worker, task, task.attempt, task.position, task.boundaries, frozenset(task.skips))
            for task in tasks
        ]

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0), shard=st.integers(0))
    def push(self, which: int, shard: int) -> None:
        held = self.held[which % len(self.held)]
        span = held.span
        if span is None:
            self.bag.append(("done", held, held.servers))
            return
        if blamed := self.blame(held, span):
            self.bag.append(("failed", held, span, blamed[0]))
            return
        if not held.acked:
            held.servers = self.servers
        self.bag.append(("push", held, span, shard % len(self.ledgers), self.servers))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0), spans=st.integers(1, 4))
    def work(self, which: int, spans: int) -> None:
        """Push some spans at once, each to all shards."""
        held = self.held[which % len(self.held)]
        for _ in range(spans):
            for shard in range(len(self.ledgers)):
                self.push(self.held.index(held), shard)
                if self.bag[-1][0] == "push":
                    self.handle(self.bag.pop())
                    self.handle(self.bag.pop())
                if held.void:
                    return

    def blame(self, held: Held, span: Span) -> list[int]:
        task = held.task
        return [
            task.start + p
            for p in range(span.start, span.end)
            if p not in held.skips and (task.source, task.start + p) in self.broken
        ]

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0))
    def hand_back(self, which: int) -> None:
        self.bag.append(("hand_back", self.held[which % len(self.held)]))

    @rule(who=st.integers(0), zombie=st.booleans())
    def lose(self, who: int, zombie: bool) -> None:
        index = who % len(self.workers)
        worker = self.workers[index]
        self.queue.lost(worker)
        self.lives += 1
        self.workers[index] = f"w{self.lives}"
        self.unanswered.pop(worker, None)
        if not zombie:
            self.held = [h for h in self.held if h.worker != worker]

    # -- the network

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0), again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:
        which %= len(self.bag)
        message = self.bag[which] if again else self.bag.pop(which)
        self.handle(message)
        self.open()

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0))
    def lose_message(self, which: int) -> None:
        self.bag.pop(which % len(self.bag))

    def handle(self, message: tuple) -> None:
        kind, held, *rest = message
        if kind == "push":
            span, shard, servers = rest
            if servers < self.replaced[shard]:
                return  # its connection is gone
            verdict = self.ledgers[shard].offer(span)
            if verdict is Verdict.APPLY:
                self.ledgers[shard].advance(span)
                self.applied[shard].update((span.task, p) for p in range(span.start, span.end))
                assert max(self.applied[shard].values()) == 1
            stands = self.ledgers[shard].applied(span.task)
            self.bag.append(("ack", held, span, shard, verdict, stands))
        elif kind == "ack":
            span, shard, verdict, stands = rest
            if verdict is Verdict.FENCED:
                self.drop(held)
            elif held.span == span and verdict is Verdict.GAP:
                held.boundaries = (*held.boundaries, held.position, stands)
                held.position, held.acked = min(held.position, stands), set()
            elif held.span == span and verdict is not Verdict.GAP:
                held.acked.add(shard)
                if len(held.acked) == len(self.ledgers):
                    held.position, held.acked = span.end, set()
                    told = (held.worker, held.task.id, held.attempt, held.position)
                    self.queue.progress(*told)
        elif kind == "done":
            doubtful = rest[0] < self.servers
            self.queue.done(held.worker, held.task.id, held.attempt, doubtful=doubtful)
            self.drop(held)
        elif kind == "failed":
            span, record = rest
            failure = Failure(span.start, span.end, "bad", record=record)
            self.queue.failed(held.worker, held.task.id, held.attempt, failure)
            self.drop(held)
        elif kind == "hand_back":
            self.queue.hand_back(held.worker, held.task.id, held.attempt)
            self.drop(held)

    def drop(self, held: Held) -> None:
        held.void = True
        self.held = [h for h in self.held if h is not held]

    # -- the master

    @rule(which=st.integers(0), shard=st.integers(0), answer_lost=st.booleans())
    def fence(self, which: int, shard: int, answer_lost: bool) -> None:
        fencing = self.queue.fencing
        if not fencing:
            return
        fence = fencing[which % len(fencing)]
        shard %= len(self.ledgers)
        applied = self.ledgers[shard].fence(fence.task, fence.attempt)
        assert applied is not None
        if answer_lost:
            return
        key = (fence.task, fence.attempt, self.servers)
        self.answers.setdefault(key, {})[shard] = applied
        self.answered(*key)
        self.open()

    def answered(self, task: int, attempt: int, servers: int) -> None:
        """Take a fence's answers; those of a server that was replaced since say nothing."""
        answers = self.answers[task, attempt, servers]
        if len(answers) == len(self.ledgers) and servers == self.servers:
            self.queue.fenced(task, attempt, [answers[s] for s in sorted(answers)])

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0))
    def late_answer(self, which: int) -> None:
        self.answered(*list(self.answers)[which % len(self.answers)])

    @rule(shard=st.integers(0))
    def snapshot(self, shard: int) -> None:
        shard %= len(self.ledgers)
        self.saved[shard] = self.state_of(shard)

    @rule(shard=st.integers(0))
    def replace(self, shard: int) -> None:
        """Replace a shard as the master does: fence first, then the queue, then tell all."""
        shard %= len(self.ledgers)
        ledger, applied = self.saved[shard]
        self.ledgers[shard], self.applied[shard] = ledger, applied
        self.saved[shard] = self.state_of(shard)
        attempts = self.queue.unretired
        stands = {task: ledger.fence(task, attempt) for task, attempt in attempts.items()}
        assert None not in stands.values()
        self.queue.recovered(stands)
        self.servers += 1
        self.replaced[shard] = self.servers

    @rule(shard=st.integers(0))
    def retire(self, shard: int) -> None:
        sizes = {n: self.sizes[n] for n in self.queue.done_tasks}
        for ledger, _ in self.saved:
            low = ledger.low_water
            sizes = {n: p for n, p in sizes.items() if n < low or ledger.applied(n) == p}
        self.queue.durable(sizes)
        self.ledgers[shard % len(self.ledgers)].retire(self.queue.low_water)

    def check_invariants(self, *args: object, **kwargs: object) -> None:
        type(self).steps += 1
        super().check_invariants(*args, **kwargs)
        if hasattr(self, "queue"):
            all_of_them = 11 * self.queue.plan.num_epochs
            assert all_of_them == self.queue.records_planned >= self.queue.records_done
            found = audit.records(self.queue, self.queue.standing.recomputed)
            assert all_of_them == sum(found[state] for state in STATES)
            assert min(found.values()) >= 0
            runs = audit.tasks(self.queue)["runs"]
            assert self.queue.plan.tasks_of(self.queue.opened - 1) == sum(n for _, n in runs)

    # -- the end: as soon as messages flow, the job ends, and exactly

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for _ in range(500):
            if self.queue.plan_done:
                break
            while self.bag:
                self.handle(self.bag.pop())
            for shard in range(len(self.ledgers)):
                for which in reversed(range(len(self.queue.fencing))):
                    if which < len(self.queue.fencing):
                        self.fence(which, shard, False)
            self.open()
            for who in range(len(self.workers)):
                self.ask(who, False, 1)
            for held in list(self.held):
                for shard in range(len(self.ledgers)):
                    if not held.void:
                        self.push(self.held.index(held), shard)
        assert self.queue.plan_done
        assert self.queue.broken is None
        expected = {(n, p): 1 for n, size in self.sizes.items() for p in range(size)}
        assert [expected] * len(self.ledgers) == [dict(applied) for applied in self.applied]
        assert 11 * self.queue.plan.num_epochs == self.queue.records_done
        named = Counter((q.source, r) for q in self.queue.quarantined for r in q.records)
        assert dict.fromkeys(self.broken, self.queue.plan.num_epochs) == dict(named)
        self.queue.durable(self.queue.done_tasks)
        assert {} == self.queue.tasks
        assert self.queue.plan.first_id_of(self.queue.opened) == self.queue.low_water


def test_every_position_is_applied_once_on_every_shard_whatever_happens():
    Storm.steps = 0
    run_state_machine_as_test(
        Storm,
        settings=settings(
            max_examples=250,
            stateful_step_count=80,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Storm.steps >= 10_000
