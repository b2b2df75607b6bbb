"""Optimus' form is found again, and the tables hold all that was not fitted."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import servers_model as bench
from edl.goodput import ServersParams, ServersPoint


def point(place, rate, exchange_s=0.01):
    return ServersPoint(*place, rate, 0.0, 0.05, exchange_s / 2, exchange_s / 2, busy=0.2)


def test_optimus_form_is_found_again():
    a, b, c, d = 0.05, 0.01, 0.002, 0.003

    def rate(w, p):
        return w * 64 / (a + b * w / p + c * w + d * p)

    speed = bench.optimus([point((w, p, 64), rate(w, p)) for w, p in bench.GIVEN])

    for w, p in itertools.product((1, 4, 8), (1, 2, 4)):
        assert speed(w, p, 64) == pytest.approx(rate(w, p))


def test_tables_hold_every_point_that_was_not_given():
    params = ServersParams(0.02, 2e-4, 0, 0.003, 0, 0, 0.002, 1.5e-4, 0.2, 0, 0.6)
    places = itertools.product(bench.WORKERS, bench.SERVERS, bench.SIZES)
    text = bench.compared(
        {p: point(p, params.throughput(*p), params.exchange_s(*p)) for p in places}
    )

    unseen = len(bench.WORKERS) * len(bench.SERVERS) * len(bench.SIZES)
    assert f"at {unseen - 2 * len(bench.GIVEN)} unseen points: ours " in text
    assert f"at {unseen - 3} unseen points" in text
    assert f"at {unseen - 4} unseen points" in text
