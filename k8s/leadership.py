"""Leadership: one pod is the master of a job, or the controller of all, by a Lease that it renews.

A master whose pod is gone has lost it at once; one that merely does not answer when its lease was
not renewed for DURATION_S, by our own clock (clocks of machines differ: what counts is that the
Lease has not changed for so long). An old master that comes back finds another holder and ends;
while the API server is away nobody can take the lease, and the journal and the servers fence an old
master too.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..common.errors import JobError, PeerError
from . import observe
from .api import Api, Object
from .connection import ApiError

log = logging.getLogger(__name__)

DURATION_S = 15.0
RENEW_S = 4.0
_LOOK_S = 1.0
_ACQUIRE_S = 120.0
_AGAIN_S = 5.0  # until an API server that does not answer is asked again


class Leadership:
    """The claim of one pod to the Lease `name`.

    `holder`: the name of this pod. `owner`: with whom the Lease is deleted. `of_pods`: each holder
    is a pod of this namespace, whose end gives the Lease free.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        holder: str,
        labels: dict[str, str],
        *,
        owner: Object | None = None,
        of_pods: bool = True,
    ) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._labels = labels
        self._owner = owner
        self._of_pods = of_pods
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_service(cls, api: Api, name: str, labels: dict[str, str]) -> Leadership:
        """Return the claim of this process, one of a service of which one at a time acts."""
        who = f"{os.environ.get('EDL_POD') or socket.gethostname()}-{secrets.token_hex(3)}"
        return cls(api, name, who[-63:], labels, of_pods=False)

    def await_turn(self, over: threading.Event, on_error: Callable[[PeerError], object]) -> bool:
        """Wait for the Lease until it is over, whatever fails meanwhile; return whether it is ours.

        `close` ends the waiting as well.
        """
        while not over.is_set():
            try:
                self.acquire(math.inf)
            except JobError:  # told to end while it waited
                return False
            except PeerError as error:
                on_error(error)
                over.wait(_AGAIN_S)
            else:
                return True
        return False

    def acquire(self, patience_s: float | None = None) -> None:
        """Wait until the Lease is ours. Raises JobError where another one goes on renewing it."""
        give_up = time.monotonic() + (_ACQUIRE_S if patience_s is None else patience_s)
        seen: tuple[Any, float] = (None, time.monotonic())
        while True:
            found = self._api.get("Lease", self._name)
            if found is None:
                if self._write(None):
                    return
                continue
            spec = found["spec"]
            mark = (spec.get("holderIdentity"), spec.get("renewTime"))
            if mark != seen[0]:
                seen = (mark, time.monotonic())
            expired = time.monotonic() - seen[1] > DURATION_S
            holder = spec.get("holderIdentity") or ""
            if holder in ("", self._holder) or expired or not self._lives(holder):
                if self._write(found):
                    return
                continue
            if time.monotonic() > give_up:
                raise JobError(f"another one runs, in the pod {holder}: this one ends")
            if self._closed.wait(_LOOK_S):
                raise JobError("this one was told to end")

    def keep(self, on_lost: Callable[[str], None]) -> None:
        """Renew the Lease from now on. `on_lost(why)`: another pod has it."""
        self._thread = threading.Thread(
            target=self._renew, args=(on_lost,), name="leadership", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Renew the Lease no more; it is given up, so that nobody has to wait."""
        self._closed.set()
        if self._thread is None:
            return
        self._thread.join(RENEW_S)
        try:
            found = self._api.get("Lease", self._name)
            if found is not None and found["spec"].get("holderIdentity") == self._holder:
                self._write(found, holder="")
        except PeerError as error:
            log.warning("lease=%s -> not given up error=%r", self._name, str(error))

    def _renew(self, on_lost: Callable[[str], None]) -> None:
        while not self._closed.wait(RENEW_S):
            try:
                found = self._api.get("Lease", self._name)
                holder = found["spec"].get("holderIdentity") if found else self._holder
                if holder != self._holder:
                    on_lost(f"the pod {holder} has the lease {self._name} now")
                    return
                self._write(found)
            except PeerError as error:
                log.warning("lease=%s -> not renewed error=%r", self._name, str(error))

    def _write(self, found: Object | None, holder: str | None = None) -> bool:
        """Write the Lease, and return whether nobody else wrote it meanwhile."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (found or {}).get("spec") or {}
        holder = self._holder if holder is None else holder
        changes = int(before.get("leaseTransitions") or 0) + (
            found is not None and before.get("holderIdentity") != holder
        )
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(DURATION_S),
            "renewTime": now,
            "acquireTime": before.get("acquireTime") or now,
            "leaseTransitions": changes,
        }
        about: Object
        try:
            if found is None:
                about = {"name": self._name, "labels": self._labels}
                if self._owner is not None:
                    about["ownerReferences"] = [self._owner]
                kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                self._api.create("Lease", {**kind, "metadata": about, "spec": spec})
            else:
                about = found["metadata"]
                about = {**about, "labels": {**(about.get("labels") or {}), **self._labels}}
                self._api.replace("Lease", self._name, {**found, "metadata": about, "spec": spec})
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def _lives(self, holder: str) -> bool:
        if not self._of_pods:
            return True
        pod = self._api.get("Pod", holder)
        return pod is not None and not isinstance(observe.observe(pod), observe.Ended)
