import math

import pytest

from edl.scheduler.cluster import Resources
from edl.scheduler.nodes import (
    Held,
    Offer,
    Steady,
    Use,
    Wanted,
    by_budget,
    by_deadline,
    by_utility,
    expected,
    utility,
)
from edl.scheduler.spot import Forecast, Terms

HOUR = 3600.0
# half of the time spot machines, for an hour each time
EVEN = Forecast(up_s=5 * HOUR, seen_s=10 * HOUR, ends=5)
LINEAR = tuple(float(k) for k in range(9))  # records/s


def terms(**changed):
    return Terms(
        **{"on_demand": 3.0, "spot": 1.0, "speeds": LINEAR, "changeover_s": 60.0, **changed}
    )


def offer(kind="a", forecast=EVEN, offered=0, **changed):
    return Offer(kind, terms(**changed), forecast, offered)


def test_utility_by_hand():
    # 8 GPUs, 16 cores. GPUs: 3 x 1 / 8 + 2 x 1 / 8 = 0.625; cores: 3 x 1 / 16 + 2 x 4 / 16 = 0.6875
    uses = [Use(3.0, Resources(cpu=1, gpu=1)), Use(2.0, Resources(cpu=4, gpu=1))]

    assert utility(uses, Resources(cpu=16, gpu=8)) == pytest.approx(0.6875)
    assert utility([], Resources(cpu=16)) == 0


@pytest.mark.parametrize(
    ("held", "utilities", "nodes"),
    [
        (2, {1: 0.9, 2: 0.65, 3: 0.5}, 2),  # within, borders included
        (2, {1: 0.5, 2: 0.35, 3: 0.2}, 2),
        (2, {1: 0.9, 2: 0.7, 3: 0.52, 4: 0.47}, 3),  # 0.02 from the middle beats 0.03
        (2, {1: 0.9, 2: 0.7, 3: 0.55, 4: 0.45}, 4),  # a tie: the larger one
        (4, {1: 0.8, 2: 0.45, 3: 0.34, 4: 0.2}, 2),
        (4, {1: 0.9, 3: 0.34, 4: 0.2}, 1),  # one below the band is no answer, however close
        (2, {1: 0.3, 2: 0.2}, 2),  # nothing reaches the band: as it is
    ],
)
def test_the_band_answers_as_adaptdls_does(held, utilities, nodes):
    wanted = by_utility(Held("a", on_demand=held), utilities)

    assert wanted.nodes == wanted.on_demand == nodes
    assert f"{utilities[held]:.2f}" in wanted.why


def test_more_nodes_come_from_the_market_and_dear_ones_go_first():
    held = Held("a", spot=2, on_demand=2, pinned=1)

    more = by_utility(held, {4: 0.9, 6: 0.5}, "spot")
    fewer = by_utility(held, {4: 0.2, 2: 0.5})

    assert (more.spot, more.on_demand) == (4, 2)
    assert (fewer.spot, fewer.on_demand) == (1, 1)  # one of the two on-demand nodes is pinned


def test_a_deadline_far_away_waits_for_spot():
    wanted = by_deadline([offer()], Held("a"), left=8 * 10 * HOUR, time_left_s=40 * HOUR)

    assert (wanted.spot, wanted.on_demand) == (8, 0)
    assert "0 of 8 on-demand meanwhile" in wanted.why


def test_a_deadline_that_is_nearer_has_a_fraction_on_demand():
    # 7.5 h of work at full speed (margin included) in 10: half of the time spot, so that in the
    # other half some half of the workers must go on
    wanted = by_deadline([offer()], Held("a"), left=8 * 7.5 * HOUR, time_left_s=10 * HOUR, margin=0)

    assert wanted.spot == 8
    assert wanted.on_demand == 4


def test_with_no_slack_left_it_is_on_demand_to_the_end():
    held = Held("a", on_demand=8)

    wanted = by_deadline([offer(offered=8)], held, left=8 * HOUR, time_left_s=HOUR + 100, margin=0)

    assert (wanted.spot, wanted.on_demand) == (0, 8)
    assert "on-demand until the end" in wanted.why


def test_spot_nodes_that_work_are_kept_and_on_demand_ones_bridge_until_others_do():
    job = {"left": 8 * 7.5 * HOUR, "time_left_s": 10 * HOUR}

    coming = by_deadline([offer(offered=8)], Held("a", spot=8, on_demand=4), **job)
    there = by_deadline([offer(offered=8)], Held("a", spot=8, working=8, on_demand=4), **job)

    assert (coming.spot, coming.on_demand) == (8, 4)
    assert (there.spot, there.on_demand) == (8, 0)


def test_some_spot_nodes_taken_away_are_made_up_for():
    held = Held("a", spot=5, working=5)

    wanted = by_deadline([offer(offered=5)], held, left=8 * HOUR, time_left_s=HOUR + 90, margin=0)

    assert wanted.on_demand == 3


def test_a_deadline_that_cannot_be_met_is_said_and_hurried_to():
    wanted = by_deadline([offer()], Held("a"), left=8 * 2 * HOUR, time_left_s=HOUR)

    assert (wanted.spot, wanted.on_demand) == (0, 8)
    assert "cannot be met" in wanted.why


def test_spot_that_costs_more_is_not_taken():
    dear = offer(offered=8, spot=3.5)

    wanted = by_deadline([dear], Held("a"), left=8 * 5 * HOUR, time_left_s=10 * HOUR, margin=0)

    assert (wanted.spot, wanted.on_demand) == (0, 4)  # half of the speed ends in time
    assert "spot does not pay" in wanted.why


