"""What a script tells of its speed, as a report to schedulers."""

import pytest

from edl.common.report import Bounds, Resize, Sample, read, write
from edl.launch.history import History
from edl.launch.nodes import Member, Round
from edl.launch.rounds import Policy

pytestmark = pytest.mark.fast

POLICY = Policy(min_nodes=1, max_nodes=4)


def round_of(number: int, nodes: int, formed_at: float) -> Round:
    members = tuple(Member(f"n{i}", "h", 2) for i in range(nodes))
    return Round(number, number - 1, members, "h:0", formed_at)


def test_what_a_script_tells_is_kept_by_the_nodes_it_ran_on():
    history = History()
    one, two, again = round_of(1, 1, 0.0), round_of(2, 2, 22.0), round_of(3, 2, 42.0)
    history.tell(one, 0.0, 10.0, 100.0)
    history.tell(one, 0.0, 15.0, 110.0)
    history.tell(two, 20.0, 30.0, 200.0)
    history.tell(again, 40.0, 50.0, 220.0)  # as many: a loss, which is no change

    found = history.report(POLICY, nearly_done=True)

    assert found.samples == (
        Sample(0, 2, 1, 0, 105.0, 15.0, 2),
        Sample(0, 4, 2, 0, 210.0, 16.0, 2),
    )
    assert (found.resize, found.nodes) == (Resize(workers=10.0), Bounds(1, 4))
    assert (found.records_left, found.model, found.nearly_done) == (None, None, True)
    assert read(write(found)) == found
    # what is left is its word, at the rate that it told last
    assert history.report(POLICY, nearly_done=False, left_s=10.0).records_left == 2200
    assert History().report(POLICY, nearly_done=False, left_s=10.0).records_left is None


def test_the_configurations_that_were_told_of_last_are_kept():
    history = History()
    for nodes in range(1, 100):
        history.tell(round_of(nodes, nodes, float(nodes)), 0.0, nodes + 0.5, 1.0)

    told = history.report(POLICY, nearly_done=False).samples
    assert [sample.nodes for sample in told] == list(range(68, 100))
