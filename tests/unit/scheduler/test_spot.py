import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from benchmarks.spot import ON_DEMAND, RECORDS, SPOT, Greedy, Ours, UniformProgress, one, play
from edl.scheduler.simulator.weather import AVAILABILITIES, Weather
from edl.scheduler.spot import Forecast, Moment, Terms, choose

HOUR = 3600.0
TICK = 60.0
RUNS = 6


@st.composite
def skies(draw, ticks):
    """Shares of the spot machines that there are: spells of any lengths, or noise."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = draw(st.sampled_from([1, 2, 3, 5, 13, 60, 400]))
    levels = draw(st.sampled_from([(0.0, 1.0), (0.0, 0.4, 1.0), (0.0,), (1.0,), (0.5, 1.0)]))
    shares = random.choice(levels, size=(ticks // length + 1, RUNS))
    return np.repeat(shares, length, axis=0)[:ticks]


@settings(max_examples=examples(60), deadline=None)
@given(
    data=st.data(),
    workers=st.sampled_from([1, 2, 5, 8]),
    power=st.sampled_from([1.0, 0.7]),
    changeover_s=st.sampled_from([1.0, 59.0, 180.0, 720.0]),
    work_h=st.floats(0.5, 5),
    slack_h=st.floats(0, 4),
)
def test_a_deadline_that_can_be_met_is_never_missed_nor_dear(
    data, workers, power, changeover_s, work_h, slack_h
):
    speeds = tuple(k**power for k in range(workers + 1))
    terms = Terms(3.06, 0.97, speeds, changeover_s, stops_all=workers == 1)
    deadline_s = np.ceil((work_h * HOUR + changeover_s + slack_h * HOUR) / TICK) * TICK
    up = data.draw(skies(int(deadline_s / TICK)))
    if workers == 1:
        up = np.floor(up)

    played = play(Ours(terms), up, terms, deadline_s, work_h * HOUR * speeds[-1])

    assert not played.is_missed.any()
    on_demand = 3.06 * workers * (work_h + changeover_s / HOUR)
    # each machine's start costs its changeover, and the rest of the minute until it is seen
    starts = played.starts * 3.06 * (changeover_s + 2 * TICK) / HOUR
    assert (played.cost <= on_demand + starts + 1e-6).all()


@pytest.mark.parametrize("policy", [UniformProgress, Greedy])
def test_the_baselines_miss_no_deadline_either(policy):
    terms, deadline_s = one(720.0), 52 * HOUR
    up = sky(0.4, 5)

    played = play(policy(terms, deadline_s, RECORDS), up, terms, deadline_s, RECORDS)

    assert not played.is_missed.any()


def sky(share, seeds, hours=52):
    weather = Weather(share)
    return np.stack(
        [weather.ticks(np.random.default_rng(seed), hours * 60, TICK) for seed in range(seeds)], 1
    )


def test_uniform_progress_by_hand():
    # without spot machines, 48 h of work in 52: behind the line at once, and on-demand until it is
    # two changeovers ahead, 0.1 h; to catch up with the line takes 0.05 h of work, then it gains
    # 4/52 h an hour
    terms, deadline_s = one(180.0), 52 * HOUR
    policy = UniformProgress(terms, deadline_s, RECORDS)

    def asked(hours, done_h, spot=0, on_demand=0, up=0):
        left = np.array([RECORDS * (1 - done_h / 48)])
        return [
            int(each[0])
            for each in policy(Moment(left, (52 - hours) * HOUR, up, spot, 0, np.array(on_demand)))
        ]

    assert asked(0, 0.0) == [0, 0]  # on the line
    assert asked(1, 0.9) == [0, 1]  # rule 1: behind it
    assert asked(1, 0.9, up=1) == [1, 0]  # rule 2: spot even so
    assert asked(1, 1.0, on_demand=1, up=1) == [0, 1]  # rule 3: expected at 1.1 h: 1.0154
    assert asked(1, 1.02, on_demand=1, up=1) == [1, 0]
    assert asked(1, 0.94) == [0, 0]  # 0.9231 are expected
    assert asked(12, 8.05) == [0, 1]  # rule 4: 39.95 + 0.1 h of 40, and a minute
    assert asked(20, 16.1, up=1) == [0, 1]  # until the end


def test_ours_costs_less_than_uniform_progress():
    terms, deadline_s, up = one(180.0), 52 * HOUR, sky(0.4, 30)

    ours = play(Ours(terms), up, terms, deadline_s, RECORDS)
    theirs = play(UniformProgress(terms, deadline_s, RECORDS), up, terms, deadline_s, RECORDS)

    assert ours.cost.mean() < 0.9 * theirs.cost.mean()
    assert not ours.is_missed.any()


def test_all_spot_and_no_spot_cost_what_they_must():
    terms, deadline_s = one(180.0), 70 * HOUR

    sunny = play(Ours(terms), np.ones((4200, 2), bool), terms, deadline_s, RECORDS)
    dark = play(Ours(terms), np.zeros((4200, 2), bool), terms, deadline_s, RECORDS)

    assert sunny.cost == pytest.approx((48 + 0.05) * SPOT)
    assert list(sunny.starts) == [1, 1]
    assert dark.cost == pytest.approx((48 + 0.05) * ON_DEMAND)
    assert list(dark.starts) == [1, 1]  # and never given up to wait


def test_in_steady_weather_nothing_flaps():
    terms = Terms(3.0, 1.0, tuple(float(k) for k in range(9)), 1.0)
    for share in (0.0, 1.0):
        up = np.full((600, 1), share)

        played = play(Ours(terms), up, terms, 10 * HOUR, 8 * 8 * HOUR)

        assert played.starts[0] <= 16  # each of the eight at most once on each market


def test_a_forecast_forgets():
    forecast = Forecast()
    for _ in range(10 * 24 * 60):  # ten days without any
        forecast = forecast.after(TICK, False, False)

    assert forecast.availability < 0.01


def test_a_job_that_no_worker_speeds_up_is_refused():
    with pytest.raises(ValueError, match="faster than 0"):
        Terms(3.0, 1.0, (0.0, 0.0), 1.0)


def test_one_job_is_asked_about_with_plain_numbers():
    choice = choose(one(180.0), Forecast(), Moment(RECORDS, 70 * HOUR, offered=1))

    assert (int(choice.spot), int(choice.on_demand)) == (1, 0)


@pytest.mark.parametrize("is_bathtub", [False, True])
@pytest.mark.parametrize("share", [AVAILABILITIES[0], AVAILABILITIES[4]])
def test_weather_is_as_often_there_as_published_for_an_hour_at_a_time(share, is_bathtub):
    up = Weather(share, is_bathtub=is_bathtub).ticks(np.random.default_rng(1), 300_000, 60.0)

    begins = (up[1:] & ~up[:-1]).sum()
    assert up.mean() == pytest.approx(share, abs=0.03)
    assert up.sum() / begins / 60 == pytest.approx(1.0, rel=0.1)


def test_weather_is_the_same_from_the_same_seed():
    once, again = (Weather(0.4).changes(np.random.default_rng(7), 50 * HOUR) for _ in range(2))

    assert once == again
    assert sorted(once[1]) == once[1]


def test_a_bathtub_ends_early_or_late():
    weather, random = Weather(0.5, is_bathtub=True), np.random.default_rng(3)
    begins_up, times = weather.changes(random, 4000 * HOUR)
    ups = np.diff(times)[1 if begins_up else 0 :: 2]

    assert np.mean(ups < 0.25 * HOUR) + np.mean(ups > 1.5 * HOUR) > 0.8
