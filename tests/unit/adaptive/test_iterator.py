"""A text read by several replicas and across restarts: each pair of neighbouring tokens once."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.adaptive import collective, data, loop
from edl.adaptive.epoch import remaining_epochs_until
from edl.adaptive.iterator import AdaptiveBPTTIterator, Layout
from edl.common.errors import UsageError


def pairs_of(batch):
    """Return the pairs of a batch, of a text whose tokens are their positions."""
    assert torch.equal(batch.text + 1, batch.target)
    return batch.text.flatten().tolist()


def test_columns_are_consecutive_and_the_last_step_has_what_is_left(process):
    batches = list(AdaptiveBPTTIterator(torch.arange(18), batch_size=2, bptt_len=3))

    assert [[0, 1, 2], [3, 4, 5], [6, 7], [16]] == [b.text[:, 0].tolist() for b in batches]
    assert [[8, 9, 10], [11, 12, 13], [14, 15]] == [b.text[:, 1].tolist() for b in batches[:3]]
    assert [[1, 2, 3], [17]] == [batches[0].target[:, 0].tolist(), batches[3].target[:, 0].tolist()]
    assert 4 == len(AdaptiveBPTTIterator(torch.arange(18), batch_size=2, bptt_len=3))


def test_what_is_one_row_longer_is_one_more_micro_batch_of_the_last_step(process):
    loader, steps = AdaptiveBPTTIterator(np.arange(12), batch_size=4, bptt_len=1), []
    for batch in loader:
        weight = loader.weight
        steps.append((batch.text.numel(), loader._elastic.is_sync_step(), weight))

    # 11 pairs: two steps of 4, the last of 3 together with the row before it.
    assert [
        (4, True, 1.0),
        (4, False, pytest.approx(8 / 7)),
        (3, True, pytest.approx(6 / 7)),
    ] == steps


@given(
    size=st.integers(0, 90),
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    rows=st.integers(1, 5),
    micros=st.integers(1, 3),
    after=st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_pass_whose_batch_changes_reads_each_pair_once(size, batches, rows, micros, after):
    ranges, taken = [(0, size)], []
    for steps, columns in zip(after, batches, strict=False):
        layout, row = Layout(ranges, columns), 0
        for _ in range(steps):
            if row < layout.height:
                row, parts = layout.step(row, rows, micros)
                for part in parts:
                    taken += layout.pairs(*part).flatten().tolist()
        ranges = layout.rest(row)
    assert len(ranges) == len(set(ranges))
    taken += [pair for start, stop in ranges for pair in range(start, stop)]

    assert list(range(size)) == sorted(taken)


def play(restart, replicas, rank, size, stop, batch_size=4, bptt=3):
    """Return the parts of two epochs that this replica reads, [(epoch, pairs, weight)].

    It stops after so many batches.
    """
    restart(rank, replicas)
    taken = []
    loader = AdaptiveBPTTIterator(torch.arange(size), batch_size, bptt)
    try:
        for epoch in remaining_epochs_until(2):
            for batch in loader:
                taken.append((epoch, pairs_of(batch), loader.weight))
                collective.preemption().requested |= len(taken) == stop
    except SystemExit:
        pass
    return taken


@pytest.mark.parametrize(("size", "batch_size"), [(101, 4), (50, 7), (5, 4), (2, 4)])
def test_restarts_with_other_numbers_of_replicas_read_each_pair_once(
    restart, checkpoints, size, batch_size
):
    taken = Counter()
    for replicas, stop in ((1, 2), (2, 3), (3, 2), (1, None)):
        for rank in range(replicas):
            for epoch, pairs, weight in play(restart, replicas, rank, size, stop, batch_size):
                taken.update((epoch, pair) for pair in pairs if weight)

    assert {(e, p): 1 for e in range(2) for p in range(size - 1)} == dict(taken)


@pytest.mark.parametrize("size", [33, 35, 11, 3])
def test_weighted_means_of_replicas_are_the_mean_over_the_pairs(restart, size):
    replicas = 3
    means = []
    for rank in range(replicas):
        restart(rank, replicas)
        loader, steps, held = AdaptiveBPTTIterator(torch.arange(size), 4, 5), [], []
        for batch in loader:
            held.append(loader.weight * batch.text.double().mean())
            if loader._elastic.is_sync_step():
                steps.append(float(sum(held)) / len(held))
                held = []
        means.append(steps)
    restart()
    expected, held = [], []
    loader = AdaptiveBPTTIterator(torch.arange(size), 4, 5)
    for batch in loader:
        held += pairs_of(batch)
        if loader._elastic.is_sync_step():
            expected.append(np.mean(held))
            held = []

    assert pytest.approx(expected) == np.mean(means, axis=0).tolist()


def test_a_batch_that_changes_within_a_pass_reads_each_pair_once(process, monkeypatch):
    monkeypatch.setattr(data, "RETUNE_STEPS", 2)
    sizes = iter([3, 5, 4, 7, 2, 6, 3, 8])
    monkeypatch.setattr(loop, "best_batch", lambda *_: loop.Batch(1, size := next(sizes), 0, size))
    loader = AdaptiveBPTTIterator(
        torch.arange(200), 3, 4, max_batch_size=8, local_bsz_bounds=(1, 8)
    )
    batches = [batch.text for batch in loader]

    assert {3, 4, 5, 7} <= {batch.shape[1] for batch in batches}
    assert list(range(199)) == sorted(torch.cat([b.flatten() for b in batches]).tolist())


def test_a_torchtext_data_set_is_taken(process):
    words = ["a", "b", "c", "a", "c"]
    field = SimpleNamespace(
        batch_first=True,
        numericalize=lambda texts: torch.tensor([["abc".index(w) for w in t] for t in texts]).t(),
    )

    class Dataset(list):
        @property
        def fields(self):
            return {"text": field}

    examples = Dataset([SimpleNamespace(text=words)])
    loader = AdaptiveBPTTIterator(examples, batch_size=1, bptt_len=2, train=False)

    assert [[[0, 1]], [[2, 0]]] == [batch.text.tolist() for batch in loader]
    assert [[[1, 2]], [[0, 2]]] == [batch.target.tolist() for batch in loader]


def test_it_repeats_where_it_is_asked_to(process):
    loader = iter(AdaptiveBPTTIterator([0, 1, 2], 1, 1, repeat=True))

    assert [0, 1, 0, 1, 0] == [int(next(loader).text) for _ in range(5)]


@pytest.mark.parametrize(
    "tokens", [torch.rand(3), torch.ones(2, 2, dtype=torch.int64), ["a", "b"], 7, [True, False]]
)
def test_what_is_no_row_of_whole_numbers_is_refused(process, tokens):
    with pytest.raises(TypeError, match="whole numbers"):
        AdaptiveBPTTIterator(tokens, 1, 1)


def test_another_text_in_the_middle_of_a_pass_is_refused(restart, checkpoints):
    play(restart, 1, 0, 100, 2)

    with pytest.raises(UsageError, match="has 101 tokens, and had 100"):
        play(restart, 1, 0, 101, None)


@pytest.mark.parametrize("tokens", [[], [1]])
def test_a_text_without_a_pair_is_an_empty_loop(process, tokens):
    assert [] == list(AdaptiveBPTTIterator(torch.tensor(tokens, dtype=torch.int64), 2, 2))
