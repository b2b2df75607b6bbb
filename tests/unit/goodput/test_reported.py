"""The samples of a report become points of the model of servers, and the model a field of it."""

import pytest

from edl.common.report import Phases, Sample
from edl.goodput.reported import fitted, params_of, servers_points
from edl.goodput.servers import ServersParams

pytestmark = pytest.mark.fast

TRUE = ServersParams(0.02, 1e-4, 0.0, 0.004, 0.0, 1e-5, 0.004, 1e-4, 0.2, 0.0, 0.6)


def sample(workers, servers, minibatch=128, minibatches=100):
    """What a job of TRUE would measure there."""
    round_s = TRUE.round_s(workers, servers, minibatch)
    exchange_s = TRUE.exchange_s(workers, servers, minibatch)
    share = 0.2 + 0.8 / servers
    phases = Phases(minibatches, 0.0, round_s - exchange_s, exchange_s / 2, exchange_s / 2, share)
    rate = workers * minibatch / round_s
    return Sample(servers, workers, 1, minibatch, rate, 10.0, 40, phases)


def test_a_model_of_four_configurations_predicts_the_others():
    given = [sample(*place) for place in ((1, 1), (2, 1), (2, 2), (4, 2))]
    params = params_of(fitted(servers_points(given)))

    for workers in range(1, 9):
        for servers in (1, 2, 3, 4):
            expected = TRUE.throughput(workers, servers, 128)
            assert params.throughput(workers, servers, 128) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "useless",
    [
        Sample(1, 1, 1, 128, 100.0, 10.0, 3),  # of a job that does not measure phases
        sample(1, 1, minibatches=3),
        Sample(1, 1, 1, 0, 100.0, 10.0, 3, Phases(100, 0.1, 0.1, 0.1, 0.1, 1.0)),
        Sample(1, 1, 1, 8, 100.0, 10.0, 3, Phases(100, 0.0, 0.0, 0.1, 0.1, 1.0)),
    ],
)
def test_what_tells_nothing_is_no_point(useless):
    assert servers_points([useless]) == []
