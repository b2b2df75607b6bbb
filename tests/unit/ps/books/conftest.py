"""`stage_of`: the stage of a store, ended when the test ends."""

from __future__ import annotations

import pytest

from edl.ps.books.store import Store

from .stage import Stage


@pytest.fixture
def stage_of():
    """Yield stage_of(store) -> Stage, ended when the test ends."""
    stages = []

    def begin(store: Store) -> Stage:
        stages.append(Stage(store))
        return stages[-1]

    yield begin
    for stage in stages:
        stage.end()