def test_the_cheapest_kind_that_is_fast_enough_is_taken_and_a_little_cheaper_is_not_enough():
    slow = offer("slow", speeds=(0.0, 0.5), on_demand=0.1, spot=0.1)
    fast = offer("fast", on_demand=2.8)
    near, far = (8 * HOUR, 2 * HOUR), (HOUR, 10 * HOUR)

    assert by_deadline([slow, fast], Held(""), *near).kind == "fast"
    assert by_deadline([slow, fast], Held(""), *far).kind == "slow"
    assert by_deadline([offer("a"), fast], Held("a"), 8 * 9 * HOUR, 10 * HOUR).kind == "a"


def test_what_a_rest_is_expected_to_cost_by_hand():
    # a spell of an hour costs a changeover of a minute: spot is of use 59/120 of the time.
    # 6 h of 8 machines in 10 h: 4.9167 on spot at 8 x 1 x 60/59, 1.0833 on-demand at 8 x 3
    dollars = expected(offer(), 8 * 6 * HOUR, 10 * HOUR)

    assert dollars == pytest.approx(4.91667 * 8 * 60 / 59 + 1.08333 * 24, rel=1e-4)
    assert expected(offer(), 8 * 10 * HOUR, 10 * HOUR) == math.inf


def test_a_budget_buys_the_soonest_end():
    # 8 h of one machine: $24 on-demand; half of the time spot: some $16; waiting for spot: some $8
    asked = {"left": 8 * HOUR, "offers": [offer()]}

    rich, half, poor, broke = (by_budget(dollars=d, **asked) for d in (30, 20, 10, 5))

    assert (rich.spot, rich.on_demand) == (0, 8)
    assert (half.spot, half.on_demand) == (8, 8)
    assert (poor.spot, poor.on_demand) == (8, 0)
    assert "is the cheapest, and more than the $5.00" in broke.why
    assert "waiting while there is none" in broke.why


def test_a_budget_buys_fewer_nodes_where_more_are_less_efficient():
    curved = tuple(math.sqrt(k) for k in range(9))  # $ a record grow with the root of the nodes
    dear = offer(speeds=curved, spot=9.0)

    assert by_budget([dear], HOUR, 6.01).on_demand == 4
    assert by_budget([dear], HOUR, 3.01).on_demand == 1


def test_a_job_that_is_asked_about_each_minute_ends_in_time_and_for_less():
    steady = Steady(wanted(0))
    forecast, held, left, dollars, was_up = EVEN, Held("a"), 8 * 6 * HOUR, 0.0, False
    for minute in range(8 * 60):
        is_up = minute // 50 % 2 == 0  # 50 minutes with spot nodes, 50 without
        spot = held.spot if is_up else 0
        held = Held("a", spot, spot, held.on_demand)  # what was asked for a minute ago works now
        forecast = forecast.after(60.0, is_up, was_up and not is_up)
        asked = [offer(forecast=forecast, offered=8 * is_up)]
        found, steady = steady.settle(
            by_deadline(asked, held, left, (8 * 60 - minute) * 60.0), minute * 60.0
        )
        left -= 60.0 * min(held.working + held.on_demand, 8)
        dollars += (held.spot * 1.0 + held.on_demand * 3.0) / 60
        if left <= 0:
            break
        held = Held("a", found.spot * is_up, held.working, found.on_demand)
        was_up = is_up

    assert left <= 0
    assert dollars < 0.65 * 8 * 6 * 3.0


def wanted(nodes, is_firm=False, kind="a"):
    return Wanted(kind, 0, nodes, nodes, f"{nodes} are right", is_firm)


def test_sizes_do_not_flap():
    steady, asked = Steady(wanted(4)), []
    for minute in range(60):  # the answer swings each minute
        found, steady = steady.settle(wanted(4 + minute % 2), minute * 60)
        asked.append(found.nodes)

    changes = [minute for minute in range(1, 60) if asked[minute] != asked[minute - 1]]
    assert changes == [1]  # up once, and never down, as fewer were never right for ten minutes


def test_fewer_nodes_must_have_been_right_for_a_while():
    steady, asked = Steady(wanted(4), changed_at=0.0), []
    for minute in range(30):
        found, steady = steady.settle(wanted(2), minute * 60)
        asked.append(found.nodes)

    assert asked == [4] * 10 + [2] * 20


def test_more_nodes_after_more_come_at_once():
    found, after = Steady(wanted(4), changed_at=0.0).settle(wanted(6), 5.0)

    assert (found.nodes, after.changed_at) == (6, 5.0)


def test_after_nodes_were_given_back_more_wait_and_it_is_said():
    steady = Steady(wanted(6), changed_at=-600.0, fewer_since=-600.0)
    found, steady = steady.settle(wanted(4), 0.0)
    assert found.nodes == 4

    found, after = steady.settle(wanted(6), 240)

    assert found.nodes == 4
    assert found.why == "no change for 360 s more (4 are right), then: 6 are right"
    assert after.settle(wanted(6), 600)[0].nodes == 6


def test_what_a_deadline_asks_for_passes():
    found, steady = Steady(wanted(4), changed_at=0.0).settle(wanted(8, is_firm=True), 60)

    assert found.nodes == 8
    assert steady.changed_at == 60
