"""Make an autoscaler of what a user says of the nodes that may come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...common.errors import UsageError
from ...k8s import names
from ...k8s.api import Api, Object
from ..autoscaler import Autoscaler, Rules
from ..cluster import OTHERS
from ..machines import PODS, resources
from ..place import Place
from ..policy import Policy
from ..prices import Price, read
from .asker import Asker
from .fleet import Pool
from .nodepool import NodePool
from .place import Growing
from .placeholders import IMAGE, Placeholders
from .provisioning import Provisioning

WAYS = ("pods", "provisioning", "nodepool")
_ENOUGH = 1e12  # an infinite amount less another one would be none
_KIND = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class Said:
    """The flags of `edl schedule serve` that are about nodes, as they were given."""

    nodes_by: str
    pool: str = ""
    spot: str = ""
    node: str = ""
    min_nodes: int = 0
    max_nodes: int = 10
    nodepool: str = ""
    prices: str = ""
    band: str = "0.35:0.65"
    boot: float = 120.0
    freeze: float = 600.0
    placeholder_image: str = IMAGE


@dataclass(frozen=True)
class Made:
    """An autoscaler and a way to ask, made of these flags. Neither has asked anything yet."""

    scaler: Autoscaler
    asker: Callable[[Api], Asker]

    def beside(self, place: Place, nodes: Callable[[], Iterable[Object]], api: Api) -> Growing:
        """Return the place with the autoscaler beside it."""
        return Growing(place, nodes, api, self.scaler, self.asker(api), time.time)


def make(said: Said, policy: Policy) -> Made:
    """Return what was asked for. Raises UsageError, which names the flag."""
    labels = _pairs(said.pool, "--pool")
    spot = next(iter(_pairs(said.spot, "--spot").items()), None)
    amounts = names.resources(said.node, "--node") if said.node else {}
    if not said.node:
        raise UsageError("--node is missing: say what a new node has, as cpu=4,memory=16Gi.")
    said_so = {name: float(names.quantity(amount, "--node")) for name, amount in amounts.items()}
    # of what else jobs ask for, a new node is believed to have enough: who makes it decides
    node = replace(resources({"pods": PODS, **said_so}), others=(_ENOUGH,) * OTHERS)
    if said.nodes_by == "nodepool" and not said.nodepool:
        raise UsageError("--nodepool is missing: name the NodePool whose limit is to be set.")
    low, high = _band(said.band)
    rules = Rules(_price(said.prices, labels), low, high, said.freeze, said.boot)
    pool = Pool(node, labels, spot, said.min_nodes, said.max_nodes)
    image = said.placeholder_image
    ways: dict[str, Callable[[Api], Asker]] = {
        "pods": lambda api: Placeholders(api, image),
        "provisioning": lambda api: Provisioning(api, image),
        "nodepool": lambda api: NodePool(api, said.nodepool, image),
    }
    return Made(Autoscaler(pool, policy, rules), ways[said.nodes_by])


def _price(path: str, labels: dict[str, str]) -> Price | None:
    """Return the price of a node of the pool; None: there is no table. Raises UsageError."""
    if not path:
        return None
    kind = labels.get(_KIND)
    if kind is not None:
        return read(path, [kind], others=True)[kind]
    prices = read(path, [], others=True)
    if len(prices) != 1:
        raise UsageError(
            f"{path} has {len(prices)} kinds of nodes: say in --pool which one is meant, as "
            f"{_KIND}=KIND."
        )
    return next(iter(prices.values()))


def _pairs(text: str, flag: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise UsageError(f"{flag} {text}: {part!r} is no label: write KEY=VALUE.")
        found[key.strip()] = value.strip()
    return found


def _band(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError as error:
        raise UsageError(f"--band {text}: write two numbers, as 0.35:0.65.") from error
