"""A worker that was told to go and cannot hand back ends with its grace, or with its master."""

from __future__ import annotations

import pytest

from edl.common.errors import Unreachable
from edl.worker.leaving import leave_in_time

pytestmark = pytest.mark.fast


class Master:
    """A master that answers until `gone`; time passes while one waits."""

    def __init__(self, gone: float) -> None:
        self.now, self.gone = 0.0, gone
        self.ended: list[tuple[float, str]] = []

    def ask(self, patience_s: float) -> None:
        if self.now >= self.gone:
            self.now += patience_s
            raise Unreachable("nobody answers")

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def leave(self, grace_s: float) -> tuple[float, str]:
        end = lambda why: self.ended.append((self.now, why))
        leave_in_time(self.ask, end, grace_s, lambda: self.now, self.wait)
        (found,) = self.ended
        return found


@pytest.mark.parametrize(("gone", "grace_s", "most_s"), [(0.0, 20.0, 3.0), (5.0, 20.0, 9.0)])
def test_who_cannot_hand_back_leaves_as_soon_as_its_master_is_gone(gone, grace_s, most_s):
    """Broken once: it waits for its grace."""
    at, why = Master(gone).leave(grace_s)

    assert gone <= at <= most_s
    assert "nobody to hand back to" in why


@pytest.mark.parametrize(("gone", "grace_s"), [(99.0, 20.0), (99.0, 0.5), (0.0, 1.0), (19.5, 20.0)])
def test_nobody_stays_beyond_its_grace(gone, grace_s):
    at, _ = Master(gone).leave(grace_s)

    assert at <= grace_s
