"""The exchanges of replicas, over real gloo groups of threads."""

import datetime
import operator
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, ProcessGroupGloo

from edl.adaptive import collective
from edl.adaptive.collective import Control
from edl.common.errors import UsageError

TIMEOUT = datetime.timedelta(seconds=30)


def together(replicas, body):
    """Return what `body(control)` gives in each of these replicas, by rank."""
    store = HashStore()

    def one(rank):
        group = ProcessGroupGloo(store, rank, replicas, TIMEOUT)
        return body(Control(group, rank, replicas))

    with ThreadPoolExecutor(replicas) as threads:
        return list(threads.map(one, range(replicas)))


VALUE = {"a": [1, 2.5, None, True, "é" * 1000], "b": {}}


@pytest.mark.parametrize("replicas", [2, 3])
def test_all_replicas_get_the_value_of_the_source(replicas):
    values = together(replicas, lambda c: c.broadcast(VALUE if c.rank == 1 else None, source=1))

    assert [VALUE] * replicas == values


def test_bytes_of_none_and_of_many_arrive(process):
    sent = [b"", os.urandom(100_000)]
    values = together(2, lambda c: [c.broadcast_bytes(d if c.rank == 0 else b"") for d in sent])

    assert [sent, sent] == values


def test_values_are_gathered_by_rank(process):
    assert [["", "1", "11"]] * 3 == together(3, lambda c: c.gather("1" * c.rank))


def test_values_are_reduced_in_the_order_of_the_ranks(process):
    assert ["012"] * 3 == together(3, lambda c: c.allreduce(str(c.rank)))
    assert [2] * 3 == together(3, lambda c: c.allreduce(c.rank, max))
    assert [0] * 3 == together(3, lambda c: c.allreduce(c.rank, operator.mul))


def test_a_flag_of_one_replica_is_known_to_all_at_the_next_exchange(process):
    def body(control):
        mine = control.rank == 1
        return [
            control.exchange((step == 1 and mine, False), 7 + control.rank) for step in range(4)
        ]

    no, yes = ((False, False), 7), ((True, False), 7)
    assert [[(no[0], 1), no, yes, no]] * 3 == together(3, body)


def test_what_an_exchange_found_can_be_had_at_once_and_is_had_once(process):
    def body(control):
        control.exchange((control.rank == 1,))
        return control.settle(), control.settle(), control.exchange((False,))

    assert [((True,), (), ((False,), 1))] * 2 == together(2, body)


def test_alone_everything_is_its_own(process):
    control = Control()

    assert (3, [3], 3) == (control.broadcast(3), control.gather(3), control.allreduce(3))
    assert [((False,), 1), ((True,), 4)] == [
        control.exchange((True,), 4),
        control.exchange((False,)),
    ]
    assert (3, 3) == (collective.broadcast(3), collective.allreduce(3))


def test_tensors_arrays_and_containers_are_reduced(process):
    def body(control):
        value = {("a", 1): torch.tensor([control.rank, 1]), "b": np.float64(0.5)}
        return control.allreduce(value, lambda a, b: {key: a[key] + b[key] for key in a})

    for value in together(3, body):
        assert [3, 3] == value[("a", 1)].tolist()
        assert np.float64(1.5) == value["b"]


def test_what_one_replica_cannot_send_is_an_error_on_all(process):
    def body(control):
        told = []
        for call in (control.gather, lambda value: control.broadcast(value, source=1)):
            with pytest.raises(UsageError) as caught:
                call(object() if control.rank == 1 else 0)
            told.append(str(caught.value))
        return [text.partition(" at 0x")[0] for text in told], control.gather(control.rank)

    assert [(["<object object"] * 2, [0, 1])] * 2 == together(2, body)


def groups(replicas):
    """Return what makes more groups, by rank."""
    stores = [HashStore() for _ in range(2)]

    def another(rank):
        made = iter(stores)
        return lambda: ProcessGroupGloo(next(made), rank, replicas, TIMEOUT)

    return another


def test_what_is_reduced_asynchronously_waits_for_nobody(process):
    """Replica 0 asks for two sums and then talks; the other talks between them, and never asks for
    one.
    """
    another, step = groups(2), threading.Barrier(2, timeout=30)

    def body(control):
        control._another = another(control.rank)
        first = control.allreduce_async([control.rank])
        if control.rank == 0:
            second = control.allreduce_async("a")
            assert not second.done()
        step.wait()
        said = control.gather(control.rank)
        if control.rank == 0:
            step.wait()
            return said, first.result(30), second.result(30)
        control.allreduce_async("b")
        step.wait()
        return said

    assert [([0, 1], [0, 1], "ab"), [0, 1]] == together(2, body)


def test_an_asynchronous_value_is_the_one_of_the_call_and_errors_come_with_the_result(process):
    value = [1]
    future, wrong = collective.allreduce_async(value), collective.allreduce_async(object())
    value.append(2)

    assert [1] == future.result(30)
    with pytest.raises(UsageError, match="cannot be sent"):
        wrong.result(30)


def test_what_cannot_be_sent_is_refused(process):
    with pytest.raises(UsageError, match="cannot be sent"):
        collective.broadcast(object())


def test_one_process_can_be_initialized_torn_down_and_initialized_again(process, monkeypatch):
    with pytest.raises(RuntimeError, match="initialize"):
        collective.teardown()
    for _ in range(2):
        collective.initialize("127.0.0.1", None, replica_rank=0, num_replicas=1)
        with pytest.raises(RuntimeError, match="once"):
            collective.initialize()
        assert 3 == collective.allreduce(3)
        collective.teardown()


def test_replicas_that_nobody_told_a_place_to_meet_say_so(process):
    with pytest.raises(UsageError, match="MASTER_PORT"):
        collective.initialize("10.0.0.1", replica_rank=1, num_replicas=2)


def test_several_replicas_that_do_not_know_each_other_are_an_error(process, monkeypatch):
    monkeypatch.setenv("EDL_NUM_REPLICAS", "2")

    with pytest.raises(UsageError, match="init_process_group"):
        collective.broadcast(1)


@pytest.fixture
def signals():
    """Put the process's signal handlers back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_and_no_more(process, signals, monkeypatch, number):
    monkeypatch.undo()
    preemption = collective.Preemption()
    preemption.install()
    before = preemption.requested
    signal.raise_signal(number)

    assert [False, True] == [before, preemption.requested]
