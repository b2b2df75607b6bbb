"""Ask by ProvisioningRequests: the cluster autoscaler makes all nodes that are missing, or none.

A request is for the nodes that are missing now, one at a time for each market; its spec cannot be
changed. One that failed, or whose nodes were not kept for us, is asked anew after a pause, which
doubles from 60 s to 1,800 s, as Kueue does. Nodes that are to go are emptied by the plan, and the
autoscaler takes them away itself. No pod of a job refers to a request, since pods of one that is
gone would wait for ever.
"""

from __future__ import annotations

import datetime

from ...common.retry import Backoff
from ...k8s.api import Api, Object
from ...k8s.connection import ApiError
from ..cluster import Resources
from ..prices import MARKETS
from .fleet import Pool, Wish
from .placeholders import IMAGE, MARKET_LABEL, pod_template

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
_GROUP = "autoscaling.x-k8s.io/v1"
_TRIES = "edl.dev/tries"  # annotation: how many before it came to nothing
_PAUSE = Backoff(60.0, 1800.0)
_OVER = ("Failed", "BookingExpired", "CapacityRevoked")
_VALID_S = "600"  # so long the autoscaler tries by itself
_NAMED = "app.kubernetes.io/name=edl-nodes"


class Provisioning:
    """ProvisioningRequests in the namespace of `api`."""

    takes = Resources()

    def __init__(self, api: Api, image: str = IMAGE) -> None:
        self._api = api
        self._image = image

    def ask(self, pool: Pool, wish: Wish, now: float) -> str:
        """Have a request under way where nodes are missing. Raises PeerError."""
        found, _ = self._api.list("ProvisioningRequest", _NAMED)
        said = [
            self._ask(pool, wish, market, now, mine)
            for market in MARKETS
            if (mine := _of(found, market)) or wish.missing(market) > 0
        ]
        return "; ".join(filter(None, said)) or "nothing is missing"

    def _ask(self, pool: Pool, wish: Wish, market: str, now: float, found: list[Object]) -> str:
        missing = wish.missing(market)
        last = found[-1] if found else None
        for old in found[:-1]:
            self._delete(old)
        if last is None:
            return self._create(pool, market, missing, 0, now) if missing > 0 else ""
        over = next((c for kind in _OVER if (c := _condition(last, kind)) is not None), None)
        count = last["spec"]["podSets"][0]["count"]
        if missing <= 0:
            self._delete(last)  # they are there, or are wished no more
            return ""
        if over is None:
            is_made = _condition(last, "Provisioned") is not None
            if count > missing and not is_made:  # a part of an atom cannot be had
                self._delete(last)
                return self._create(pool, market, missing, 0, now)
            state = "are made" if is_made else "are asked for"
            return f"{count} {market} nodes {state} ({last['metadata']['name']})"
        tries = int((last["metadata"].get("annotations") or {}).get(_TRIES, "0")) + 1
        again_s = _since(over) + _PAUSE.after(tries) - now
        if again_s > 0:
            why = over.get("message") or over["type"]
            return f"{count} {market} nodes could not be had ({why}): again in {again_s:.0f} s"
        self._delete(last)
        return self._create(pool, market, missing, tries, now)

    def _create(self, pool: Pool, market: str, count: int, tries: int, now: float) -> str:
        name = f"edl-nodes-{market}-{int(now)}"
        labels = {"app.kubernetes.io/name": "edl-nodes", MARKET_LABEL: market}
        about = {"name": name, "labels": labels, "annotations": {_TRIES: str(tries)}}
        template = pod_template(pool, market, self._image)
        request = {
            "provisioningClassName": CLASS,
            "parameters": {"ValidUntilSeconds": _VALID_S},
            "podSets": [{"count": count, "podTemplateRef": {"name": name}}],
        }
        body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": about, "template": template}
        self._make("PodTemplate", body)
        self._make(
            "ProvisioningRequest",
            {
                "apiVersion": _GROUP,
                "kind": "ProvisioningRequest",
                "metadata": about,
                "spec": request,
            },
        )
        again = f", try {tries + 1}" if tries else ""
        return f"{count} {market} nodes are asked for, all or none ({name}{again})"

    def _make(self, kind: str, body: Object) -> None:
        try:
            self._api.create(kind, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def _delete(self, request: Object) -> None:
        for kind in ("ProvisioningRequest", "PodTemplate"):
            self._api.delete(kind, request["metadata"]["name"])


def _of(found: list[Object], market: str) -> list[Object]:
    mine = [each for each in found if each["metadata"]["labels"].get(MARKET_LABEL) == market]
    return sorted(mine, key=lambda each: int(each["metadata"]["name"].rpartition("-")[2]))


def _condition(request: Object, kind: str) -> Object | None:
    """Return the condition of this type where it holds."""
    for each in (request.get("status") or {}).get("conditions") or []:
        if each["type"] == kind and each["status"] == "True":
            found: Object = each
            return found
    return None


def _since(condition: Object) -> float:
    time = datetime.datetime.fromisoformat(condition["lastTransitionTime"])
    return time.timestamp()
