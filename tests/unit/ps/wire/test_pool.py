"""The pool of connections, of which each carries one request at a time."""

import pytest

from edl.common.errors import Unreachable
from edl.wire.pool import Pool


class Connection:
    def __init__(self):
        self.ends = []

    def abort(self):
        self.ends.append("aborted")

    def close(self):
        self.ends.append("closed")


def test_a_connection_is_used_by_one_at_a_time():
    pool, one = Pool(), Connection()
    assert pool.take() is None
    assert pool.add(one) is one
    assert pool.take() is None

    pool.give(one)

    assert pool.take() is one
    assert pool.take() is None
    assert one.ends == []


def test_what_is_dropped_is_closed_and_never_taken():
    pool, used, idle = Pool(), Connection(), Connection()
    for each in (used, idle):
        pool.add(each)
    pool.give(idle)

    pool.drop(used)
    assert (used.ends, idle.ends) == (["closed"], [])
    pool.drop_idle()

    assert idle.ends == ["closed"]
    assert pool.take() is None
    pool.close()
    assert (used.ends, idle.ends) == (["closed"], ["closed"])


def test_once_closed_whoever_waits_is_woken_and_nobody_begins():
    pool, used, idle, late = Pool(), Connection(), Connection(), Connection()
    for each in (used, idle):
        pool.add(each)
    pool.give(idle)

    pool.close()

    assert used.ends == ["aborted"]  # its user closes it
    assert idle.ends == ["aborted", "closed"]
    pool.give(used)
    assert used.ends == ["aborted", "closed"]
    with pytest.raises(Unreachable, match="closed"):
        pool.take()
    with pytest.raises(Unreachable, match="closed"):
        pool.add(late)
    assert late.ends == ["closed"]
