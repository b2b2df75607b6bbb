"""How many nodes would pay: by the band of utility, by deadline, by budget; none flaps."""

from dataclasses import replace

import pytest

from edl.common.errors import UsageError
from edl.scheduler.asking.fleet import Fleet, Pool
from edl.scheduler.autoscaler import Autoscaler, Rules
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Shape
from edl.scheduler.policy import make_policy
from edl.scheduler.prices import ON_DEMAND, SPOT, Price
from edl.scheduler.speed import unknown_speed

FOUR = Resources(cpu=4)
POOL = Pool(FOUR, most=8)
PRICE = Price(1.0, 0.3)


def job(name="a", **more):
    known = {"speed": lambda s: 10.0 * min(s.workers, 6), "maximum": 64, "left": 1e6}
    return Job(name, worker=Resources(cpu=1), submitted=0.0, **{**known, **more})


def fleet(on_demand=0, spot=0):
    names = {f"d{i}": ON_DEMAND for i in range(on_demand)} | {f"s{i}": SPOT for i in range(spot)}
    return Fleet(names, {}, {})


def asked(scaler, jobs, there, now):
    nodes = [Node(name, FOUR) for name in there.markets]
    return scaler.wanted(jobs, nodes, there, now)


def scaler(pool=POOL, **rules):
    return Autoscaler(pool, make_policy(), Rules(**rules))


def test_a_cluster_grows_and_shrinks_to_the_middle_of_the_band():
    # 6 workers are of use: 6 of 8 cores are 0.75, of 12 are 0.5
    assert asked(scaler(), [job()], fleet(2), 0.0).on_demand == 3
    assert asked(scaler(), [job()], fleet(3), 0.0).nodes == 3
    assert asked(scaler(), [job()], fleet(6), 0.0).on_demand == 6  # not before it was so for long


def test_jobs_without_a_node_get_some_and_no_jobs_none():
    assert asked(scaler(), [job()], fleet(), 0.0).on_demand == 3
    assert asked(scaler(), [], fleet(), 0.0).nodes == 0
    assert asked(scaler(Pool(FOUR, least=2, most=8)), [], fleet(), 0.0).nodes == 2


def test_a_job_of_which_nothing_is_known_gets_no_more_than_its_minimum_needs():
    unknown = job(speed=unknown_speed, minimum=2)

    assert asked(scaler(), [unknown], fleet(), 0.0).nodes == 1
    # below the band with one node already, but not without any
    assert asked(scaler(), [replace(unknown, minimum=1)], fleet(), 0.0).nodes == 1


def test_within_ten_minutes_nothing_flaps_and_fewer_nodes_come_late():
    it, two = scaler(), [job("a"), job("b")]

    times = [60.0 * i for i in range(25)]
    history = [asked(it, two if t < 300 else [], fleet(2), t).nodes for t in times]

    assert history[0] == 6
    changes = [t for i, t in enumerate(times) if i and history[i] != history[i - 1]]
    assert changes == [900]  # since 300 s fewer are right, and so for 600 s
    assert history[-1] == 0


def test_more_nodes_are_of_the_cheap_market_where_the_pool_has_one():
    spot = Pool(FOUR, most=8, spot=("capacity", "spot"))

    wanted = asked(scaler(spot, price=PRICE), [job()], fleet(1), 0.0)

    assert (wanted.on_demand, wanted.spot) == (1, 2)


def test_a_deadline_is_held_with_as_many_nodes_as_it_takes():
    late = job(deadline=3600.0, left=150_000.0)  # 41.7 records/s: five workers
    it = scaler(price=Price(1.0), boot_s=60.0)

    wanted = asked(it, [late], fleet(1), 0.0)

    assert (wanted.spot, wanted.on_demand) == (0, 2)
    assert wanted.why.startswith("a: ")
    assert wanted.is_firm


def test_a_budget_buys_what_ends_soonest_for_it():
    linear = job(speed=lambda s: 10.0 * s.workers, maximum=32, left=72_000.0)
    cheap, dear = replace(linear, budget=0.3), replace(linear, budget=100.0)
    sub = job(speed=lambda s: 10.0 * s.workers**0.5, left=72_000.0, budget=1.5)

    assert asked(scaler(price=Price(1.0)), [dear], fleet(), 0.0).nodes == 8
    assert "cheapest" in asked(scaler(price=Price(1.0)), [cheap], fleet(), 0.0).why
    assert asked(scaler(price=Price(1.0)), [sub], fleet(), 0.0).nodes == 2


def test_without_prices_a_deadline_is_as_any_job():
    assert "utility" in asked(scaler(), [job(deadline=100.0)], fleet(2), 0.0).why


def test_servers_of_a_job_keep_their_nodes_on_demand():
    mine = job(
        held=Shape(1, 1, 1), servers=(1,), server=Resources(cpu=1), servers_on={"d0": 1, "d1": 1}
    )
    it = scaler(Pool(FOUR, most=8, spot=("capacity", "spot")), price=PRICE)

    held = it._held([mine], fleet(3, 2), fleet(3, 2).markets)

    assert (held.spot, held.on_demand, held.pinned) == (2, 3, 2)


def test_numbers_that_make_no_sense_are_said():
    with pytest.raises(UsageError, match="at least 9 nodes and at most 8"):
        scaler(Pool(FOUR, least=9, most=8))
    with pytest.raises(UsageError, match="a band of utility from 0.7 to 0.6"):
        scaler(low=0.7, high=0.6)
