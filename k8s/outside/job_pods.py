"""The pods of one job of a cluster: listed, measured, deleted, waited for."""

from __future__ import annotations

import time

from ...common.errors import JobError
from .. import names
from ..api import Api, Object
from ..connection import ApiError
from . import state

SUSPENDING_S = 120.0  # a master has 60 s and the drain's to go
_LOOK_S = 0.5


class JobPods:
    """The pods of one job.

    A component is one of names.ROLES; where none is named, all are meant. Helpers that give out
    files are not of the job.
    """

    def __init__(self, api: Api, job: str) -> None:
        self._api = api
        self._job = job

    def found(self, *components: str) -> list[Object]:
        """Return the pods by role, as names.ROLES has them, and index; the oldest first."""
        selector = names.selector(self._job, *(components or names.ROLES))
        items, _ = self._api.list("Pod", selector)
        return sorted(items, key=state.order)

    def metrics(self) -> list[Object] | None:
        """Return what the pods use; None where the cluster has nobody who measures."""
        try:
            return self._api.list("PodMetrics", names.selector(self._job))[0]
        except ApiError as error:
            if error.status in (403, 404, 503):
                return None
            raise

    def delete(self, grace_s: int | None, *components: str) -> None:
        """Delete the pods, with `grace_s` seconds to end in; None: their own."""
        for pod in self.found(*components):
            self._api.delete("Pod", pod["metadata"]["name"], grace_s=grace_s)

    def await_master_gone(self) -> None:
        """Wait until no master's pod runs. Raises JobError where one does not end."""
        give_up = time.monotonic() + SUSPENDING_S
        while live := state.alive(self.found("master")):
            if time.monotonic() > give_up:
                raise JobError(
                    f"The master's pod {live[0]['metadata']['name']} has not ended for "
                    f"{SUSPENDING_S:.0f} s: look at its node (`edl describe {self._job} -n "
                    f"{self._api.namespace}`), then say it again."
                )
            time.sleep(_LOOK_S)
