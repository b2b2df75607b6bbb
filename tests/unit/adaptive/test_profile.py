"""Times of steps, and what is made of them."""

import sys
import types
from collections import namedtuple

import pytest

from edl.adaptive import checkpoint, profile, session
from edl.adaptive.profile import REFIT_S, Profile, Times
from edl.common.clock import FakeClock

pytestmark = pytest.mark.fast

Perf = namedtuple("Perf", "alpha_c beta_c")


@pytest.fixture
def fits(monkeypatch):
    """Return the rows of each call of a fit, which finds alpha_c 1 and beta_c 2."""
    calls = []

    def fit_perf_params(*columns):
        calls.append(list(zip(*columns, strict=True)))
        return Perf(1.0, 2.0)

    fake = types.ModuleType("edl.goodput.fit")
    fake.fit_perf_params = fit_perf_params
    model = types.ModuleType("edl.goodput.model")
    model.GoodputFunction = lambda *told: told
    package = types.ModuleType("edl.goodput")
    for module in (package, fake, model):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def known(process, clock):
    return session.put(Profile, Profile(clock))


def step(known, clock, seconds, *, m=8, sync=True, sync_s=None, commit=True):
    with known.timed(m, sync, lambda: commit):
        clock.advance(seconds)
        if sync_s is not None:
            profile.record_sync(sync_s)


def test_passes_are_summed_up_by_place_and_batch(known, clock, restart, monkeypatch):
    monkeypatch.setenv("EDL_NUM_NODES", "2")
    step(known, clock, 0.5, sync=False)
    step(known, clock, 1.0)
    step(known, clock, 2.0, m=16)
    restart(0, 4)
    session.put(Profile, known)
    step(known, clock, 3.0, m=16, sync_s=1.0)

    assert {
        (1, 1, 8): Times(1, 0.5, 1, 1.0),
        (1, 1, 16): Times(0, 0.0, 1, 2.0),
        (2, 4, 16): Times(0, 0.0, 1, 3.0, 1, 1.0),
    } == known.times


def test_the_time_of_synchronising_is_not_that_of_computing(process):
    times = Times(accums=2, accum_s=2.0, optims=2, optim_s=6.0, syncs=1, sync_s=1.5)

    assert (5 / 4, 3.0) == (times.accum_time_s(), times.optim_time_s())


def test_a_pass_that_fails_or_does_not_count_is_left_out(known, clock):
    step(known, clock, 1.0, commit=False, sync_s=0.5)
    with pytest.raises(ZeroDivisionError), known.timed(8, True, lambda: True):
        raise ZeroDivisionError

    assert [] == [times for times in known.times.values() if times != Times()]


def test_the_model_is_fitted_when_asked_and_then_not_for_a_while(known, clock, fits):
    before = known.perf_params()
    step(known, clock, 1.0, sync_s=0.25)
    step(known, clock, 0.5, m=4, sync=False)  # of which no step is whole
    first = known.perf_params()
    step(known, clock, REFIT_S - 2)
    known.perf_params()
    fitted = len(fits)
    clock.advance(2)
    known.perf_params()

    assert (None, Perf(1.0, 2.0)) == (before, first)
    assert [(1, 1, 8, 0.75, 1.0)] == fits[0]
    assert (1, 2) == (fitted, len(fits))


def test_goodput_is_unknown_until_times_gradients_and_batch_are_known(known, clock, fits):
    unknown = [known.goodput()]
    step(known, clock, 1.0)
    unknown.append(known.goodput())
    profile.set_gradient_stats(0.5, 2.0)
    unknown.append(known.goodput())
    known.init_batch_size = 16

    assert [None] * 3 == unknown
    assert (Perf(1.0, 2.0), (0.5, 2.0), 16) == known.goodput()
    assert 16 == profile.init_batch_size


def test_hints_of_a_job_that_knows_nothing(known):
    assert {
        "initBatchSize": None,
        "localBszBounds": None,
        "globalBatchSize": None,
        "maxBatchSize": None,
        "maxProfiledReplicas": 0,
        "gradientAccumulation": False,
        "gradParams": None,
        "perfParams": None,
    } == profile.hints()


def test_hints_of_a_job_that_has_run(known, clock, fits):
    step(known, clock, 1.0)
    known.times[1, 3, 8] = Times(0, 0.0, 1, 1.0)
    known.times[1, 5, 8] = Times(1, 1.0)  # has not synchronised yet
    known.set_gradient_stats(9.0, 9.0, "netD")
    known.set_gradient_stats(0.25, 1.5, "netD")
    known.set_gradient_stats(0.25, 0.5, "netG")
    known.init_batch_size, known.global_batch_size, known.max_batch_size = 16, 32, 64
    known.local_bsz_bounds, known.gradient_accumulation = (4, None), True

    assert {
        "initBatchSize": 16,
        "localBszBounds": [4, None],
        "globalBatchSize": 32,
        "maxBatchSize": 64,
        "maxProfiledReplicas": 3,
        "gradientAccumulation": True,
        "gradParams": {"norm": 0.5, "var": 2.0},
        "perfParams": {"alpha_c": 1.0, "beta_c": 2.0},
    } == profile.hints()


def test_it_outlives_a_restart(restart, checkpoints):
    restart()
    clock = FakeClock()
    known = session.put(Profile, Profile(clock))
    step(known, clock, 1.0, sync_s=0.5)
    known.set_gradient_stats(0.5, 2.0)
    checkpoint.save_all_states()

    restart()

    assert known.times == profile.current().times
    assert (0.5, 2.0) == profile.current()._gradients
