import pytest
from tools import elastic


@pytest.fixture(scope="session", autouse=True)
def _forkserver() -> None:
    """Start the process that replicas are forked from, which all tests share."""
    elastic.begin()
