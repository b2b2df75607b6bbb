"""The speed that an adaptive script tells whoever launched it, without a call of its own."""

from __future__ import annotations

import json

import pytest

from edl.adaptive import AdaptiveDataLoader, current_dataloader, speed
from edl.common.clock import FakeClock


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Launch this process; return a function that reads what it has told."""
    path = tmp_path / "report.json"
    monkeypatch.setenv("EDL_REPORT_FILE", str(path))
    return lambda: json.loads(path.read_text()) if path.exists() else None


def test_the_rate_of_the_last_seconds_is_told_and_the_first_step_does_not_count(said):
    clock = FakeClock()
    made = speed.Speed(clock)
    clock.advance(60.0)  # a compilation
    for _ in range(3):
        made.step(64)
        clock.advance(1.0)

    assert said() == {"throughput": 64.0}


def test_with_what_is_left_the_time_that_remains_is_told(said):
    clock = FakeClock()
    made = speed.Speed(clock)
    for left in (256, 192, 128):
        made.step(64, left)
        clock.advance(1.0)

    assert said() == {"throughput": 64.0, "remaining_s": 2.0}


def test_what_passes_between_loops_does_not_count(said):
    clock = FakeClock()
    made = speed.Speed(clock)
    made.step(64)
    clock.advance(100.0)  # an evaluation
    made.begin()
    for _ in range(5):
        made.step(32)
        clock.advance(0.5)

    assert said() == {"throughput": 64.0}


@pytest.mark.parametrize("training", [True, False])
def test_a_loop_that_trains_tells_of_itself(said, monkeypatch, training):
    monkeypatch.setattr(speed, "TELL_S", 0.0)
    for _ in AdaptiveDataLoader(range(12), 4):
        if training:
            current_dataloader().train()

    assert (said() is not None) == training


def test_only_rank_0_tells(said, monkeypatch):
    monkeypatch.setattr(speed.collective, "place", lambda: (1, 2))
    clock = FakeClock()
    made = speed.Speed(clock)
    for _ in range(5):
        made.step(32)
        clock.advance(1.0)

    assert said() is None


def test_nobody_is_told_where_nobody_launched_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDL_REPORT_FILE", raising=False)
    clock = FakeClock()
    made = speed.Speed(clock)
    for _ in range(5):
        made.step(32)
        clock.advance(1.0)

    assert list(tmp_path.iterdir()) == []
