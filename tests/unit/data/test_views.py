"""The seeds that `feed` draws its augmentation by."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.views import Seen, showing, view_seeds


def seeds(source="s", records=(0, 1, 2), view=0):
    with showing(Seen(source, np.array(records), view)):
        return view_seeds(len(records)).tolist()


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9), st.integers(0, 99))
def test_a_seed_is_of_its_record_and_view_whoever_is_beside_it(records, view):
    together = seeds(records=records, view=view)

    assert together == [seeds(records=[each], view=view)[0] for each in records]
    assert all(0 <= each < 1 << 63 for each in together)


def test_records_views_and_sources_have_other_seeds():
    found = [seeds(source, range(500), view) for source in ("a", "b") for view in range(4)]

    assert 4000 == len({each for some in found for each in some})


def test_outside_of_a_job_they_are_those_of_the_first_records():
    assert seeds("", range(4)) == view_seeds(4).tolist()


def test_another_number_of_records_is_refused():
    said = r"view_seeds\(5\), but feed was given 3 records"
    with showing(Seen("s", np.arange(3))), pytest.raises(ValueError, match=said):
        view_seeds(5)


def test_one_thread_sees_nothing_of_another():
    found = []
    with showing(Seen("s", np.arange(3))):
        other = threading.Thread(target=lambda: found.append(view_seeds(1)))
        other.start()
        other.join()

    assert view_seeds(1).tolist() == found[0].tolist()
