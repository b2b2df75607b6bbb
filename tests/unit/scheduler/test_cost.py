import pytest

from edl.common.errors import UsageError
from edl.scheduler.cost import Usage, cost
from edl.scheduler.prices import Price

PRICES = {"a": Price(3.0, 1.0), "b": Price(6.0)}


def test_figures_by_hand():
    # $: a on spot 2 h x 1, a on demand 1 h x 3, b 0.5 h x 6; without spot: 1.5 useful h x 3 + 3 + 3
    found = cost(
        [
            Usage("a", "spot", 5400, recompute_s=900, idle_s=300, start_s=600, preempted=2),
            Usage("a", "on-demand", 3600),
            Usage("b", "on-demand", 900, idle_s=900),
        ],
        PRICES,
        records=4_000_000,
    )

    assert found.machine_s == {"spot": 7200, "on-demand": 5400}
    assert (found.useful_s, found.wasted_s, found.preempted) == (9900, 2700, 2)
    assert found.dollars == pytest.approx(8.0)
    assert found.dollars_per_million == pytest.approx(2.0)
    assert found.saved == pytest.approx(2.5)
    assert "| wasted | 2,700 (21.4%) |" in found.lines()
    assert "| $ saved against all on-demand | 2.50 |" in found.lines()


def test_a_job_that_has_done_nothing_has_no_price_a_record():
    assert cost([], PRICES, 0).dollars_per_million is None
    assert "| $ per million records | - |" in cost([], PRICES, 0).lines()


def test_spot_that_was_all_wasted_is_a_loss():
    assert cost([Usage("a", "spot", 0, start_s=3600)], PRICES, 0).saved == pytest.approx(-1.0)


def test_a_kind_without_a_price_is_said():
    with pytest.raises(UsageError, match=r"lacks c\.spot"):
        cost([Usage("c", "spot", 1)], PRICES, 1)
