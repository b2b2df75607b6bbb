"""The model of a job: fitted costs, queues, bottlenecks."""

from dataclasses import replace

import pytest

from benchmarks.model import Cost, Costs, Job, Station, Work, cycle_s, fit, step

pytestmark = pytest.mark.fast


def test_costs_are_found_again_in_what_they_make():
    cost = Cost(20e-6, 30e-9, 0.5e-9, 0.2e-9)
    works = [Work(1, n, n * d * 4, m) for n in (1, 1e3, 1e5) for d in (4, 64) for m in (0, 1e6)]

    found = fit([(work, cost.of(work)) for work in works])

    assert [cost.request_s, cost.row_s, cost.row_byte_s, cost.dense_byte_s] == pytest.approx(
        [found.request_s, found.row_s, found.row_byte_s, found.dense_byte_s]
    )


def test_no_cost_is_negative():
    points = [(Work(1, rows), seconds) for rows, seconds in ((1, 3.0), (2, 2.0), (3, 1.0))]

    found = fit(points)

    assert found.row_s == 0.0
    assert found.request_s > 0


def test_one_customer_waits_for_nobody():
    stations = [Station("a", 3.0, 0), Station("b", 2.0, 4), Station("c", 1.0)]

    assert cycle_s(stations, 1) == pytest.approx(6.0)


def test_many_customers_are_as_fast_as_the_busiest_station():
    stations = [Station("think", 5.0, 0), Station("slow", 2.0), Station("fast", 1.5, 3)]

    assert cycle_s(stations, 1000) == pytest.approx(2000.0, rel=0.01)


def test_two_customers_of_one_station_take_turns():
    # Exact for a balanced network: R = D(1 + (N - 1) / K) at each of K stations, here D = 1.
    assert cycle_s([Station("a", 1.0), Station("b", 1.0)], 2) == pytest.approx(3.0)


COSTS = Costs(Cost(10e-6, 20e-9), Cost(10e-6, 50e-9), Cost(10e-6, 20e-9), Cost(10e-6, 90e-9))
CALL = Work(20, 30_000, 30_000 * 64)
JOB = Job(
    workers=100,
    servers=20,
    server_cores=4,
    network_bits_s=25e9,
    compute_s=0.1,
    pull=CALL,
    push=CALL,
)


def test_a_slow_model_is_the_bottleneck_and_its_own_time_the_step():
    found = step(JOB, COSTS)

    assert found.bottleneck == "the workers' compute"
    assert found.step_s == pytest.approx(JOB.compute_s + COSTS.client(CALL, CALL))


def test_fast_models_wait_for_the_servers():
    found = step(replace(JOB, compute_s=0.001, server_cores=1), COSTS)

    assert found.bottleneck == "the servers' cores"
    assert found.step_s == pytest.approx(100 * COSTS.server(CALL, CALL) / 20, rel=0.2)


def test_a_slow_network_is_named():
    found = step(replace(JOB, compute_s=0.001, network_bits_s=1e9), COSTS)

    ids_and_gradients = 8 * 2 * CALL.rows + CALL.row_nbytes  # more than the rows that go out
    one_server_s = 100 * ids_and_gradients / 20 * 1.05 / (1e9 / 8)
    assert found.bottleneck == "the servers' network, in"
    assert found.step_s == pytest.approx(one_server_s, rel=0.3)


def test_without_overlap_a_step_is_longer():
    assert step(replace(JOB, ahead=False), COSTS).step_s > step(JOB, COSTS).step_s
