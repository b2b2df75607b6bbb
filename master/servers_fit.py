"""The fit of the model of a job on servers, anew now and then, beside the master's loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from ..common.report import Sample, ServersModel
from ..durable.loop import Loop

log = logging.getLogger(__name__)

_LEAST = 2  # configurations: before, whoever reads the samples knows as much
_GROWS = 1.5  # times as much was measured since: time for another fit


class ServersFit:
    """The newest model of a job's servers.

    A job that has only ever been in one configuration has none, and pays nothing.
    """

    def __init__(self, loop: Loop) -> None:
        self.model: ServersModel | None = None
        self._loop = loop
        self._running: Future[ServersModel] | None = None
        self._known = 0  # configurations that the last fit knew
        self._seconds = 0.0  # that they had been measured

    def look(self, samples: Sequence[Sample]) -> None:
        """Take what was fitted meanwhile, and begin to fit again where there is more to know."""
        if self._running is not None:
            if not self._running.done():
                return
            error = self._running.exception(0)
            if error is None:
                self.model = self._running.result(0)
            else:
                log.warning("the model of the servers -> not fitted error=%r", error)
            self._running = None
        there = [sample for sample in samples if sample.phases is not None]
        seconds = sum(sample.seconds for sample in there)
        more = len(there) != self._known or seconds > _GROWS * self._seconds
        if len(there) < _LEAST or not more:
            return
        self._known, self._seconds = len(there), seconds
        self._running = self._loop.background(lambda: _fit(there))


def _fit(samples: Sequence[Sample]) -> ServersModel:
    from ..goodput.reported import fitted, servers_points  # numpy: not for jobs that stay as begun

    return fitted(servers_points(samples))
