"""Rules for all tests: hypothesis sets no deadline, and no test leaves anything behind."""

import contextlib
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tools import leaks, turns, warm_nursery

# A machine that is busy is no fault of a test, nor is how much a strategy has to throw away.
_HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile(
    "edl", max_examples=turns.examples(100), deadline=None, suppress_health_check=_HEALTH
)
settings.load_profile("edl")

turns.set_turn()

# As on most machines: what Python leaves beside what it has imported is seen by the tests, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The threads of torch.compile, begun where nothing is kept from before, end with the process only.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


_WARM = contextlib.ExitStack()


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks at its own option
def pytest_configure(config: pytest.Config) -> None:
    """Draw what the turn says: a commit is tested alike each time, and another one otherwise."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = turns.turn()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist starts its processes, which inherit it
def pytest_sessionstart(session: pytest.Session) -> None:
    """Share one nursery among the jobs of all tests, where several processes test."""
    config = session.config
    if str(config.getoption("markexpr", "")).startswith("ui"):
        return  # the page alone: no job runs
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        _WARM.enter_context(warm_nursery.running())


def pytest_unconfigure() -> None:
    _WARM.close()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a thread, a process, a descriptor or shared memory behind."""
    # What CUDA opens ends with the process only, and a browser keeps its lines to a server.
    if any(request.node.get_closest_marker(name) for name in ("gpu", "ui")):
        yield
        return
    leaks.mark()
    before = leaks.Held.now()
    yield
    left = leaks.left_since(before)
    assert not left, f"left behind: {'; '.join(left)}"
