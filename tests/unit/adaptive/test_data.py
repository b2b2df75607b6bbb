"""A loader's place, its batch and its loops, in a process that comes back as another replica."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.adaptive import checkpoint, collective, data, pace, profile, session
from edl.adaptive.checkpoint import States
from edl.adaptive.data import (
    AdaptiveDataLoader,
    AdaptiveDataLoaderHelper,
    AdaptiveDataLoaderMixin,
    Batch,
    ElasticSampler,
    current_dataloader,
)
from edl.adaptive.epoch import remaining_epochs_until
from edl.common.clock import FakeClock


def records_of(restart, size, batch_size, generations, **options):
    """Return each record that was read, once for each reading, over generations of replicas.

    A generation is (replicas, steps after which one of them is preempted, or None).
    """
    taken = []
    exits: list[object] = []
    for replicas, steps in generations:
        done = False
        for rank in range(replicas):
            restart(rank, replicas)
            loader = AdaptiveDataLoader(range(size), batch_size, **options)
            try:
                for number, batch in enumerate(loader, 1):
                    taken += batch.tolist() if loader.weight else []
                    collective.preemption().requested |= number == steps
                done = True
            except SystemExit as leaving:
                exits.append(leaving.code)
        if done:
            break
    assert {143} >= set(exits)
    return taken


def test_from_1_to_2_to_4_replicas_each_record_is_read_once(restart, checkpoints):
    taken = records_of(restart, 103, 8, [(1, 3), (2, 4), (4, None)], shuffle=True)

    assert list(range(103)) == sorted(taken)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    generations=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3),
)
def test_whatever_the_replicas_each_record_is_read_once(
    restart, tmp_path_factory, monkeypatch, size, batch_size, shuffle, generations
):
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path_factory.mktemp("checkpoints")))
    taken = records_of(restart, size, batch_size, [*generations, (3, None)], shuffle=shuffle)

    assert dict.fromkeys(range(size), 1) == Counter(taken)


def test_the_batch_is_the_same_for_any_number_of_replicas(restart):
    totals = []
    for replicas in (1, 2, 3, 4):
        restart(0, replicas)
        totals.append(AdaptiveDataLoader(range(100), batch_size=10).current_batch_size)

    assert [10, 10, 10, 10] == totals


def test_every_pass_has_another_order_and_restarts_do_not_change_it(restart, checkpoints):
    loader = AdaptiveDataLoader(range(50), batch_size=50, shuffle=True)
    first, second = [next(iter(loader)).tolist() for _ in range(2)]

    again = AdaptiveDataLoader(range(50), batch_size=50, shuffle=True)

    assert first != second
    assert first == next(iter(again)).tolist()


@pytest.mark.parametrize("pace_s", [0.0, 1e9])
def test_a_signal_in_the_last_step_is_heard_when_the_loop_ends(
    restart, checkpoints, monkeypatch, pace_s
):
    monkeypatch.setattr(pace, "PACE_S", pace_s)
    restart()

    def loop():
        for number in AdaptiveDataLoader(range(30)):
            collective.preemption().requested = int(number) == 29

    with pytest.raises(SystemExit):
        loop()

    restart()

    assert [] == list(AdaptiveDataLoader(range(30)))


def test_workers_of_different_replicas_have_different_seeds(restart):
    seeds = []
    for rank in range(2):
        restart(rank, 2)
        loader = AdaptiveDataLoader(range(3), num_workers=2)
        loader._seed()  # which the first loop does
        seeds.append(loader.generator.initial_seed())

    assert 2 == seeds[1] - seeds[0]  # as many as there are workers


def test_a_loop_that_was_done_is_skipped_after_a_restart(restart, checkpoints):
    restart()
    for _ in remaining_epochs_until(1):
        train, validate = AdaptiveDataLoader(range(4)), AdaptiveDataLoader(range(3))
        done = [len(list(train)), len(list(train)), len(list(validate))]
        checkpoint.save_all_states()
        break

    restart()
    for _ in remaining_epochs_until(1):
        train, validate = AdaptiveDataLoader(range(4)), AdaptiveDataLoader(range(3))
        again = [len(list(train)), len(list(train)), len(list(validate)), len(list(validate))]

    assert [4, 4, 3] == done
    assert [0, 0, 0, 3] == again


def test_a_loop_that_is_broken_off_is_done_and_the_next_one_is_a_new_pass(process):
    loader = AdaptiveDataLoader(range(6), batch_size=2)
    for _batch in loader:
        break

    assert [[0, 1], [2, 3], [4, 5]] == [batch.tolist() for batch in loader]


def test_loops_do_not_overlap(process):
    outer, inner = AdaptiveDataLoader(range(4)), AdaptiveDataLoader(range(4))

    def overlap():
        for _ in outer:
            next(iter(inner))

    with pytest.raises(RuntimeError, match="do not nest"):
        overlap()


def test_the_running_loop_is_known_inside_of_it_only(process):
    loader = AdaptiveDataLoader(range(2))
    inside = [current_dataloader() for _ in loader]

    assert [loader._elastic] * 2 == inside
    assert current_dataloader() is None


def test_workers_read_the_same_records(process):
    loader = AdaptiveDataLoader(range(10), batch_size=4, num_workers=1)

    assert [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]] == [batch.tolist() for batch in loader]
    assert 3 == len(loader)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_what_would_contradict_it_is_refused(process, name):
    with pytest.raises(ValueError, match=name):
        AdaptiveDataLoader(range(4), **{name: [[0]]})


@pytest.mark.parametrize(("size", "shuffle"), [(7, False), (9, True), (3, True)])
def test_drop_last_is_taken_and_every_record_is_read_all_the_same(process, size, shuffle):
    """Without drop_last torch would end with a batch of 1 or 3; here two of 4 share the rest."""
    loader = AdaptiveDataLoader(range(size), 4, shuffle, drop_last=True, sampler=None)
    batches = [batch.tolist() for batch in loader]

    assert list(range(size)) == sorted(record for batch in batches for record in batch)
    assert {7: [4, 3], 9: [4, 3, 2], 3: [3]}[size] == [len(batch) for batch in batches]


def test_bounds_may_be_fractions_of_a_batch(process):
    loader = AdaptiveDataLoader(range(99), batch_size=10)
    loader.autoscale_batch_size(64, local_bsz_bounds=(10 / 4, 10 * 1.25))

    assert (3, 12) == loader._elastic.local_bsz_bounds


def test_a_batch_of_nothing_is_refused(process):
    with pytest.raises(ValueError, match="batch_size is 0"):
        AdaptiveDataLoader(range(4), batch_size=0)


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(15, None), (16.0, None), (64, (17, None)), (64, (None, 15)), (64, (0, 32))],
)
def test_bounds_that_exclude_the_batch_size_are_refused(process, most, bounds):
    loader = AdaptiveDataLoader(range(4), batch_size=16)

    with pytest.raises(ValueError, match=r"max_batch_size|local_bsz_bounds"):
        loader.autoscale_batch_size(most, bounds)


class FakeGoodput:
    """Useful examples a second by (atomic, accumulation); the best one is what it optimizes to."""

    def __init__(self, **goodput):
        self.goodput = {tuple(map(int, name[1:].split("_"))): g for name, g in goodput.items()}

    def optimize(self, nodes, replicas, max_batch_size, atomic_bsz_range, accumulation):
        self.asked = (nodes, replicas, max_batch_size, atomic_bsz_range, accumulation)
        best = max(self.goodput, key=self.goodput.__getitem__)
        return self.goodput[best], *best

    def evaluate(self, nodes, replicas, atomic, accumulation):
        return self.goodput[atomic, accumulation]


@pytest.fixture
def goodput(process, monkeypatch):
    def tell(**goodput):
        function = FakeGoodput(**goodput)
        monkeypatch.setattr(profile.Profile, "goodput", lambda self: function)
        return function

    return tell


def autoscaled(size=400, batch_size=8, most=64, bounds=(4, 32), accumulation=True):
    loader = AdaptiveDataLoader(range(size), batch_size)
    loader.autoscale_batch_size(most, bounds, accumulation)
    return loader


def test_without_figures_the_batch_is_the_initial_one(restart):
    restart(0, 2)
    loader = autoscaled()
    next(iter(loader))

    assert Batch(2, 4, 0, 8) == loader._elastic.batch


def test_replicas_keep_the_least_of_a_micro_batch_while_the_total_allows_it(restart):
    restart(0, 4)
    assert Batch(4, 4, 0, 16) == autoscaled()._elastic.batch

    restart(0, 4)
    assert Batch(4, 3, 0, 10) == autoscaled(most=10)._elastic.batch


def test_the_batch_of_the_best_goodput_is_taken_within_the_bounds(restart, goodput):
    restart(0, 2)
    function = goodput(b4_0=10.0, b16_1=20.0)
    loader = autoscaled()
    next(iter(loader))

    assert (1, 2, 64, (4, 32), True) == function.asked
    assert Batch(2, 16, 1, 64) == loader._elastic.batch
    assert (16, 64) == (loader.current_local_bsz, loader.current_batch_size)


def test_a_batch_of_other_replicas_is_not_kept(restart, checkpoints, goodput):
    goodput(b8_0=1.0, b4_0=1.0)
    for replicas in (1, 2):
        restart(0, replicas)
        helper = autoscaled()._elastic
        helper._sync_local_bsz()
        checkpoint.save_all_states()

    assert Batch(2, 8, 0, 16) == helper.batch


def test_rounding_never_exceeds_the_largest_batch(restart, goodput):
    restart(0, 3)
    goodput(b3_0=10.0, b22_0=20.0)
    loader = autoscaled()
    next(iter(loader))

    assert Batch(3, 22, 0, 64) == loader._elastic.batch


@pytest.mark.parametrize(("size", "most"), [(400, 64), (40, 40), (5, 8)])
def test_a_batch_is_never_larger_than_a_pass_but_where_the_first_one_is(
    restart, goodput, size, most
):
    restart(0, 2)
    function = goodput(b4_0=1.0)
    loader = autoscaled(size)
    next(iter(loader))
    loader._elastic.train()

    assert most == function.asked[2] == profile.current().max_batch_size


def test_a_step_tells_how_many_records_it_has(restart, goodput):
    restart(0, 2)
    goodput(b4_1=1.0)
    loader = autoscaled(size=42)

    assert [16, 13, 13] == [
        loader._elastic.step_records for _ in loader if loader._elastic.is_sync_step()
    ]


@pytest.mark.parametrize(("gain", "total"), [(1.05, 8), (1.06, 16)])
def test_another_batch_is_adopted_only_if_it_promises_more_than_5_percent(
    restart, goodput, monkeypatch, gain, total
):
    monkeypatch.setattr(data, "RETUNE_STEPS", 3)
    restart()
    loader = autoscaled()
    sizes = []
    for number, batch in enumerate(loader, 1):
        sizes.append(len(batch))
        if number == 2:
            goodput(b8_0=1.0, b16_0=gain)

    assert [8, 8, 8, total] == sizes[:4]
    assert 400 == sum(sizes)


def test_accumulation_ends_each_step_with_the_batch_that_synchronises(restart, goodput):
    restart()
    goodput(b4_2=1.0)
    loader = autoscaled(size=31)
    seen = [
        (len(batch), loader._elastic.is_sync_step(), loader.accumulation_steps) for batch in loader
    ]

    step = [(4, False, 2), (4, False, 2), (4, True, 2)]
    tail = [(3, False, 2), (3, False, 2), (4, True, 2), (3, False, 2), (3, False, 2), (3, True, 2)]
    assert step + tail == seen


def exchanges(steps, step_s, end=10_000):
    """Return the steps of a lone replica at which it exchanges; at `end` it says done."""
    clock, found = FakeClock(), []
    at_hand = pace.Pace(clock)
    agreed = 1  # what an exchange gives is what was proposed at the one before
    for step in range(steps):
        if at_hand.due():
            found.append(step)
            proposed = at_hand.propose(surely=end - step)
            at_hand.agree(agreed)
            agreed = proposed
        clock.advance(step_s(step))
    return found


def test_exchanges_keep_their_pace(process, monkeypatch):
    monkeypatch.setattr(pace, "PACE_S", 1.0)

    found = exchanges(60, lambda step: 0.1 if step < 20 else 2.0)

    assert [0, 1, 2, 12, 22, 32, 34, 35] == found[:8]


@pytest.mark.parametrize("end", [3, 50, 120, 399])
def test_exchanges_do_not_miss_the_end(process, monkeypatch, end):
    monkeypatch.setattr(pace, "PACE_S", 1e9)

    found = exchanges(500, lambda step: 0.1, end)

    assert end == next(step for step in found if step >= end)


def test_a_sampler_alone_gives_each_replica_its_share_of_the_rest(restart):
    shares = []
    for rank in range(3):
        restart(rank, 3)
        sampler = ElasticSampler(range(10), shuffle=True)
        sampler.set_epoch(4, index=2)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)

    assert [3, 3, 2] == [len(share) for share in shares]
    assert 8 == len({record for share in shares for record in share})


class Lines(AdaptiveDataLoaderMixin):
    """A loader of one's own: batches of numbers up to an end."""

    def __init__(self, end, batch_size):
        super().__init__(batch_size)
        self._end = end

    def __iter__(self):
        elastic = self._elastic
        with elastic.context():
            if elastic.skipdone():
                return
            size = elastic._sync_local_bsz()
            elastic.end_index = self._end
            while elastic.current_index < elastic.end_index:
                with elastic.profile(commit=True):
                    yield list(range(elastic.current_index, elastic.current_index + size))
                elastic.current_index += size


