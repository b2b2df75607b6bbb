from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.apiserver import ApiServer, connect

from edl.k8s.api import Api


@pytest.fixture
def server() -> Iterator[ApiServer]:
    found = ApiServer()
    yield found
    found.close()


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    found = Api(connect(server.address), "default")
    yield found
    found.close()
