"""The model of a job on servers: both regimes, the knee, planted parameters, few points."""

from __future__ import annotations

import dataclasses
import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.goodput import ServersParams, ServersPoint, fit_servers_params
from edl.goodput.servers import PRIOR_QUEUEING

pytestmark = pytest.mark.fast

PLANTED = ServersParams(
    own_s=0.02,
    own_record_s=1e-4,
    crowding=0.03,
    trip_s=0.004,
    trip_server_s=0.001,
    trip_record_s=5e-6,
    serve_s=0.002,
    serve_record_s=2e-5,
    hot=0.1,
    hidden=0.0,
    queueing=0.6,
)
BELOW = [(1, 1, 256), (2, 1, 1024), (3, 2, 256)]  # the servers bound nowhere
ACROSS = [(2, 1, 256), (9, 1, 1024), (6, 2, 256), (20, 2, 512)]  # two above the knee
GRID = np.array(
    [(w, p, b) for w in (1, 2, 4, 8, 16, 32) for p in (1, 2, 4) for b in (128, 512, 2048)]
).T


def measured(params, place, random=None, noise=0.0, **unlike):
    """Return the point that a job with these parameters would measure there."""

    def off():
        return math.exp(random.normal(0, noise)) if random else 1.0

    workers, servers, minibatch = place
    own_s = (params.own_s + params.own_record_s * minibatch) * (1 + params.crowding * (workers - 1))
    exchange_s = params.exchange_s(*place)
    point = ServersPoint(
        *place,
        records_per_s=params.throughput(*place) * off(),
        data_s=0.1 * own_s * off(),
        compute_s=0.9 * own_s * off(),
        pull_s=0.4 * exchange_s * off(),
        push_s=0.6 * exchange_s * off(),
        busy=min(1.0, params.busy(*place) * off()),
        share=params.hot + (1 - params.hot) / servers,
    )
    return dataclasses.replace(point, **unlike)


def errors(found, truth):
    return np.abs(found.throughput(*GRID) / truth.throughput(*GRID) - 1)


def knee_of(params, servers, minibatch):
    """Return the first number of workers for which one more adds less than half of a first one."""
    speeds = params.throughput(np.arange(1, 200), servers, minibatch)
    return int(np.argmax(np.diff(speeds) < speeds[0] / 2)) + 1


# -- The model


def test_one_worker_takes_the_sum_of_its_parts():
    round_s = 0.02 + 1e-4 * 512 + 0.004 + 0.001 + 5e-6 * 512 + 0.002 + 2e-5 * 512 * (0.1 + 0.9 / 2)

    assert PLANTED.round_s(1, 2, 512) == pytest.approx(round_s)
    assert PLANTED.throughput(1, 2, 512) == pytest.approx(512 / round_s)


def test_far_above_the_knee_the_hottest_server_is_never_idle():
    serve_s = 0.002 + 2e-5 * 512 * (0.1 + 0.9 / 2)

    assert PLANTED.throughput(500, 2, 512) == pytest.approx(512 / serve_s, rel=1e-2)
    assert PLANTED.busy(500, 2, 512) == pytest.approx(1.0, rel=1e-2)


def test_the_knee_is_where_both_regimes_meet():
    sharp = dataclasses.replace(PLANTED, queueing=0.0)
    knee = sharp.knee(2, 512)

    assert sharp.busy(knee, 2, 512) == pytest.approx(1.0)
    assert sharp.busy(0.9 * knee, 2, 512) < 1.0
    assert sharp.throughput(2 * knee, 2, 512) == pytest.approx(sharp.throughput(knee, 2, 512))


def test_the_whole_of_p_mu_without_hot_rows():
    """The knee of the plain formula: w = p mu / (B u rate), of which u rate B is a round's load."""
    plain = ServersParams(0.09, 0, 0, 0.005, 0, 0, 0, 1e-4, 0, 0, 0)
    mu = 1 / 1e-4  # records a second of one server
    for servers in (1, 2, 4):
        alone = 256 / (0.095 + 1e-4 * 256 / servers)  # records a second that one worker asks for
        assert plain.knee(servers, 256) == pytest.approx(servers * mu / alone)


def test_workers_that_share_cores_may_never_reach_the_servers():
    assert dataclasses.replace(PLANTED, crowding=0.5).knee(4, 512) == math.inf


@pytest.mark.parametrize("queueing", [0.0, 0.6, 1.0])
def test_what_overlaps_is_the_longer_part(queueing):
    hidden = dataclasses.replace(PLANTED, hidden=1.0, crowding=0.0, queueing=queueing)

    assert hidden.round_s(1, 1, 512) == pytest.approx(0.02 + 1e-4 * 512)
    assert hidden.round_s(100, 1, 512) == pytest.approx(100 * (0.002 + 2e-5 * 512), rel=0.05)


