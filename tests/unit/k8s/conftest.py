from __future__ import annotations

from collections.abc import Iterator
from queue import Queue

import pytest
from tools.apiserver import ApiServer

from edl.k8s.api import Api
from edl.k8s.connection import Connection


@pytest.fixture
def server() -> Iterator[ApiServer]:
    found = ApiServer()
    yield found
    found.close()


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    from kubernetes.client import Configuration

    configuration = Configuration()
    configuration.host = server.address
    found = Api(Connection(configuration), "default")
    yield found
    found.close()


@pytest.fixture
def told() -> Queue:
    """Return a queue of what a runtime reports."""
    return Queue()
