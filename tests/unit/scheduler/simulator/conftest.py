"""A traced application whose times and gains can be told by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.traced import write_traces

from edl.scheduler.simulator.application import Application


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """The folder of an application of the test's own."""
    return write_traces(tmp_path / "traces" / "toy")


@pytest.fixture
def toy(traces: Path) -> Application:
    """The application in it."""
    return Application(traces)


@pytest.fixture(scope="session")
def applications(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Application]:
    """The application by its name, as a workload names it."""
    return {"toy": Application(write_traces(tmp_path_factory.mktemp("traces") / "toy"))}