def test_meets_the_network_of_random_times():
    """Mean value analysis (Reiser and Lavenberg 1980), exact; Schweitzer's errs by a few %."""
    params = ServersParams(0.1, 0, 0, 0, 0, 0, 0.01, 0, 0, 0, 1.0)
    queue = 0.0
    for workers in range(1, 41):
        served = 0.01 * (1 + queue)
        queue = workers * served / (0.1 + served)
        assert params.round_s(workers, 1, 64) == pytest.approx(0.1 + served, rel=0.07)


def simulated_round_s(own_s, serve_s, workers, random, rounds=2000):
    """Return the mean round of workers that queue for one server, all times varying by 20 %."""
    wakes = [(random.random() * own_s, worker) for worker in range(workers)]
    heapq.heapify(wakes)
    free = 0.0
    for _ in range(rounds):
        wake, worker = heapq.heappop(wakes)
        free = max(wake, free) + serve_s * random.lognormal(-0.02, 0.2)
        heapq.heappush(wakes, (free + own_s * random.lognormal(-0.02, 0.2), worker))
    return workers * free / rounds


def test_the_knee_is_neither_sharp_nor_that_of_random_times():
    random = np.random.default_rng(0)
    off = dict.fromkeys((0.0, PRIOR_QUEUEING, 1.0), 0.0)
    places = [(serve, w) for serve in (0.1, 0.2, 0.5) for w in (2, 3, 5, 6, 11, 12, 20)]
    for serve_s, workers in places:
        round_s = simulated_round_s(1.0, serve_s, workers, random)
        for queueing in off:
            params = ServersParams(1.0, 0, 0, 0, 0, 0, serve_s, 0, 0, 0, queueing)
            off[queueing] += abs(params.round_s(workers, 1, 1) / round_s - 1) / len(places)

    assert off[PRIOR_QUEUEING] < 0.025
    assert off[PRIOR_QUEUEING] < off[0.0] / 1.5
    assert off[PRIOR_QUEUEING] < off[1.0] / 1.5


def test_a_wait_is_part_of_the_exchange():
    assert PLANTED.exchange_s(12, 1, 512) > 2 * PLANTED.exchange_s(1, 1, 512)


def test_arrays_broadcast_and_numbers_give_numbers():
    found = PLANTED.throughput([[1], [2], [3]], [1, 2], 512)

    assert found.shape == (3, 2)
    assert found[1, 1] == PLANTED.throughput(2, 2, 512)
    assert isinstance(PLANTED.throughput(2, 2, 512), float)
    assert isinstance(PLANTED.knee(2, 512), float)
    assert PLANTED.knee([1, 2, 4], 512).shape == (3,)


# -- The fit


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("places", [BELOW, ACROSS])
def test_finds_planted_parameters(places, hidden):
    planted = dataclasses.replace(PLANTED, hidden=hidden)
    found = fit_servers_params([measured(planted, place) for place in places])

    assert errors(found, planted).max() < 0.08
    for name in ("serve_s", "serve_record_s", "hot", "own_s", "own_record_s"):
        assert getattr(found, name) == pytest.approx(getattr(planted, name), rel=0.03), name
    assert found.hidden == pytest.approx(hidden, abs=0.02)
    assert found.trip_s + 256 * found.trip_record_s == pytest.approx(
        planted.trip_s + 256 * planted.trip_record_s, rel=0.15
    )


@pytest.mark.parametrize("queueing", [0.0, 1.0])
def test_finds_how_sharp_the_knee_is_where_points_tell(queueing):
    planted = dataclasses.replace(PLANTED, queueing=queueing, crowding=0.0)
    found = fit_servers_params([measured(planted, (w, 1, 512)) for w in (1, 4, 6, 8)])

    assert found.queueing == pytest.approx(queueing, abs=0.15)


def test_predicts_the_knee_from_points_below_it():
    found = fit_servers_params([measured(PLANTED, place) for place in BELOW])

    for servers, minibatch in ((1, 256), (1, 1024), (2, 512), (4, 2048)):
        assert found.knee(servers, minibatch) == pytest.approx(
            PLANTED.knee(servers, minibatch), rel=0.05
        )
        assert abs(knee_of(found, servers, minibatch) - knee_of(PLANTED, servers, minibatch)) <= 1


def test_predicts_with_noise():
    random = np.random.default_rng(1)
    for _ in range(5):
        points = [measured(PLANTED, place, random, noise=0.03) for place in ACROSS]
        off = errors(fit_servers_params(points), PLANTED)
        assert np.median(off) < 0.05
        assert off.max() < 0.3


def test_without_the_servers_share_the_points_above_the_knee_tell():
    points = [measured(PLANTED, place, busy=None, share=None) for place in ACROSS]
    found = fit_servers_params(points)

    assert np.median(errors(found, PLANTED)) < 0.1


