"""The schedule of an injector."""

import itertools
import signal

import pytest

from edl.chaos.schedule import Injection, Rule, parse, schedule
from edl.common.errors import UsageError

pytestmark = pytest.mark.fast

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("worker:every=20s", Rule("worker", KILL, every_s=20)),
        ("master:at=30s", Rule("master", KILL, at_s=(30,))),
        ("worker:at=10s,500ms,2m", Rule("worker", KILL, at_s=(10, 0.5, 120))),
        ("server:every=60,count=3,index=1", Rule("ps", KILL, every_s=60, count=3, index=1)),
        ("ps:every=60s,signal=STOP,for=5s", Rule("ps", STOP, every_s=60, for_s=5)),
        ("ps:at=1s,signal=sigterm", Rule("ps", TERM, at_s=(1,))),
        ("worker", Rule("worker", KILL, at_s=(0,))),
        ("ps:index=1,signal=STOP", Rule("ps", STOP, at_s=(0,), index=1, for_s=5)),
    ],
)
def test_a_fault_as_a_user_writes_it(text, rule):
    assert rule == parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("workers:every=20s", "'workers' is none of worker, ps, master"),
        ("worker:every=1s,at=2s", "say either every= or at="),
        ("worker:evry=1s", "there is no 'evry'"),
        ("worker:every=soon", "'soon' is no time"),
        ("worker:every=0s", "more than 0"),
        ("worker:every=1s,2s", "every= has one value"),
        ("worker:at=1s,signal=HUP", "signal= is one of KILL, STOP, TERM"),
        ("worker:at=1s,for=5s", "it goes with STOP"),
        ("worker:at=1s,index=-1", "'-1' is no whole number"),
    ],
)
def test_a_fault_that_makes_no_sense_is_one_clear_error(text, why):
    with pytest.raises(UsageError, match="is no fault") as error:
        parse(text)

    assert why in str(error.value)


def test_the_same_seed_says_the_same_and_another_says_another():
    rules = [parse("worker:every=20s"), parse("ps:every=60s")]

    def first(seed):
        return list(itertools.islice(schedule(rules, seed), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_gaps_are_exponential_with_the_mean_that_was_said():
    gaps, last = [], 0.0
    for each in itertools.islice(schedule([parse("worker:every=20s")], 3), 5000):
        gaps.append(each.at_s - last)
        last = each.at_s

    assert 19 < sum(gaps) / len(gaps) < 21
    assert 0.36 < sum(gap > 20 for gap in gaps) / len(gaps) < 0.38  # 1/e


def test_all_faults_come_in_order_of_time_and_count_ends_them():
    rules = [parse("worker:every=20s,count=5"), parse("master:at=30s,10s")]
    found = list(schedule(rules, 0))

    assert sorted(found) == found
    assert [10, 30] == [each.at_s for each in found if each.role == "master"]
    assert 5 == sum(each.role == "worker" for each in found)


@pytest.mark.parametrize(
    ("draw", "index", "there", "hit"),
    [
        (0.0, None, [2, 0, 1], 0),
        (0.99, None, [2, 0, 1], 2),
        (0.5, None, [], None),
        (0.5, 1, [0, 1], 1),
        (0.5, 7, [0, 1], None),
    ],
)
def test_a_drawn_number_picks_a_replica_unless_an_index_is_said(draw, index, there, hit):
    assert hit == Injection(0.0, "worker", draw, KILL, index=index).pick(there)
