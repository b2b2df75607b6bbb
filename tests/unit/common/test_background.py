"""A background thread hands its owner its result, or its error of any kind."""

from __future__ import annotations

import threading

import pytest

from edl.common import background

WAIT_S = 300.0


def test_the_owner_gets_the_result_of_a_thread_of_that_name_which_keeps_no_process_from_ending():
    def work() -> tuple[str, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon

    begun = background.begin("a-name", work)

    assert ("a-name", True) == begun.result(WAIT_S)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_the_owner_gets_the_error_of_whatever_kind(kind: type[BaseException]):
    def work() -> None:
        raise kind("no way")

    begun = background.begin("a-name", work)

    with pytest.raises(kind, match="no way"):
        begun.result(WAIT_S)