def test_a_loader_of_ones_own_goes_on_where_it_was(restart, checkpoints):
    taken = []
    for _ in range(2):
        restart()
        lines = Lines(12, batch_size=2)
        try:
            for batch in lines:
                taken += batch
                collective.preemption().requested = len(taken) == 4
        except SystemExit:
            pass

    assert list(range(12)) == taken
    assert 12 == sum(map(len, lines))  # and the next loop begins anew


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step=None):
        self.scalars[tag] = (value, step)


def test_the_batch_is_written_as_scalars(process):
    writer = Writer()
    AdaptiveDataLoader(range(4), batch_size=3).to_tensorboard(writer, 7, "train")

    assert {
        "train/Total_Batch_Size": (3, 7),
        "train/Local_Batch_Size": (3, 7),
        "train/Accumulation_Steps": (0, 7),
    } == writer.scalars


def test_the_interval_of_checkpoints_counts_from_the_last(restart, checkpoints, monkeypatch):
    clock = FakeClock()
    monkeypatch.setenv("EDL_CHECKPOINT_INTERVAL_S", "10")
    restart()
    session.put(States, States(clock))
    saved = []
    for _ in AdaptiveDataLoader(range(12)):
        clock.advance(4)
        saved.append(len(list(checkpoints.iterdir())))

    assert 2 == max(saved)


def test_a_helper_is_not_made_within_a_loop(process):
    for _ in AdaptiveDataLoader(range(1)):
        with pytest.raises(RuntimeError, match="before the loop"):
            AdaptiveDataLoaderHelper()
