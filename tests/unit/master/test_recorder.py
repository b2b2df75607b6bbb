"""Throughput is measured where nothing but the records changed, and exactly."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.report import Configuration, Phases, Resize, Sample
from edl.master.membership import SERVER, WORKER
from edl.master.recorder import Recorder, Spent

ONE, TWO = Configuration(1, 1, 1, 16), Configuration(1, 2, 1, 16)


def recorded(*looks, recorder=None):
    """A recorder that was shown these: (now, records, configuration[, members])."""
    recorder = recorder or Recorder()
    for look in looks:
        recorder.look(*look)
    return recorder


def test_a_span_lasts_from_one_rise_of_the_records_to_another():
    """Broken once: from the first look, when nobody knew how long ago the records had risen."""
    found = recorded(
        (0.0, 0, ONE),
        (0.9, 10, ONE),  # what was done before is of no span
        (1.9, 10, ONE),
        (2.9, 30, ONE),
        (3.9, 60, ONE),
        (9.9, 60, ONE),  # nor is what has not ended
    )

    assert found.samples == (Sample(1, 1, 1, 16, 50 / 3.0, 3.0, 2),)


@pytest.mark.parametrize(
    "between",
    [
        (2.5, 30, TWO),  # another configuration
        (2.5, 30, None),  # somebody starts
        (2.5, 30, ONE, "another member"),  # somebody was replaced
        (2.5, 15, ONE),  # records that were done are to be computed again
    ],
)
def test_what_lies_around_a_change_is_not_sampled(between):
    found = recorded((0.0, 0, ONE), (1.0, 20, ONE), between, (3.0, 40, ONE), (4.0, 50, ONE))

    if between[1] == 15:  # nothing but the records has changed: (3.0, 40) is the first rise
        assert [(s.records_per_s, s.seconds) for s in found.samples] == [(10.0, 1.0)]
    else:  # and here (4.0, 50)
        assert found.samples == ()


def test_each_configuration_has_its_own_figures_which_go_on_when_it_comes_back():
    found = recorded(
        *((float(t), 10 * t, ONE) for t in range(4)),
        *((float(t), 20 * t, TWO) for t in range(4, 9)),
        *((float(t), 160 + 5 * t, ONE) for t in range(9, 14)),
    )

    assert [(s.workers, s.records_per_s, s.seconds, s.looks) for s in found.samples] == [
        (2, 20.0, 3.0, 3),
        (1, (2 * 10 + 3 * 5) / 5, 5.0, 5),
    ]


def spent(count, seconds=1.0):
    return Spent(count, *[count * seconds * n for n in (1, 2, 3, 4)], 100.0 * count, 60.0 * count)


def test_phases_are_means_of_the_minibatches_between_the_looks_of_a_span():
    """Broken once: the sums at the last look, what was spent before the span with them."""
    found = recorded(
        (0.0, 0, ONE, 1, spent(50)),
        (1.0, 10, ONE, 1, spent(100)),  # the first rise: a span begins
        (2.0, 20, ONE, 1, spent(110, 2.0) + spent(0)),
        (3.0, 30, TWO, 1, spent(500)),
        (4.0, 40, TWO, 1, None),  # somebody has not told
        (5.0, 50, TWO, 1, spent(510)),
    )

    of_one, of_two = found.samples
    assert of_one.phases == Phases(10, 12.0, 24.0, 36.0, 48.0, 0.6)
    assert of_two.phases is None


def test_phases_of_a_configuration_go_on_when_it_comes_back():
    recorder = Recorder()
    for begin, seconds in ((0.0, 1.0), (10.0, 3.0)):
        for t in range(3):
            recorder.look(begin + t, int(begin) + t, ONE, begin, spent(10 * t, seconds))

    assert recorder.samples[0].phases == Phases(20, 2.0, 4.0, 6.0, 8.0, 0.6)


def test_workers_phases_are_added_up_once_all_have_told():
    told = {f"phase_{name}": float(n) for n, name in enumerate(Spent.__annotations__, 1)}

    assert Spent.told([told, told]) == Spent(2, 4, 6, 8, 10, 12, 14)
    assert Spent.told([told, {"loss": 1.0}]) is None


def test_the_configurations_that_were_measured_last_are_kept():
    recorder = Recorder()
    for number in range(100):
        shape, at = Configuration(1, number, 1, 16), 10.0 * number
        rises = ((at + t, 1000 * number + t, shape) for t in range(3))
        recorded(*rises, recorder=recorder)

    assert [sample.workers for sample in recorder.samples] == list(range(68, 100))


def test_a_change_costs_from_the_decision_until_throughput_is_measured_again():
    recorder = recorded(*((float(t), 10 * t, ONE) for t in range(4)))
    assert recorder.resize == Resize()

    recorder.decided(WORKER, 3.5)
    recorded((4.0, 40, None), (5.0, 50, TWO), (6.0, 60, TWO), (7.0, 80, TWO), recorder=recorder)
    recorded((8.0, 100, TWO), recorder=recorder)

    assert recorder.resize == Resize(workers=3.5)


def test_a_change_that_is_measured_no_further_costs_nothing():
    recorder = Recorder()
    recorder.decided(SERVER, 0.0)
    recorder.forget_changes()
    recorded(*((float(t), t, ONE) for t in range(4)), recorder=recorder)

    assert recorder.resize == Resize()


def test_the_mean_is_of_the_last_five_changes():
    recorder = Recorder()
    for seconds in (100.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        recorder.cost(WORKER, seconds)

    assert recorder.resize == Resize(workers=3.0)


STEPS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 50), st.sampled_from([ONE, TWO, None])),
    max_size=40,
)


@given(STEPS)
def test_samples_are_the_sums_over_spans_whose_looks_are_all_alike(steps):
    now, records = 0, 0
    looks = [(0, 0, ONE)]
    for seconds, more, shape in steps:
        now, records = now + seconds, records + more
        looks.append((now, records, shape))

    found = recorded(*((float(t), r, shape) for t, r, shape in looks))

    expected = {}
    rose = None  # the look of the last rise in this configuration
    for before, after in itertools.pairwise(looks):
        if after[2] is None or after[2] != before[2]:
            rose = None
        elif after[1] > before[1]:
            if rose is not None:
                sums = expected.setdefault(after[2], [0, 0])
                sums[0] += after[1] - rose[1]
                sums[1] += after[0] - rose[0]
            rose = after
    told = {(s.servers, s.workers): (s.records_per_s, s.seconds) for s in found.samples}
    assert told == {(c.servers, c.workers): (r / s, s) for c, (r, s) in expected.items()}
