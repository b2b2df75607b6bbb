from __future__ import annotations

import numpy as np
import pytest

from edl.nn import StepDecay, optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec
from edl.ps.books.aggregation import Aggregation, Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store

pytestmark = pytest.mark.fast

SPEC = ModelSpec((DenseSpec("w", (2,)),), (), optimizers.SGD(lr=1.0))


def grads(value, ids):
    rows = np.full((len(ids), 2), value, np.float32)
    return Update({("w", 0): np.full(2, value, np.float32)}, {"t": (np.array(ids), rows)})


def store(**policy):
    made = Store(index=0, slot_map=SlotMap(1), policy=Policy(**policy))
    made.init(SPEC, {("w", 0): np.zeros(2, np.float32)}, True)
    return made


def weight(made):
    _, chunks, _ = made.pull(dense=True, known_version=None, tables=[])
    return np.frombuffer(chunks[0][1], np.float32)[0]


def push(made, task, version):
    return made.push(Span(task, 1, 0, 1), version, Update({("w", 0): np.ones(2, np.float32)}))


def test_sync_gives_the_mean_by_chunk_and_by_row():
    aggregation = Aggregation(Policy(grads_to_wait=4))
    pushes = [grads(1, [5, 3]), grads(2, [3]), Update(), grads(5, [9, 5])]

    steps = [aggregation.add(update) for update in pushes]

    assert [None, None, None] == steps[:3]
    np.testing.assert_array_equal(steps[3].dense["w", 0], [2, 2])
    ids, rows = steps[3].rows["t"]
    assert {3: 0.75, 5: 1.5, 9: 1.25} == dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))


def test_a_flushed_incomplete_version_is_divided_by_grads_to_wait_too():
    aggregation = Aggregation(Policy(grads_to_wait=4))
    aggregation.add(grads(8, [1]))

    step = aggregation.flush()

    np.testing.assert_array_equal(step.dense["w", 0], 2)
    assert (0, {}) == (aggregation.pushes, aggregation.sums().dense)


def test_a_push_does_not_change_the_senders_arrays():
    aggregation = Aggregation(Policy(grads_to_wait=3))
    first = grads(1, [1])
    aggregation.add(first)
    aggregation.add(grads(2, [1]))

    np.testing.assert_array_equal(first.dense["w", 0], 1)


def test_async_ignores_grads_to_wait():
    update = grads(1, [1])

    assert Aggregation(Policy(use_async=True, grads_to_wait=4)).add(update) is update


@pytest.mark.parametrize(
    ("bound", "lag", "expected"),
    [(0, 0, Outcome.APPLIED), (0, 1, Outcome.STALE), (2, 2, Outcome.APPLIED), (2, 3, Outcome.STALE)]
    + [(None, 3, Outcome.APPLIED)],
)
def test_a_push_beyond_the_staleness_bound_is_refused_and_not_entered(bound, lag, expected):
    made = store(use_async=True, staleness=bound)
    for task in range(3):
        push(made, task, task)

    pushed = push(made, 9, 3 - lag)

    assert expected == pushed.outcome
    assert (0 if expected is Outcome.STALE else 1) == pushed.applied
    assert (3 if expected is Outcome.STALE else 4) == pushed.version


@pytest.mark.parametrize(("version", "step"), [(4, 1.0), (3, 1.0), (2, 0.5), (0, 0.25)])
def test_a_stale_push_learns_at_the_rate_divided_by_its_staleness(version, step):
    made = store(use_async=True, lr_staleness_modulation=True)
    for task in range(4):
        push(made, task, task)

    push(made, 9, version)

    assert -4 - step == weight(made)


def test_a_schedule_follows_the_version():
    spec = ModelSpec(SPEC.dense, (), optimizers.SGD(lr=StepDecay(1.0, 1, 0.5)))
    made = Store(index=0, slot_map=SlotMap(1), policy=Policy(grads_to_wait=2))
    made.init(spec, {("w", 0): np.zeros(2, np.float32)}, True)

    for task in range(6):
        push(made, task, made.version)

    assert -1.75 == weight(made)


def test_pushes_that_waited_in_a_checkpoint_are_stepped_with_by_an_async_job_too():
    waiting = Update({("w", 0): np.full(2, 3, np.float32)})
    aggregation = Aggregation(Policy(use_async=True), 2, waiting)

    first = aggregation.add(Update({("w", 0): np.ones(2, np.float32)}))
    second = aggregation.add(Update({("w", 0): np.ones(2, np.float32)}))

    np.testing.assert_array_equal(first.dense["w", 0], 4)
    np.testing.assert_array_equal(second.dense["w", 0], 1)
