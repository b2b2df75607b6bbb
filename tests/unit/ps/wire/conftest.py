"""`start`: shards behind planes, closed when the test ends."""

from __future__ import annotations

import contextlib

import pytest

from .planes import Shard


@pytest.fixture
def start():
    """Yield start(**options of Plane) -> Shard with a model."""
    with contextlib.ExitStack() as shards:

        def started(**options):
            shard = Shard(**options)
            shards.callback(shard.close)
            return shard.init()

        yield started
