"""Statistics of parts that merge: the merge of parts says what the whole would."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.statistics import Distinct, Frequent, Moments, Quantiles

pytestmark = pytest.mark.fast

parts_of_floats = st.lists(st.lists(st.floats(-1e9, 1e9), max_size=20), min_size=1, max_size=6)
parts_of_words = st.lists(st.lists(st.text("abc", max_size=2), max_size=30), min_size=1, max_size=6)


@given(parts_of_floats)
def test_moments_of_parts_are_numpys_of_the_whole(parts):
    merged = Moments()
    for part in parts:
        merged = merged.merge(Moments.of(np.array(part, float)))
    whole = np.array([each for part in parts for each in part])

    assert merged.count == len(whole)
    if len(whole):
        assert merged.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-6)
        assert merged.deviation == pytest.approx(whole.std(), rel=1e-6, abs=1e-5)


def test_deviation_of_a_small_spread_far_from_zero_is_kept():
    """The sum of squares would lose it: Chan et al. 1983, section 1."""
    values = 1e9 + np.random.default_rng(1).normal(size=10_000)
    merged = Moments()
    for part in np.split(values, 100):
        merged = merged.merge(Moments.of(part))

    assert merged.deviation == pytest.approx(values.std(), rel=1e-6)


@given(parts_of_words)
def test_distinct_of_parts_is_that_of_the_whole_in_any_order(parts):
    sketches = []
    for order in (parts, parts[::-1]):
        merged = Distinct(64)
        for part in order:
            other = Distinct(64)
            other.add(part)
            merged.merge(other)
        sketches.append(merged)

    assert sketches[0].hashes.tolist() == sketches[1].hashes.tolist()
    assert sketches[0].count == len({each for part in parts for each in part})


@pytest.mark.parametrize("count", [1000, 30_000, 300_000])
def test_distinct_is_exact_below_its_size_and_within_its_error_above(count):
    sketch = Distinct(4096)
    for part in np.array_split(np.arange(count), 5):
        sketch.add(part.tolist())
        sketch.add(part[:10].tolist())

    assert abs(sketch.count - count) <= 4 * sketch.error * count
    assert sketch.exact == (count < 4096)


@given(parts_of_words, st.integers(1, 12))
def test_frequent_counts_are_too_low_by_at_most_the_error(parts, size):
    """Agarwal et al. 2012, section 3: "the error is at most n / (k + 1)"."""
    merged = Frequent(size)
    for part in parts:
        other = Frequent(size)
        for word in part:  # in as many steps as can be
            other.add(collections.Counter([word]))
        merged.merge(other)
    true = collections.Counter(each for part in parts for each in part)
    found = dict(merged.most(size))

    assert len(found) <= size
    assert merged.error <= sum(true.values()) / (size + 1)
    assert all(0 <= true[word] - found.get(word, 0) <= merged.error for word in true)
    if len(true) <= size:
        ordered = sorted(true.items(), key=lambda each: (-each[1], each[0]))
        assert (merged.error, merged.most(size)) == (0, ordered)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.integers(1, 5))
def test_quantiles_of_few_values_are_numpys(values, parts):
    merged = Quantiles(64, np.random.default_rng(0))
    for part in np.array_split(values, parts):
        other = Quantiles(64, np.random.default_rng(1))
        other.add(np.array(part, float))
        merged.merge(other)
    shares = np.arange(11) / 10

    assert merged.rank_error == 0
    np.testing.assert_allclose(merged.at(shares), np.quantile(values, shares))


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled", "few values"])
@pytest.mark.parametrize("seed", range(3))
def test_quantiles_of_many_values_are_within_the_error_that_they_tell(order, seed):
    count = 100_000
    values = np.arange(float(count))
    if order == "falling":
        values = values[::-1]
    if order in ("shuffled", "few values"):
        values = np.random.default_rng(seed).permutation(values)
    if order == "few values":
        values = values // (count // 5)
    merged = Quantiles(256, np.random.default_rng(seed))
    for place, part in enumerate(np.array_split(values, 7)):
        other = Quantiles(256, np.random.default_rng(100 * seed + place))
        for block in np.array_split(part, 5):
            other.add(block)
        merged.merge(other)
    shares = np.arange(1, 100) / 100
    found = merged.at(shares)
    below, upto = (np.searchsorted(np.sort(values), found, side) for side in ("left", "right"))
    wrong = np.maximum(below / count - shares, shares - upto / count).max()

    assert (
        merged.count
        == count
        == sum(len(each) << height for height, each in enumerate(merged.buffers))
    )
    assert wrong <= merged.rank_error < 0.02
    assert sum(map(len, merged.buffers)) < 2000  # whatever the count
