"""Recall of rankings: ties, masks, records that do not count, states that add up."""

import numpy as np
import pytest

from edl.nn import RecallAtK
from edl.nn.metrics import merge, pack

SCORES = np.array([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [0.0, 0.0, 0.0], [-np.inf, 2.0, 1.0]])


def recall(k, scores, places):
    metric = RecallAtK(k)
    metric.update(scores, np.array(places))
    return metric.value()


@pytest.mark.parametrize(("k", "expected"), [(1, 1 / 4), (2, 2 / 4), (3, 4 / 4)])
def test_share_of_records_whose_item_is_among_the_first_k(k, expected):
    assert expected == recall(k, SCORES, [0, 2, 1, 0])


def test_items_of_the_same_score_go_before_the_own_one():
    assert [0.0, 0.0, 1.0] == [recall(k, SCORES[2:3], [1]) for k in (1, 2, 3)]


def test_records_without_an_item_do_not_count():
    assert 1.0 == recall(1, SCORES, [0, -1, -1, 1])
    assert np.isnan(recall(1, SCORES, [-1] * 4))


def test_states_of_workers_add_up_to_the_whole():
    parts = []
    for chosen in (slice(0, 1), slice(1, 4)):
        metric = RecallAtK(1)
        metric.update(SCORES[chosen], np.array([0, 2, 1, 1])[chosen])
        parts.append(pack({"recall": metric}))

    assert {"recall": recall(1, SCORES, [0, 2, 1, 1])} == merge(parts, {"recall": RecallAtK(1)})


def test_what_is_no_ranking_is_refused():
    with pytest.raises(ValueError, match=r"scores \[N, items\].*not \[4\]"):
        RecallAtK(1).update(SCORES[:, 0], np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="NaN"):
        RecallAtK(1).update(SCORES * np.nan, np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="at least 1"):
        RecallAtK(0)