def test_one_point_is_met_and_the_rest_is_hoped_for():
    found = fit_servers_params([measured(PLANTED, (2, 1, 512))])

    assert found.throughput(2, 1, 512) == pytest.approx(PLANTED.throughput(2, 1, 512), rel=0.02)
    assert found.busy(2, 1, 512) == pytest.approx(PLANTED.busy(2, 1, 512), rel=0.02)
    assert found.crowding == pytest.approx(0.0, abs=0.01)
    assert found.hot == pytest.approx(0.0, abs=0.01)
    assert found.throughput(2, 4, 512) > found.throughput(2, 1, 512)


# -- What holds for all

seconds = st.floats(0, 10)
small = st.floats(0, 1e-2)
shares = st.floats(0, 1)
all_params = st.builds(
    ServersParams,
    own_s=st.floats(1e-6, 10),
    own_record_s=small,
    crowding=shares,
    trip_s=seconds,
    trip_server_s=st.just(0.0),
    trip_record_s=small,
    serve_s=seconds,
    serve_record_s=small,
    hot=shares,
    hidden=shares,
    queueing=shares,
)


@settings(max_examples=examples(100), deadline=None)
@given(all_params, st.integers(1, 8), st.integers(1, 4096))
def test_more_workers_or_servers_are_never_slower(params, servers, minibatch):
    workers = np.arange(1, 65)
    speeds = params.throughput(workers, servers, minibatch)

    assert np.isfinite(speeds).all()
    assert (np.diff(speeds) >= -1e-9 * speeds[:-1]).all()
    assert (params.throughput(workers, servers + 1, minibatch) >= speeds * (1 - 1e-9)).all()
    assert (params.busy(workers, servers, minibatch) <= 1 + 1e-9).all()
    assert params.knee(servers, minibatch) >= 1


points = st.builds(
    ServersPoint,
    workers=st.integers(1, 100),
    servers=st.just(2),
    minibatch=st.integers(1, 10_000),
    records_per_s=st.floats(1e-3, 1e7),
    data_s=st.floats(0, 1e3),
    compute_s=st.floats(1e-6, 1e3),
    pull_s=st.floats(0, 1e3),
    push_s=st.floats(1e-6, 1e3),
    busy=st.none() | st.floats(1e-3, 1),
    share=st.none() | st.floats(0.5, 1),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(points, min_size=1, max_size=4))
def test_whatever_was_measured_gives_a_model(measured_points):
    found = fit_servers_params(measured_points)

    assert np.isfinite(dataclasses.astuple(found)).all()
    assert np.isfinite(found.throughput(*GRID)).all()


# -- Errors


@pytest.mark.parametrize(
    ("unlike", "says"),
    [
        ({"workers": 0}, "workers are at least 1, not workers=0"),
        ({"servers": 0.5}, "servers are at least 1"),
        ({"minibatch": math.nan}, "minibatch are at least 1"),
        ({"records_per_s": 0.0}, "throughput is above 0"),
        ({"pull_s": -1.0}, "seconds of a phase are finite and at least 0"),
        ({"compute_s": math.inf}, "seconds of a phase are finite"),
        ({"pull_s": 0.0, "push_s": 0.0}, "needs some time at its worker and some of the servers"),
        ({"busy": 1.5}, "busy share of a server is above 0 and at most 1"),
        ({"busy": 0.0}, "busy share of a server is above 0"),
        ({"share": 0.3}, "hottest of 2 servers has at least an equal share"),
    ],
)
def test_says_what_a_point_lacks(unlike, says):
    with pytest.raises(ValueError, match=says):
        fit_servers_params([measured(PLANTED, (2, 2, 256), **unlike)])


def test_says_that_it_needs_points():
    with pytest.raises(ValueError, match="at least one measured point"):
        fit_servers_params([])


@pytest.mark.parametrize(
    ("unlike", "says"),
    [
        ({"hidden": 1.5}, "hidden is from 0 to 1, not 1.5"),
        ({"hot": -0.1}, "hot is from 0 to 1, not -0.1"),
        ({"own_s": math.nan}, "own_s is finite and at least 0, not nan"),
        ({"serve_s": -1.0}, "serve_s is finite and at least 0, not -1"),
    ],
)
def test_says_which_parameter_cannot_be(unlike, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(PLANTED, **unlike)


def test_says_that_a_round_takes_time():
    with pytest.raises(ValueError, match="more than 0 s"):
        ServersParams(*[0.0] * 11)


def test_says_where_there_is_nothing():
    with pytest.raises(ValueError, match="servers are at least 1, not servers=0"):
        PLANTED.throughput([1, 2], [1, 0], 256)
